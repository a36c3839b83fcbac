"""Printed Triton kernels on NVIDIA GPUs: takes machine code, gives what launches it."""
