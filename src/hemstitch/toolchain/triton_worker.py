"""Triton's compiler in a worker process: takes a printed kernel and how it is built, and leaves it
in Triton's cache. Never imported where Hemstitch is."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# The package itself imports PyTorch, which takes seconds.
PACKAGE: Any = ModuleType("hemstitch")
PACKAGE.__path__ = [str(Path(__file__).parents[1])]
sys.modules.setdefault("hemstitch", PACKAGE)
cross: Any = importlib.import_module("hemstitch.toolchain.triton_cross")
source: Any = importlib.import_module("hemstitch.toolchain.triton_source")
importlib.import_module("hemstitch.targets.gpu.device_functions")  # all kernels use it


def answer(question: bytes) -> bytes:
    """Raises RuntimeError."""
    asked = json.loads(question)
    os.environ.update(asked["environment"])
    kernel = source.kernel_of(asked["text"], asked["entry"])
    try:
        cross.build_for(kernel, asked["signature"], {}, asked["target"], **asked["choices"])
    except Exception as error:
        raise RuntimeError(getattr(error, "what", repr(error))) from error
    return b""
