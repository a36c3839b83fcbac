"""Counts the samples that agree and the operations that are generated; prints both at the end."""

from __future__ import annotations

from collections import Counter

import pytest

COUNTS = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS] = Counter()


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What falls back to eager would always agree with it."""
    monkeypatch.setenv("HEMSTITCH_STRICT", "1")


@pytest.fixture
def counts(request: pytest.FixtureRequest) -> Counter[str]:
    return request.config.stash[COUNTS]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = terminalreporter.config.stash[COUNTS]
    for what in sorted({key.rpartition(":")[0] for key in counts}):
        good, total = counts[f"{what}:good"], counts[f"{what}:all"]
        terminalreporter.write_line(f"opinfo, {what}: {good} of {total} ({good / total:.2%})")
