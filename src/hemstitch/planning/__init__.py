"""Takes a graph, gives a plan: which nodes become one kernel, the order of kernels and library
calls, and why there are not fewer kernels."""
