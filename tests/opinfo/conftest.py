"""Runs cases, all of them in a process for each core; counts the samples that agree and the
operations that are generated, and prints both at the end."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.effort import IS_WHOLE
from tests.opinfo.cases import CASES, judge
from tests.opinfo.harness import Verdict


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


@pytest.fixture(scope="session")
def verdict_on(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], Verdict]]:
    """By the number of the case."""
    if not IS_WHOLE:
        yield judge
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    context, notes = multiprocessing.get_context("spawn"), tmp_path_factory.mktemp("cases")
    with ProcessPoolExecutor(cores, context, _prepare, (notes,)) as pool:
        parameters = [getattr(item, "callspec", None) for item in request.session.items]
        numbers = [p.params["number"] for p in parameters if p and "number" in p.params]
        futures = {number: pool.submit(_judged, number, notes) for number in numbers}
        yield lambda number: _result(futures.pop(number), notes)
        pool.shutdown(cancel_futures=True)


def _result(future: Future[Verdict], notes: Path) -> Verdict:
    try:
        return future.result()
    except BrokenProcessPool:
        lines = "\n".join(path.read_text() for path in notes.iterdir())
        pytest.exit(f"one of these crashed its process\n{lines}", returncode=1)


def _prepare(notes: Path) -> None:
    """One of several processes: a thread of its own, and a crash says where it was."""
    faulthandler.enable(_note(notes).open("a"))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def _judged(number: int, notes: Path) -> Verdict:
    _note(notes).write_text(f"{CASES[number]}\n")
    return judge(number)


def _note(notes: Path) -> Path:
    """What a process is at."""
    return notes / str(os.getpid())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = terminalreporter.config.stash[COUNTS]
    for kind, total in counts.all.items():
        line = f"opinfo, {kind}: {counts.good[kind]} of {total} ({counts.share(kind):.2%})"
        terminalreporter.write_line(line)
