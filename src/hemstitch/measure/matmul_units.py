"""Measured matmul rates of this processor: of the library, and of our kernels. Takes a machine's
nominal units, gives measured ones.

Which is faster depends on the host: the library reaches the peak of some processors, and less than
half of it on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from hemstitch.ir.types import DType
from hemstitch.machine.matmul_rates import MatmulTimings
from hemstitch.machine.probes import Probe
from hemstitch.machine.record import MatrixUnits
from hemstitch.measure.performance_library import measurements
from hemstitch.targets.cpu.description import generic_cpu


class MeasuredUnits(Mapping[DType, MatrixUnits]):
    """A lazy mapping with the keys of `nominal`: a lookup measures."""

    def __init__(
        self,
        nominal: Mapping[DType, MatrixUnits],
        threads: int,
        lanes: int,
        seconds: Mapping[Probe, float],
    ) -> None:
        self._nominal = nominal
        self._threads = threads
        self._lanes = lanes
        self._seconds = seconds
        self._known: dict[DType, MatrixUnits] = {}

    def __getitem__(self, dtype: DType) -> MatrixUnits:
        if dtype not in self._known:
            self._known[dtype] = self._units(dtype)
        return self._known[dtype]

    def _units(self, dtype: DType) -> MatrixUnits:
        """On a busy processor only a single thread can be timed, by its own clock: then all threads
        are taken to be as fast."""
        nominal = self._nominal[dtype]
        for threads in dict.fromkeys((self._threads, 1)):
            measured = MatmulTimings(dtype, threads, self._lanes, self._seconds)
            times = self._threads / threads
            with suppress(KeyError):
                rates = measured.rates.times_as_fast(times)
                library, kernel = (
                    measured.operations_per_second("library"),
                    measured.operations_per_second("kernel"),
                )
                rate, share = times * library, kernel / library
                return replace(nominal, operations_per_second=rate, share=share, measured=rates)
        return nominal

    def __contains__(self, dtype: object) -> bool:
        return dtype in self._nominal

    def __iter__(self) -> Iterator[DType]:
        return iter(self._nominal)

    def __len__(self) -> int:
        return len(self._nominal)


def measured_units(threads: int, lanes: int) -> MeasuredUnits:
    """Of this process's processor, or of its job's first rank."""
    return MeasuredUnits(generic_cpu(threads, lanes).matrix_units, threads, lanes, measurements())
