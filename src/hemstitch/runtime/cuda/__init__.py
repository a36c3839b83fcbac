"""Printed Triton kernels on NVIDIA GPUs: takes steps of a plan, gives what launches them."""

from hemstitch.runtime.cuda.ahead import launches

__all__ = ["launches"]
