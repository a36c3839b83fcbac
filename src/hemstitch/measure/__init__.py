"""Takes probes and candidates, gives their times: of library calls, of kernels, of blockings."""
