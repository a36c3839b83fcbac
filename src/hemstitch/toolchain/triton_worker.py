"""Triton's compiler in a worker process: takes a printed kernel and its build options, and puts the
result in Triton's cache. Never imported by Hemstitch itself."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# A stand-in for the package, which imports PyTorch: that takes seconds.
PACKAGE: Any = ModuleType("hemstitch")
PACKAGE.__path__ = [str(Path(__file__).parents[1])]
sys.modules.setdefault("hemstitch", PACKAGE)
cross: Any = importlib.import_module("hemstitch.toolchain.triton_cross")
source: Any = importlib.import_module("hemstitch.toolchain.triton_source")
importlib.import_module("hemstitch.targets.gpu.device_functions")  # all kernels use it


def answer(question: bytes) -> bytes:
    """Raises RuntimeError."""
    request = json.loads(question)
    os.environ.update(request["environment"])
    kernel = source.kernel_of(request["text"], request["entry"])
    try:
        cross.build_for(kernel, request["signature"], {}, request["target"], **request["choices"])
    except Exception as error:
        raise RuntimeError(getattr(error, "message", repr(error))) from error
    return b""
