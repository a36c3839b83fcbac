"""Printed Triton kernels on NVIDIA GPUs: takes a step of a plan, gives what launches it."""

from hemstitch.runtime.cuda.launch import launch_of

__all__ = ["launch_of"]
