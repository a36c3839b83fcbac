"""The performance library (FusionStitching 2018). Takes probes, gives their times, measured once by
this process, an earlier one, or another rank of its job.
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

from hemstitch.cache.records import folder, load_record, store_record
from hemstitch.machine.probes import Probe
from hemstitch.measure.ranks import agreed
from hemstitch.measure.timing import measure
from hemstitch.toolchain.jit import processor


class CachedTimes(Mapping[Probe, float]):
    """A mapping that calls `find` once for each probe; None means that there is no time."""

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


class PerformanceLibrary(CachedTimes):
    """Times from the folder `place`, or else from `measure`, which may time several probes
    together. Probes that cannot be built are missing."""

    def __init__(self, place: Path, measure: Callable[[Probe], Mapping[Probe, float]]) -> None:
        super().__init__(self._time_or_none)
        self._place = place
        self._measure = measure

    def _time_or_none(self, probe: Probe) -> float | None:
        with suppress(Exception):  # a plan must not fail because of a measurement
            return self._time(probe)
        return None

    def _time(self, probe: Probe) -> float:
        record = load_record(self._file(probe))
        if isinstance(record, dict) and _is_time(record.get("seconds")):
            return float(record["seconds"])
        times = self._measure(probe)
        for timed, seconds in times.items():
            store_record(self._file(timed), {"key": key_of(timed), "seconds": seconds})
        self._known.update(times)
        return times[probe]

    def _file(self, probe: Probe) -> Path:
        return self._place / f"{sha256(key_of(probe).encode()).hexdigest()[:32]}.json"


@cache
def library() -> PerformanceLibrary:
    """The performance library of this processor."""
    return PerformanceLibrary(folder("measured"), measure)


def measurements(own: Mapping[Probe, float] | None = None) -> CachedTimes:
    """The times for one compile: in a job, those of the rank that had them first. `own`: the times
    of this process; the library by default. Not to be cached, since the process may join a job."""
    mine = library() if own is None else own
    return CachedTimes(lambda probe: agreed(str(probe), partial(mine.get, probe)))


def key_of(probe: Probe) -> str:
    """Text with all that the time depends on."""
    library = f"torch {torch.__version__} for {torch.backends.cpu.get_cpu_capability()}"
    return f"{probe} on {processor()}, {library}, hemstitch {version('hemstitch')}"


def _is_time(seconds: object) -> bool:
    return type(seconds) is float and 0 < seconds < inf
