"""Loads printed Triton source as a module: takes text, gives the kernel in it."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from threading import get_ident
from typing import Any

MODULES = "hemstitch_printed"  # prefix of the modules' names


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """The process's folder of sources: Triton reads a function's text from its file."""
    return tempfile.TemporaryDirectory(prefix=f"{MODULES}_")


@lru_cache(maxsize=512)
def kernel_of(text: str, entry: str) -> Any:
    """The function `entry` of the module with this text; equal texts are one module."""
    name = f"{MODULES}_{sha256(text.encode()).hexdigest()[:16]}"
    path = Path(folder().name) / f"{name}.py"
    if not path.exists():  # written atomically: threads may read it at any time
        unfinished = path.with_suffix(f".{get_ident()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return getattr(module, entry)
