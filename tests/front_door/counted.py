"""What a command counts on a GPU that is not there, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import stand_in

FOLDER = Path(__file__).resolve().parents[2]


def counted(module: str, path: Path) -> Any:
    """The JSON that `module` writes to `path`."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Inductor and the stand-in for a GPU need Triton")
    environment = stand_in.preload()
    if environment is None:
        pytest.skip("needs a PyTorch built without CUDA, and a C++ compiler")
    command = [sys.executable, "-m", module, "--json", path]
    done = subprocess.run(command, env=environment, cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(path.read_text())
