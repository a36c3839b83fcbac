"""The performance library (FusionStitching 2018). Takes probes, gives the seconds that they take,
measured once, by this process or an earlier one, or by another rank of its job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import version
from math import inf
from pathlib import Path

import torch

from hemstitch.cache.records import folder, recall, remember
from hemstitch.machine.probes import Probe
from hemstitch.measure.ranks import agreed
from hemstitch.measure.timing import measure
from hemstitch.toolchain.jit import processor


class Answers(Mapping[Probe, float]):
    """Has whatever `find` finds, and asks it once for each probe. None: there is no such time."""

    def __init__(self, find: Callable[[Probe], float | None]) -> None:
        self._find = find
        self._known: dict[Probe, float | None] = {}

    def __getitem__(self, probe: Probe) -> float:
        if probe not in self._known:
            self._known[probe] = self._find(probe)
        seconds = self._known[probe]
        if seconds is None:
            raise KeyError(probe)
        return seconds

    def __iter__(self) -> Iterator[Probe]:
        return (probe for probe, seconds in self._known.items() if seconds is not None)

    def __len__(self) -> int:
        return sum(seconds is not None for seconds in self._known.values())


class Library(Answers):
    """Has whatever `measure` can measure, which gives the times of all that it measures with what
    it is asked for; it is asked only for what is not in `place`. What cannot be built is not there.
    """

    def __init__(self, place: Path, measure: Callable[[Probe], Mapping[Probe, float]]) -> None:
        super().__init__(self._found)
        self._place = place
        self._measure = measure

    def _found(self, probe: Probe) -> float | None:
        with suppress(Exception):  # no plan fails for want of a measurement
            return self._recalled(probe)
        return None

    def _recalled(self, probe: Probe) -> float:
        record = recall(self._file(probe))
        if isinstance(record, dict) and _is_time(record.get("seconds")):
            return float(record["seconds"])
        found = self._measure(probe)
        for each, seconds in found.items():
            remember(self._file(each), {"key": key_of(each), "seconds": seconds})
        self._known.update(found)
        return found[probe]

    def _file(self, probe: Probe) -> Path:
        return self._place / f"{sha256(key_of(probe).encode()).hexdigest()[:32]}.json"


@cache
def library() -> Library:
    """This process's, of this processor."""
    return Library(folder("measured"), measure)


def measurements(own: Mapping[Probe, float] | None = None) -> Answers:
    """What one compile plans with: of a job's ranks, what one of them had first. `own`: this
    process's; the library by default. A rank that joins a job may have to take others' figures, so
    this is not for longer."""
    mine = library() if own is None else own
    return Answers(lambda probe: agreed(str(probe), partial(mine.get, probe)))


def key_of(probe: Probe) -> str:
    """All that the time depends on."""
    library = f"torch {torch.__version__} for {torch.backends.cpu.get_cpu_capability()}"
    return f"{probe} on {processor()}, {library}, hemstitch {version('hemstitch')}"


def _is_time(seconds: object) -> bool:
    return type(seconds) is float and 0 < seconds < inf
