"""What the tests of the papers' rows share. Each test is named after its row: `test_F1_1_...` holds
F1-1. `make papers` prints the table of rows (tools/papers.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.effort import IS_WHOLE

MEASURED = "measured"
MODELS = ["test_models.py", "test_evt_models.py"]  # take minutes
collect_ignore = [] if IS_WHOLE else MODELS


def pytest_configure(config: pytest.Config) -> None:
    line = "needs_gpu(reason): what of the row only a device can show; the rest is tested without"
    config.addinivalue_line("markers", line)


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Takes the figure that the test found, for the table."""
    return lambda figure: record_property(MEASURED, figure)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
