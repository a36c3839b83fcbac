"""What differs between lanes of a vector and threads of a program, where a mapping is weighed: a
total table by how a machine executes lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hemstitch.ir.dims import Dim, evaluate
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import Loop, Nest, walk
from hemstitch.kernel_ir.placement import LINE
from hemstitch.machine.record import Execution, Machine
from hemstitch.stitching.group import Group
from hemstitch.stitching.loop_shapes import RootShape

STRIDED = 16  # most vector instructions of a strided access, one a lane; a contiguous one is 1
SHORTEST_LANES = 32
HORIZONTAL = 12.0  # vector instructions to combine the lanes of one accumulator


class LaneModel(Protocol):
    """`sums_in_memory`: the share of sums over rows that each row loads and stores."""

    sums_in_memory: float

    def lanes_across(
        self, group: Group, dominant: RootShape, scanned: Axis, machine: Machine
    ) -> list[Axis]:
        """Along which the lanes of a scan may lie, one scan each, beside its own axis."""

    def beside_lanes(
        self, group: Group, outer: Callable[[], Sequence[Axis]], shapes: Sequence[RootShape]
    ) -> list[Axis] | None:
        """Axes whose neighbours come from memory together with those of the lanes; None where rows
        that are next to each other share no vector. `outer`: axes around the lanes."""

    def horizontal(self, extent: int, machine: Machine) -> float:
        """Vector instructions to combine the lanes of a row."""

    def line_cost(self, step: Dim, extent: int, machine: Machine) -> float:
        """Vector instructions' time until lanes that lie in as many cache lines are there, beyond
        what it takes to load them."""

    def accumulator_cost(
        self, shape: RootShape, axis: Axis, shapes: Sequence[RootShape], machine: Machine
    ) -> float:
        """Vector instructions of an accumulator, beyond that of one whose lanes lie side by side.
        `axis`: the lanes."""

    def more_rows(
        self, outer: Sequence[Axis], shapes: Sequence[RootShape]
    ) -> list[tuple[Axis, ...]]:
        """Sets of axes that may be rows, beside those that any machine may have."""

    def block(self, size: int) -> int:
        """How many elements a block of about `size` has."""

    def rows_of_a_vector(self, nest: Nest, machine: Machine, sizes: Mapping[str, int]) -> int: ...


class VectorLanes:
    """Of a thread that walks over its rows one by one; sums over rows lie in memory."""

    sums_in_memory = 1.0

    def lanes_across(
        self, group: Group, dominant: RootShape, scanned: Axis, machine: Machine
    ) -> list[Axis]:
        """They lie side by side, and fill half a vector, as each step waits for the one before."""
        return [
            axis
            for axis in dominant.axes
            if axis is not scanned
            and all(address.coefficient(axis) in (0, 1, -1) for address in dominant.addresses)
            and 2 * group.hint(axis.extent) >= machine.lanes
        ]

    def beside_lanes(
        self, group: Group, outer: Callable[[], Sequence[Axis]], shapes: Sequence[RootShape]
    ) -> list[Axis] | None:
        return None

    def horizontal(self, extent: int, machine: Machine) -> float:
        return HORIZONTAL

    def line_cost(self, step: Dim, extent: int, machine: Machine) -> float:
        """Neighbours in these lines are other rows' lanes: where L2 does not hold them until then,
        each lane's line comes from behind it. Of lines that lie apart by a power of two it holds as
        much less: they share few of its sets."""
        if not isinstance(step, int) or abs(step) <= 1:
            return 0.0
        apart = 4 * abs(step)
        moved, lines = min(apart, LINE), apart // LINE
        sets = 1 if lines == 0 or apart % LINE else lines & -lines
        if extent * moved * sets <= machine.l2_bytes:
            return 0.0
        seconds = machine.lanes * moved / machine.cache_bytes_per_second
        return seconds * machine.operations_per_second

    def accumulator_cost(
        self, shape: RootShape, axis: Axis, shapes: Sequence[RootShape], machine: Machine
    ) -> float:
        """What is read where another row made it is added up in scratch, which lies as the result
        does."""
        if not shape.reduced or axis in shape.reduced:
            return 0.0
        kept = [a for a in shape.axes if a not in shape.reduced]
        readers = (s for s in shapes if shape.root.reduction in s.needs)
        if axis is kept[-1] or all(set(kept) - {axis} <= set(s.axes) for s in readers):
            return 0.0
        return 2 * (min(machine.lanes, STRIDED) - 1.0)

    def more_rows(
        self, outer: Sequence[Axis], shapes: Sequence[RootShape]
    ) -> list[tuple[Axis, ...]]:
        return []

    def block(self, size: int) -> int:
        return size

    def rows_of_a_vector(self, nest: Nest, machine: Machine, sizes: Mapping[str, int]) -> int:
        return 1


class ThreadLanes:
    """Of a program that holds a tile of rows by lanes; short rows share it, sums stay in it."""

    sums_in_memory = 0.0

    def lanes_across(
        self, group: Group, dominant: RootShape, scanned: Axis, machine: Machine
    ) -> list[Axis]:
        return []

    def beside_lanes(
        self, group: Group, outer: Callable[[], Sequence[Axis]], shapes: Sequence[RootShape]
    ) -> list[Axis] | None:
        """Rows share a tile where all of `outer` can be rows: what is next to each other in memory
        then is so in the tile. The innermost is a side of the tile if it is too short for lanes,
        and nothing needs it whole."""
        axes = outer()
        reduced = frozenset().union(*(shape.reduced for shape in shapes))
        if len(axes) > 1 and not reduced.isdisjoint(axes):
            return None
        return [
            axis
            for axis in axes[-1:]
            if group.hint(axis.extent) < SHORTEST_LANES and axis not in reduced
        ]

    def horizontal(self, extent: int, machine: Machine) -> float:
        """Several short rows of a tile are one vector."""
        return HORIZONTAL * min(1.0, extent / machine.lanes)

    def line_cost(self, step: Dim, extent: int, machine: Machine) -> float:
        return 0.0

    def accumulator_cost(
        self, shape: RootShape, axis: Axis, shapes: Sequence[RootShape], machine: Machine
    ) -> float:
        return 0.0

    def more_rows(
        self, outer: Sequence[Axis], shapes: Sequence[RootShape]
    ) -> list[tuple[Axis, ...]]:
        """Those that one reduction is whole in, and all but the innermost axes."""
        sums = [shape.reduced for shape in shapes if shape.reduced]
        whole = [tuple(axis for axis in outer if axis not in each) for each in sums]
        return whole + [tuple(outer[:count]) for count in range(2, len(outer) + 1)]

    def block(self, size: int) -> int:
        """Tiles have powers of two."""
        return 1 << (size - 1).bit_length()

    def rows_of_a_vector(self, nest: Nest, machine: Machine, sizes: Mapping[str, int]) -> int:
        """Where short ones share a tile."""
        loops = (s for s in walk(nest.body) if isinstance(s, Loop) and s.lanes)
        longest = max((evaluate(loop.axis.extent, sizes) for loop in loops), default=1)
        return max(1, machine.lanes // max(1, longest))


LANE_MODELS: Mapping[Execution, LaneModel] = {
    Execution.SIMD: VectorLanes(),
    Execution.SIMT: ThreadLanes(),
}


def model_of(machine: Machine) -> LaneModel:
    return LANE_MODELS[machine.execution]
