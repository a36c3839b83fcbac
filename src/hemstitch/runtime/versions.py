"""Whether PyTorch is one that Hemstitch was tried with."""

from __future__ import annotations

import re
import warnings
from functools import cache

import torch

from hemstitch.errors import VersionWarning

NEWEST = (2, 14)  # requirements/constraints.txt has the usual one, `make test-newest` the newest


@cache
def tell_newer_torch() -> None:
    """Once a process."""
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version > NEWEST:
        newest = ".".join(map(str, NEWEST))
        what = f"PyTorch {torch.__version__} is newer than any that was tried, up to {newest}"
        warnings.warn(VersionWarning(what), stacklevel=2)
