"""Counts the samples that agree and the operations that are generated; prints both at the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest


@dataclass(slots=True)
class Counts:
    """For each kind of sample: how many there were, and how many of them were good."""

    good: Counter[str] = field(default_factory=Counter)
    all: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, good: int, all: int) -> None:
        self.good[kind] += good
        self.all[kind] += all

    def share(self, kind: str) -> float | None:
        return self.good[kind] / self.all[kind] if self.all[kind] else None


COUNTS = pytest.StashKey[Counts]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS] = Counts()


@pytest.fixture
def counts(request: pytest.FixtureRequest) -> Counts:
    return request.config.stash[COUNTS]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = terminalreporter.config.stash[COUNTS]
    for kind, total in counts.all.items():
        line = f"opinfo, {kind}: {counts.good[kind]} of {total} ({counts.share(kind):.2%})"
        terminalreporter.write_line(line)
