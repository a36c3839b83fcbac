"""Which nodes become one kernel, in what order kernels and library calls run, and why not fewer."""
