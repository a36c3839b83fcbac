"""Takes a graph, gives a plan: the nodes of each kernel, the order of kernels and library calls,
and the refusals that kept kernels apart."""
