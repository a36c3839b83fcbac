"""Takes a captured graph, gives a callable: runs the stages in order and builds the kernels in
parallel or in the background."""
