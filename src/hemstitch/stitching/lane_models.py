"""The cost of mappings for SIMD lanes of a CPU and for threads of a GPU program; `LANE_MODELS` has
a model for each kind of execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hemstitch.ir.dims import Dim, evaluate
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import Loop, Nest, walk
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.machine.record import Execution, Machine
from hemstitch.stitching.group import Group
from hemstitch.stitching.loop_shapes import RootShape


class LaneModel(Protocol):
    """`sums_in_memory`: the fraction of sums over rows that are loaded and stored for each row."""

    sums_in_memory: float

    def lanes_across(
        self, group: Group, dominant: RootShape, scanned: Axis, machine: Machine
    ) -> list[Axis]:
        """Axes other than the scanned one that lanes may lie along, one scan per lane."""

    def beside_lanes(
        self, group: Group, outer: Callable[[], Sequence[Axis]], shapes: Sequence[RootShape]
    ) -> list[Axis] | None:
        """Axes whose neighbours are loaded together with those of the lanes; None where
        neighbouring rows share no vector. `outer`: the axes around the lanes."""

    def horizontal(self, extent: int, machine: Machine) -> float:
        """Vector instructions to combine the lanes of a row."""

    def line_cost(self, step: Dim, extent: int, machine: Machine) -> float:
        """Vector instructions' time to wait for lanes in as many cache lines, beyond the loads."""

    def accumulator_cost(
        self, shape: RootShape, axis: Axis, shapes: Sequence[RootShape], machine: Machine
    ) -> float:
        """Vector instructions of an accumulator, beyond those of one with contiguous lanes. `axis`:
        the lanes."""

    def more_rows(
        self, outer: Sequence[Axis], shapes: Sequence[RootShape]
    ) -> list[tuple[Axis, ...]]:
        """Further candidates for row axes, specific to this execution."""

    def block(self, size: int) -> int:
        """The size of a block of about `size` elements."""

    def rows_of_a_vector(self, nest: Nest, machine: Machine, sizes: Mapping[str, int]) -> int: ...


class VectorLanes:
    """SIMD: a thread processes its rows one by one; sums over rows are in memory."""

    sums_in_memory = 1.0

    def lanes_across(
        self, group: Group, dominant: RootShape, scanned: Axis, machine: Machine
    ) -> list[Axis]:
        """Axes that are contiguous and fill half a vector, since each step of a scan waits for the
        one before."""
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
        return machine.horizontal_reduction

    def line_cost(self, step: Dim, extent: int, machine: Machine) -> float:
        """Neighbours in these lines are lanes of other rows. Where L2 does not hold them until
        then, each lane's line comes from memory. Lines at a stride that is a power of two share few
        cache sets, so that L2 holds fewer of them."""
        if not isinstance(step, int) or abs(step) <= 1:
            return 0.0
        distance = 4 * abs(step)
        moved, lines = min(distance, CPU.line_bytes), distance // CPU.line_bytes
        sets = 1 if lines == 0 or distance % CPU.line_bytes else lines & -lines
        if extent * moved * sets <= machine.l2_bytes:
            return 0.0
        seconds = machine.lanes * moved / machine.cache_bytes_per_second
        return seconds * machine.operations_per_second

    def accumulator_cost(
        self, shape: RootShape, axis: Axis, shapes: Sequence[RootShape], machine: Machine
    ) -> float:
        """A sum that other rows read accumulates in scratch memory, in the layout of the result."""
        if not shape.reduced or axis in shape.reduced:
            return 0.0
        result_axes = [a for a in shape.axes if a not in shape.reduced]
        readers = (s for s in shapes if shape.root.reduction in s.needs)
        if axis is result_axes[-1] or all(
            set(result_axes) - {axis} <= set(s.axes) for s in readers
        ):
            return 0.0
        return 2 * (min(machine.lanes, machine.strided_access) - 1.0)

    def more_rows(
        self, outer: Sequence[Axis], shapes: Sequence[RootShape]
    ) -> list[tuple[Axis, ...]]:
        return []

    def block(self, size: int) -> int:
        return size

    def rows_of_a_vector(self, nest: Nest, machine: Machine, sizes: Mapping[str, int]) -> int:
        return 1


class ThreadLanes:
    """SIMT: a program holds a tile of rows by lanes; short rows share a tile, sums stay in it."""

    sums_in_memory = 0.0

    def lanes_across(
        self, group: Group, dominant: RootShape, scanned: Axis, machine: Machine
    ) -> list[Axis]:
        return []

    def beside_lanes(
        self, group: Group, outer: Callable[[], Sequence[Axis]], shapes: Sequence[RootShape]
    ) -> list[Axis] | None:
        """Rows share a tile where all of `outer` can be rows, so that neighbours in memory are
        neighbours in the tile. The innermost axis is a side of the tile if it is too short for
        lanes and not reduced."""
        axes = outer()
        reduced = frozenset().union(*(shape.reduced for shape in shapes))
        if len(axes) > 1 and not reduced.isdisjoint(axes):
            return None
        return [
            axis
            for axis in axes[-1:]
            if group.hint(axis.extent) < GPU.short_lanes and axis not in reduced
        ]

    def horizontal(self, extent: int, machine: Machine) -> float:
        """Several short rows of a tile are one vector."""
        return machine.horizontal_reduction * min(1.0, extent / machine.lanes)

    def line_cost(self, step: Dim, extent: int, machine: Machine) -> float:
        return 0.0

    def accumulator_cost(
        self, shape: RootShape, axis: Axis, shapes: Sequence[RootShape], machine: Machine
    ) -> float:
        return 0.0

    def more_rows(
        self, outer: Sequence[Axis], shapes: Sequence[RootShape]
    ) -> list[tuple[Axis, ...]]:
        """The axes outside each reduction, and all prefixes of `outer`."""
        sums = [shape.reduced for shape in shapes if shape.reduced]
        whole = [tuple(axis for axis in outer if axis not in axes) for axes in sums]
        return whole + [tuple(outer[:count]) for count in range(2, len(outer) + 1)]

    def block(self, size: int) -> int:
        """Tile sizes are powers of two."""
        return 1 << (size - 1).bit_length()

    def rows_of_a_vector(self, nest: Nest, machine: Machine, sizes: Mapping[str, int]) -> int:
        """Several where short rows share a tile."""
        loops = (s for s in walk(nest.body) if isinstance(s, Loop) and s.lanes)
        longest = max((evaluate(loop.axis.extent, sizes) for loop in loops), default=1)
        return max(1, machine.lanes // max(1, longest))


LANE_MODELS: Mapping[Execution, LaneModel] = {
    Execution.SIMD: VectorLanes(),
    Execution.SIMT: ThreadLanes(),
}


def model_of(machine: Machine) -> LaneModel:
    return LANE_MODELS[machine.execution]
