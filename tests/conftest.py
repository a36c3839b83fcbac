"""What all tests share: every stage checked, text goldens, rewritten by `pytest --accept`."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch._dynamo.guards

import testing.interpret_target  # noqa: F401  registers the emulator
from hemstitch.ir.types import DType
from hemstitch.machine.record import MatrixUnits
from hemstitch.targets.cpu.description import generic_cpu

GOLDEN = Path(__file__).parent / "golden"
os.environ.setdefault("HEMSTITCH_CHECK", "1")
os.environ.setdefault("HEMSTITCH_CACHE", "0")  # what is compiled is what the test is about
# A sixth of the time went into looking for garbage among what is imported and what is traced, and
# a fifteenth into what Dynamo does behind each graph: to empty all caches, to see how long its
# guards take then, and to look for garbage once more.
gc.set_threshold(100_000, 20, 20)
torch._dynamo.config.run_gc_after_compile = False
torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="write the goldens instead of comparing")


@pytest.fixture(autouse=True)
def _library_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on which is faster here, a kernel or the library."""
    monkeypatch.setattr("hemstitch.driver.compiler.measured_units", lambda threads, lanes: {})


@pytest.fixture
def kernels_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever matrices there are, wherever that is possible."""

    def units(threads: int, lanes: int) -> Mapping[DType, MatrixUnits]:
        nominal = generic_cpu(threads, lanes).matrix_units
        return {dtype: replace(each, share=100.0) for dtype, each in nominal.items()}

    monkeypatch.setattr("hemstitch.driver.compiler.measured_units", units)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compares a text with tests/golden/<test file>/<test name>.txt."""
    path = GOLDEN / request.path.stem / f"{request.node.name}.txt"

    def compare(text: str) -> None:
        if request.config.getoption("--accept"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden {path}: run pytest --accept"
        assert text == path.read_text()

    return compare
