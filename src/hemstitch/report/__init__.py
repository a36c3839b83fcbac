"""Takes a program, gives a report of its kernels and library calls."""
