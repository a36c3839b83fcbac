"""Mapping of scatter-adds, and the zeros that they start from.

Their results are in memory from the start; another kernel reads them. On a CPU each task has some
of the columns and processes all values in order: tasks never add to the same element, and the sums
equal eager PyTorch's. A GPU has too many tasks for that. There each task has some of the values and
adds them atomically, after a phase that clears the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from hemstitch.ir.dims import quotient
from hemstitch.ir.graph import Op
from hemstitch.ir.ops import identity
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index, Variable, at
from hemstitch.kernel_ir.nodes import Constant, Loop, Nest, Store
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.record import Execution, Machine
from hemstitch.stitching.axis_collapsing import CollapsedAxes
from hemstitch.stitching.buffers import Buffers
from hemstitch.stitching.dimension_unification import Unification
from hemstitch.stitching.group import Group, Write, is_scatter_root
from hemstitch.stitching.loop_shapes import Mapping, RootShape, domain_of
from hemstitch.stitching.refusal import Refused

LINE_ELEMENTS = CPU.line_bytes // DType.F32.bytes  # tasks share no cache line


def scatter_mappings(
    group: Group,
    shapes: Sequence[RootShape],
    unification: Unification,
    collapsed: CollapsedAxes,
    machine: Machine,
) -> Iterator[tuple[Mapping, list[RootShape]]]:
    """Mappings with their roots. Scatter-adds with the same loops share one."""
    scattering = [shape for shape in shapes if is_scatter_root(shape.root)]
    scattered = {shape.root.reduction for shape in scattering}
    if any(node in scattered for shape in shapes for node in shape.needs):
        raise Refused("scatter", "what is added up by index is read by another kernel")
    by_loops: dict[tuple[frozenset[Axis], frozenset[Axis], Axis], list[RootShape]] = {}
    for shape in scattering:
        lane = _lane(shape, domain_of(shape.root, unification).indices[-1], collapsed)
        by_loops.setdefault((frozenset(shape.axes), shape.reduced, lane), []).append(shape)
    for (_, _, lane), alike in by_loops.items():
        reductions = [shape.root.reduction for shape in alike]
        result_domains = (unification.domain[node].axes for node in reductions if node is not None)
        results = collapsed.axes(dict.fromkeys(axis for axes in result_domains for axis in axes))
        yield _mapping(group, alike[0], results, lane, machine), alike


def _mapping(
    group: Group, shape: RootShape, results: Sequence[Axis], lane: Axis, machine: Machine
) -> Mapping:
    """`results`: the axes of the result."""
    own_axes = [axis for axis in results if axis not in shape.axes]
    inner = [axis for axis in shape.axes if axis is not lane]
    if machine.execution is Execution.SIMT:
        return Mapping(tuple(inner), (*own_axes, lane), atomic=True)
    rows = [axis for axis in inner if axis not in shape.reduced]
    summed = [axis for axis in inner if axis in shape.reduced]
    size = LINE_ELEMENTS * max(1, ceil(group.hint(lane.extent) / machine.threads / LINE_ELEMENTS))
    block = Axis(f"{lane.name}b", quotient(lane.extent + (size - 1), size))
    part = Axis(f"{lane.name}e", size, block, lane.extent)
    split: dict[Variable, Index] = {lane: at(block).scaled(size) + at(part)}
    return Mapping((*rows, block), (*own_axes, *summed, part), split)


def _lane(shape: RootShape, last: Index, collapsed: CollapsedAxes) -> Axis:
    """The axis along which contiguous values go to contiguous elements. `last`: the last index of a
    value."""
    axes = collapsed.axes(v for v, step in last.terms if step == 1 and isinstance(v, Axis))
    lane = next((axis for axis in axes if axis not in shape.reduced), None)
    if lane is None:
        raise Refused("scatter", "no axis of the values is contiguous in the result")
    return lane


def filling_nest(buffers: Buffers, write: Write) -> Nest:
    """A nest that clears the result of a scatter-add on a GPU."""
    buffer, zero = buffers.output(write.tensor), buffers.name("zero")
    *rows, lane = (Axis(buffers.name("k"), size) for size in write.value.shape)
    indices = tuple(map(at, (*rows, lane)))
    place = buffers.address(write.tensor, indices, write.strides, write.offset)
    value = Constant(zero, identity(Op.SUM, buffer.dtype), buffer.dtype)
    body = (Loop(lane, (value, Store(buffer, place, zero)), lanes=True),)
    why = "sums by index begin with zeros"
    return Nest(tuple(rows), (), body, (), lane.extent, why)
