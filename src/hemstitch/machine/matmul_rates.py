"""A cost model of matmuls on CPUs, for the library and for kernels: from the seconds of a few
matmuls, those of any other.

A matmul takes some time per element of its right operand, and some more per element and row of the
left one. Both depend on where the right operand comes from: L2, a shared cache, or memory. So they
are measured for a small and a large operand, and interpolated in the logarithm of the size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log

from hemstitch.ir.types import DType
from hemstitch.machine.probes import MatmulPath, Probe, RateProbe

# Sizes of probes:
SMALL = (512, 512)  # [K, N] of a right operand in L2: 1 MB in f32
# [K, N] beyond L2: matmuls of few rows are transposed (`matmul/inlining.py`).
LARGE = (1536, 1024)
SKINNY_ROWS = (4, 16)  # of a matmul that is transposed and vectorised along K
FEW_ROWS = 32  # for which a kernel packs its right operand
TRANSPOSED_ROWS = 128  # of a matmul that is transposed: as `CPU.transposed_rows`
MIN_MANY_ROWS, MAX_MANY_ROWS = 256, 1024
# If the library takes so many times as long as kernels for a small operand, for few and for many
# rows, it is never the faster one. Then no large operand is measured.
SLOW_LIBRARY = 2.5


@dataclass(frozen=True, slots=True)
class MatmulCost:
    """Seconds of a matmul per element of its right operand: `operand`, plus `row` per row of the
    left one."""

    operand: float
    row: float

    @staticmethod
    def fitted(elements: int, few: tuple[int, float], many: tuple[int, float]) -> MatmulCost:
        """The cost that explains two measurements, each of so many rows in so many seconds."""
        row = max(0.0, many[1] - few[1]) / (many[0] - few[0]) / elements
        return MatmulCost(max(0.0, few[1] / elements - few[0] * row), row)

    def times_as_fast(self, times: float) -> MatmulCost:
        return MatmulCost(self.operand / times, self.row / times)


@dataclass(frozen=True, slots=True)
class MatmulCosts:
    """`small`, `large`: for right operands of the sizes SMALL and LARGE."""

    small: MatmulCost
    large: MatmulCost

    def times_as_fast(self, times: float) -> MatmulCosts:
        return MatmulCosts(self.small.times_as_fast(times), self.large.times_as_fast(times))

    def at(self, elements: int) -> MatmulCost:
        """The cost for a right operand of so many elements; constant below SMALL, and never less
        beyond LARGE."""
        small, large = SMALL[0] * SMALL[1], LARGE[0] * LARGE[1]
        position = max(0.0, log(max(1, elements) / small) / log(large / small))
        return MatmulCost(
            _between(self.small.operand, self.large.operand, position),
            _between(self.small.row, self.large.row, position),
        )


def _between(small: float, large: float, position: float) -> float:
    """Linear interpolation: `position` 0 at `small`, 1 at `large`; extrapolated beyond that unless
    it falls."""
    return large if position > 1 and large < small else small + (large - small) * position


@dataclass(frozen=True, slots=True)
class Rates:
    """`call`: seconds of a library call without work. `library`: its costs; `library_few_rows`: of
    up to TRANSPOSED_ROWS rows. `packed`: of kernels that pack their right operand. `transposed`:
    seconds per multiplication of a transposed matmul, whose left operand is a layer's weights, read
    in place. `skinny`: its cost where columns are so few that it is vectorised along K."""

    call: float
    library: MatmulCosts
    library_few_rows: MatmulCosts
    packed: MatmulCosts
    transposed: float
    skinny: MatmulCost

    @staticmethod
    def uniform(call: float, library: MatmulCost, kernel: MatmulCost) -> Rates:
        """Rates that do not depend on the shape. A transposed matmul packs nothing."""
        library_costs, transposed = MatmulCosts(library, library), MatmulCost(0.0, kernel.row)
        costs = (library_costs, library_costs, MatmulCosts(kernel, kernel))
        return Rates(call, *costs, transposed=transposed.row, skinny=transposed)

    def times_as_fast(self, times: float) -> Rates:
        """Scales all rates but the call overhead."""
        return Rates(
            self.call,
            self.library.times_as_fast(times),
            self.library_few_rows.times_as_fast(times),
            self.packed.times_as_fast(times),
            self.transposed / times,
            self.skinny.times_as_fast(times),
        )

    def library_seconds(self, matrices: int, elements: int, rows: float) -> float:
        """Seconds of a library matmul without the call overhead: so many right operands of so many
        elements each."""
        costs = self.library_few_rows if rows <= TRANSPOSED_ROWS else self.library
        cost = costs.at(elements)
        return matrices * elements * (cost.operand + rows * cost.row)


@dataclass(frozen=True, slots=True)
class MatmulTimings:
    """Seconds of matmuls of one element type with so many threads, by probe."""

    dtype: DType
    threads: int
    lanes: int
    seconds: Mapping[Probe, float]

    @property
    def many_rows(self) -> int:
        """Rows of a large matmul: in proportion to the threads."""
        return min(MAX_MANY_ROWS, max(MIN_MANY_ROWS, 128 * self.threads))

    @property
    def rates(self) -> Rates:
        """Raises KeyError where a probe is not measured."""
        call = self.seconds[self._empty_call]
        library, packed = self._small_cost("library", call), self._small_cost("kernel", 0.0)
        if self._is_library_slow():
            return Rates.uniform(call, library, packed)
        elements, many_rows = LARGE[0] * LARGE[1], self.many_rows
        with_few, with_some, with_many = (
            (n, self._seconds_of("library", n, *LARGE) - call)
            for n in (SKINNY_ROWS[1], TRANSPOSED_ROWS, many_rows)
        )
        row_seconds = self._seconds_of("kernel", many_rows, *LARGE) / elements - packed.operand
        transposed = (
            self._seconds_of("transposed", TRANSPOSED_ROWS, *LARGE) / elements / TRANSPOSED_ROWS
        )
        skinny = MatmulCost.fitted(
            elements, *((n, self._seconds_of("transposed", n, *LARGE)) for n in SKINNY_ROWS)
        )
        large = replace(packed, row=max(0.0, row_seconds) / many_rows)
        return Rates(
            call,
            MatmulCosts(library, MatmulCost.fitted(elements, with_few, with_many)),
            MatmulCosts(library, MatmulCost.fitted(elements, with_few, with_some)),
            MatmulCosts(packed, large),
            *(transposed, skinny),
        )

    def operations_per_second(self, path: MatmulPath) -> float:
        """Multiplications and additions per second, of many rows with a small right operand."""
        operations = 2 * self.many_rows * SMALL[0] * SMALL[1]
        return operations / self._seconds_of(path, self.many_rows, *SMALL)

    def _small_cost(self, path: MatmulPath, call: float) -> MatmulCost:
        few_rows, many_rows = (
            (n, self._seconds_of(path, n, *SMALL) - call) for n in (FEW_ROWS, self.many_rows)
        )
        return MatmulCost.fitted(SMALL[0] * SMALL[1], few_rows, many_rows)

    def _is_library_slow(self) -> bool:
        return all(
            self._seconds_of("library", rows, *SMALL)
            > SLOW_LIBRARY * self._seconds_of("kernel", rows, *SMALL)
            for rows in (FEW_ROWS, self.many_rows)
        )

    def _seconds_of(self, path: MatmulPath, rows: int, steps: int, columns: int) -> float:
        return self.seconds[self._probe(path, rows, steps, columns)]

    @property
    def _empty_call(self) -> RateProbe:
        """A call with hardly any work."""
        return self._probe("library", 16, 16, 16)

    def _probe(self, path: MatmulPath, rows: int, steps: int, columns: int) -> RateProbe:
        return RateProbe(path, self.dtype, rows, steps, columns, self.threads, self.lanes)

    @property
    def probes(self) -> tuple[list[RateProbe], list[RateProbe]]:
        """The probes with small and with large right operands. Those of one list are measured in
        turns."""
        small: list[tuple[MatmulPath, int]] = [("library", FEW_ROWS), ("kernel", FEW_ROWS)]
        small += [("library", self.many_rows), ("kernel", self.many_rows)]
        large: list[tuple[MatmulPath, int]] = [
            ("transposed", rows) for rows in (*SKINNY_ROWS, TRANSPOSED_ROWS)
        ]
        large += [("library", rows) for rows in (SKINNY_ROWS[1], TRANSPOSED_ROWS, self.many_rows)]
        large.append(("kernel", self.many_rows))
        small_probes = [self._empty_call, *(self._probe(*variant, *SMALL) for variant in small)]
        return small_probes, [self._probe(*variant, *LARGE) for variant in large]

    def measured_with(self, probe: RateProbe) -> list[RateProbe]:
        """The list that `probe` belongs to."""
        small, large = self.probes
        return small if probe in small else large
