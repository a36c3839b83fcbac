"""The performance library (FusionStitching 2018). Takes probes, gives the seconds that they take,
measured once, by this process or an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from math import inf
from pathlib import Path

from hemstitch.runtime.jit import processor
from hemstitch.runtime.measure import measure
from hemstitch.runtime.remembered import folder, recall, remember
from hemstitch.stitch.probe import Probe


class Library(Mapping[Probe, float]):
    """Has whatever `measure` can measure, though it is asked only for what is not in `place`; what
    cannot be built is not there."""

    def __init__(self, place: Path, measure: Callable[[Probe], float]) -> None:
        self._place = place
        self._measure = measure
        self._known: dict[Probe, float | None] = {}

    def __getitem__(self, probe: Probe) -> float:
        if probe not in self._known:
            try:
                self._known[probe] = self._found(probe)
            except Exception:  # no plan fails for want of a measurement
                self._known[probe] = None
        seconds = self._known[probe]
        if seconds is None:
            raise KeyError(probe)
        return seconds

    def __iter__(self) -> Iterator[Probe]:
        return (probe for probe, seconds in self._known.items() if seconds is not None)

    def __len__(self) -> int:
        return sum(seconds is not None for seconds in self._known.values())

    def _found(self, probe: Probe) -> float:
        key = key_of(probe)
        path = self._place / f"{sha256(key.encode()).hexdigest()[:32]}.json"
        record = recall(path)
        if isinstance(record, dict) and _is_time(record.get("seconds")):
            return float(record["seconds"])
        seconds = self._measure(probe)
        remember(path, {"key": key, "seconds": seconds})
        return seconds


@cache
def library() -> Library:
    """This process's, of this processor."""
    return Library(folder("measured"), measure)


def key_of(probe: Probe) -> str:
    """All that the time depends on."""
    return f"{probe} on {processor()}, hemstitch {version('hemstitch')}"


def _is_time(seconds: object) -> bool:
    return type(seconds) is float and 0 < seconds < inf
