"""How long a processor multiplies matrices, by the library and in kernels: from seconds of a few
products, those of any other. Takes probes and their seconds, gives rates.

A product takes some time for each element of its right operand, whatever the number of rows, and
some more for each row. Both depend on where the operand comes from: the cache of a core, one that
cores share, or memory. So they are measured for an operand of either kind, and change with the
logarithm of its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log

from hemstitch.ir.types import DType
from hemstitch.machine.probes import Probe, RateProbe, Way

SMALL = (512, 512)  # steps, columns of a right operand in L2: 1 MB in f32
LARGE = (
    1536,
    1024,
)  # beyond L2, and so large that few rows are turned (`matmul/inlining.py`)
FEWEST = (4, 16)  # rows, which are multiplied by vectors of steps
FEW, TURNED = 32, 128  # rows that an operand is packed for; that are columns
LEAST_MANY, MOST_MANY = 256, 1024  # rows
# Times as long as kernels for few and for many rows: a library that takes that long for a small
# operand is never the faster one, and would take long to be measured with a large one.
SETTLED = 2.5


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds for each element of an operand: `operand` once, `row` for each row of the other."""

    operand: float
    row: float

    @staticmethod
    def of(elements: int, few: tuple[int, float], many: tuple[int, float]) -> Pace:
        """From two numbers of rows with their seconds."""
        row = max(0.0, many[1] - few[1]) / (many[0] - few[0]) / elements
        return Pace(max(0.0, few[1] / elements - few[0] * row), row)

    def times_as_fast(self, times: float) -> Pace:
        return Pace(self.operand / times, self.row / times)


@dataclass(frozen=True, slots=True)
class Paces:
    """Of right operands as large as SMALL and LARGE."""

    small: Pace
    large: Pace

    def times_as_fast(self, times: float) -> Paces:
        return Paces(self.small.times_as_fast(times), self.large.times_as_fast(times))

    def at(self, elements: int) -> Pace:
        """No smaller operand than SMALL is nearer, and none beyond LARGE comes faster."""
        small, large = SMALL[0] * SMALL[1], LARGE[0] * LARGE[1]
        place = max(0.0, log(max(1, elements) / small) / log(large / small))
        return Pace(
            _between(self.small.operand, self.large.operand, place),
            _between(self.small.row, self.large.row, place),
        )


def _between(small: float, large: float, place: float) -> float:
    """`place`: 0 at the first, 1 at the second."""
    return large if place > 1 and large < small else small + (large - small) * place


@dataclass(frozen=True, slots=True)
class Rates:
    """`call`: of the library, in seconds, however little there is to multiply; `few_by_library`:
    its paces of up to TURNED rows. `packed`: of kernels that pack their right operand. `turned`:
    seconds for each multiplication in one whose left operand is a layer's weights, read as they
    lie. `few`: its pace with so few columns that vectors are of steps."""

    call: float
    library: Paces
    few_by_library: Paces
    packed: Paces
    turned: float
    few: Pace

    @staticmethod
    def alike(call: float, library: Pace, kernel: Pace) -> Rates:
        """Whatever the shape. Where weights are read as they lie nothing is packed."""
        by_library, turned = Paces(library, library), Pace(0.0, kernel.row)
        paces = (by_library, by_library, Paces(kernel, kernel))
        return Rates(call, *paces, turned=turned.row, few=turned)

    def times_as_fast(self, times: float) -> Rates:
        """But for the time that a call takes."""
        return Rates(
            self.call,
            self.library.times_as_fast(times),
            self.few_by_library.times_as_fast(times),
            self.packed.times_as_fast(times),
            self.turned / times,
            self.few.times_as_fast(times),
        )

    def by_library(self, matrices: int, elements: int, rows: float) -> float:
        """Seconds, but for those of a call, of so many right operands, each of so many elements."""
        paces = self.few_by_library if rows <= TURNED else self.library
        pace = paces.at(elements)
        return matrices * elements * (pace.operand + rows * pace.row)


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of products of one type, in so many threads."""

    dtype: DType
    threads: int
    lanes: int
    seconds: Mapping[Probe, float]

    @property
    def many(self) -> int:
        """Rows: as many for each thread."""
        return min(MOST_MANY, max(LEAST_MANY, 128 * self.threads))

    @property
    def rates(self) -> Rates:
        """Raises KeyError where one of them is not known."""
        call = self.seconds[self._nothing]
        library, packed = self._line("library", call), self._line("kernel", 0.0)
        if self._is_settled():
            return Rates.alike(call, library, packed)
        elements, many = LARGE[0] * LARGE[1], self.many
        fewest, some, most = (
            (n, self._of("library", n, *LARGE) - call) for n in (FEWEST[1], TURNED, many)
        )
        row = self._of("kernel", many, *LARGE) / elements - packed.operand
        turned = self._of("turned", TURNED, *LARGE) / elements / TURNED
        few = Pace.of(elements, *((n, self._of("turned", n, *LARGE)) for n in FEWEST))
        large = replace(packed, row=max(0.0, row) / many)
        return Rates(
            call,
            Paces(library, Pace.of(elements, fewest, most)),
            Paces(library, Pace.of(elements, fewest, some)),
            Paces(packed, large),
            *(turned, few),
        )

    def at_once(self, way: Way) -> float:
        """Multiplications and additions in a second, of many rows with a small operand."""
        return 2 * self.many * SMALL[0] * SMALL[1] / self._of(way, self.many, *SMALL)

    def _line(self, way: Way, call: float) -> Pace:
        few, many = ((n, self._of(way, n, *SMALL) - call) for n in (FEW, self.many))
        return Pace.of(SMALL[0] * SMALL[1], few, many)

    def _is_settled(self) -> bool:
        return all(
            self._of("library", rows, *SMALL) > SETTLED * self._of("kernel", rows, *SMALL)
            for rows in (FEW, self.many)
        )

    def _of(self, way: Way, rows: int, steps: int, columns: int) -> float:
        return self.seconds[self._probe(way, rows, steps, columns)]

    @property
    def _nothing(self) -> RateProbe:
        """Takes a call, and hardly more."""
        return self._probe("library", 16, 16, 16)

    def _probe(self, way: Way, rows: int, steps: int, columns: int) -> RateProbe:
        return RateProbe(way, self.dtype, rows, steps, columns, self.threads, self.lanes)

    @property
    def probes(self) -> tuple[list[RateProbe], list[RateProbe]]:
        """With operands of either size. Those of a list are measured by turns."""
        small: list[tuple[Way, int]] = [("library", FEW), ("kernel", FEW)]
        small += [("library", self.many), ("kernel", self.many)]
        large: list[tuple[Way, int]] = [("turned", rows) for rows in (*FEWEST, TURNED)]
        large += [("library", rows) for rows in (FEWEST[1], TURNED, self.many)]
        large.append(("kernel", self.many))
        near = [self._nothing, *(self._probe(*each, *SMALL) for each in small)]
        return near, [self._probe(*each, *LARGE) for each in large]

    def beside(self, probe: RateProbe) -> list[RateProbe]:
        """Those that are measured with it."""
        near, far = self.probes
        return near if probe in near else far
