"""What all tests share: every stage checked, text goldens, rewritten by `pytest --accept`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
os.environ.setdefault("HEMSTITCH_CHECK", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="write the goldens instead of comparing")


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
