"""Takes a graph, gives a plan: which nodes become one kernel, in what order kernels and library
calls run, and why there are not fewer."""
