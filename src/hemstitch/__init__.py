"""Hemstitch: a fusing compiler backend for PyTorch, `torch.compile(model, backend="hemstitch")`."""

import sys

if sys.platform != "linux":
    raise ImportError(f"Hemstitch runs on Linux, not on {sys.platform}")

from hemstitch.report.explain import KernelInfo, Report, explain

__all__ = ["KernelInfo", "Report", "explain"]
__version__ = "0.1.0"
