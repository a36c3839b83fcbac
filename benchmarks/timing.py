"""Times several ways to do the same work against each other in one process. Takes functions and
sets of arguments, gives each function's samples; medians, spreads and ratios come from those."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

# Short functions are repeated within a sample until it lasts this long: the first call after
# another function's turn finds the caches full of that one's tensors.
SAMPLE_SECONDS = 10e-3
WARM_UP_CALLS = 3

Function = Callable[..., object]
Clock = Callable[[Callable[[], None]], float]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call, one sample per round. Rounds of functions timed together are paired."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        if len(self.samples) < 2:
            return math.nan
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / 2 / self.median

    def times_faster_than(self, other: Timing) -> float:
        """The median of the ratios round by round, so that a slow moment of the machine cancels."""
        return statistics.median(b / a for a, b in zip(self.samples, other.samples))


def host_clock(run: Callable[[], None]) -> float:
    """Seconds that `run` takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def paired(
    functions: Mapping[str, Function],
    arguments: Sequence[tuple[object, ...]],
    rounds: int,
    clock: Clock = host_clock,
    sample_seconds: float = SAMPLE_SECONDS,
) -> dict[str, Timing]:
    """A B C A B C ...; every call takes the next of `arguments`, so that a function does not find
    in a nearer cache what the size of the whole rotation would not let it keep there. The first
    call of a turn is not timed: it waits until what the function before it has left in the caches
    is written to memory, a millisecond or more, which says nothing about either, but comes to the
    same one in every round."""
    rotation = cycle(arguments)
    repeats = {
        name: _repeats(function, rotation, clock, sample_seconds)
        for name, function in functions.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            samples[name].append(_sample(function, rotation, repeats[name], clock))
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def geometric_mean(values: Iterable[float]) -> float:
    known = tuple(values)
    return math.exp(statistics.fmean(map(math.log, known))) if known else math.nan


def _repeats(
    function: Function,
    rotation: Iterable[tuple[object, ...]],
    clock: Clock,
    sample_seconds: float,
) -> int:
    _sample(function, rotation, WARM_UP_CALLS, clock)
    return max(1, math.ceil(sample_seconds / _sample(function, rotation, WARM_UP_CALLS, clock)))


def _sample(
    function: Function, rotation: Iterable[tuple[object, ...]], repeats: int, clock: Clock
) -> float:
    first, *chosen = (arguments for _, arguments in zip(range(repeats + 1), rotation))
    function(*first)

    def run() -> None:
        for arguments in chosen:
            function(*arguments)

    return clock(run) / repeats
