"""Whether Hemstitch is tested with this PyTorch."""

from __future__ import annotations

import re
import warnings
from functools import cache

import torch

from hemstitch.errors import VersionWarning

NEWEST = (2, 14)  # requirements/constraints.txt has the usual one, `make test-newest` the newest


@cache
def warn_newer_torch() -> None:
    """Once in each process."""
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version > NEWEST:
        newest = ".".join(map(str, NEWEST))
        message = f"PyTorch {torch.__version__} is newer than any that was tried, up to {newest}"
        warnings.warn(VersionWarning(message), stacklevel=2)
