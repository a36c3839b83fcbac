"""How fast this processor multiplies matrices: by the library, and in kernels of ours. Takes a
machine's nominal units, gives measured ones.

Which of the two is faster depends on the host: the library reaches the peak of the processors that
it was written for, and less than half of it on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hemstitch.ir.types import DType
from hemstitch.runtime.performance import measurements
from hemstitch.stitch.machine import MatrixUnits, generic_cpu
from hemstitch.stitch.probe import Probe, ProductProbe

SIZE = (768, 768, 768)  # rows, steps, columns: one of a transformer's, in 10 ms or less
DTYPES = {4: DType.F32, 2: DType.BF16}  # by bytes of an element


class Measured(Mapping[int, MatrixUnits]):
    """Has what `nominal` has, and measures only what it is asked for."""

    def __init__(
        self,
        nominal: Mapping[int, MatrixUnits],
        threads: int,
        lanes: int,
        seconds: Mapping[Probe, float],
    ) -> None:
        self._nominal = nominal
        self._threads = threads
        self._lanes = lanes
        self._seconds = seconds

    def __getitem__(self, bytes_: int) -> MatrixUnits:
        nominal, given = self._nominal[bytes_], (*SIZE, self._threads, self._lanes)
        by_library = ProductProbe("library", DTYPES[bytes_], *given)
        ours = self._seconds.get(ProductProbe("kernel", DTYPES[bytes_], *given))
        theirs = self._seconds.get(by_library)
        if ours is None or theirs is None:
            return nominal
        operations = by_library.operations / theirs
        return replace(nominal, operations_per_second=operations, share=theirs / ours)

    def __iter__(self) -> Iterator[int]:
        return iter(self._nominal)

    def __len__(self) -> int:
        return len(self._nominal)


def measured_units(threads: int, lanes: int) -> Measured:
    """Of this process's processor, or of its job's."""
    return Measured(generic_cpu(threads, lanes).products, threads, lanes, measurements())
