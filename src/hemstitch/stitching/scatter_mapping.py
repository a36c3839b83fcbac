"""What sums by index ask of the mapping, and the zeros that they begin with.

Their results lie in memory from the start, and whatever reads them is another kernel. A processor
gives each task some of the columns, for which it goes through all values in order: no two tasks
meet, and the sums are eager's. A GPU has too many tasks for that. Each has some of the values and
adds to memory in one step with what others add there, behind a phase that fills it with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from hemstitch.ir.dims import quotient
from hemstitch.ir.graph import Op
from hemstitch.ir.ops import identity
from hemstitch.kernel_ir.index import Axis, Index, Variable, at
from hemstitch.kernel_ir.nodes import Constant, Loop, Nest, Store
from hemstitch.machine.record import Execution, Machine
from hemstitch.stitching.axis_collapsing import Folding
from hemstitch.stitching.buffers import Buffers
from hemstitch.stitching.dimension_unification import Unification
from hemstitch.stitching.group import Group, Write, is_scatter_root
from hemstitch.stitching.loop_shapes import Mapping, RootShape, domain_of
from hemstitch.stitching.refusal import Refused

LINE = 16  # elements that tasks do not share: a cache line


def scatter_mappings(
    group: Group,
    shapes: Sequence[RootShape],
    unification: Unification,
    folding: Folding,
    machine: Machine,
) -> Iterator[tuple[Mapping, list[RootShape]]]:
    """Those that add up over the same loops share one."""
    scattering = [shape for shape in shapes if is_scatter_root(shape.root)]
    made = {shape.root.reduction for shape in scattering}
    if any(node in made for shape in shapes for node in shape.needs):
        raise Refused("scatter", "what is added up by index is read by another kernel")
    together: dict[tuple[frozenset[Axis], frozenset[Axis], Axis], list[RootShape]] = {}
    for shape in scattering:
        lane = _lane(shape, domain_of(shape.root, unification).indices[-1], folding)
        together.setdefault((frozenset(shape.axes), shape.reduced, lane), []).append(shape)
    for (_, _, lane), alike in together.items():
        found = [shape.root.reduction for shape in alike]
        places = (unification.domain[node].axes for node in found if node is not None)
        results = folding.axes(dict.fromkeys(axis for axes in places for axis in axes))
        yield _mapping(group, alike[0], results, lane, machine), alike


def _mapping(
    group: Group, shape: RootShape, results: Sequence[Axis], lane: Axis, machine: Machine
) -> Mapping:
    """`results`: the axes of what is made."""
    places = [axis for axis in results if axis not in shape.axes]
    inner = [axis for axis in shape.axes if axis is not lane]
    if machine.execution is Execution.SIMT:
        return Mapping(tuple(inner), (*places, lane), atomic=True)
    rows = [axis for axis in inner if axis not in shape.reduced]
    added = [axis for axis in inner if axis in shape.reduced]
    size = LINE * max(1, ceil(group.hint(lane.extent) / machine.threads / LINE))
    block = Axis(f"{lane.name}b", quotient(lane.extent + (size - 1), size))
    part = Axis(f"{lane.name}e", size, block, lane.extent)
    split: dict[Variable, Index] = {lane: at(block).scaled(size) + at(part)}
    return Mapping((*rows, block), (*places, *added, part), split)


def _lane(shape: RootShape, last: Index, folding: Folding) -> Axis:
    """Along which neighbours are added to neighbours. `last`: the last index of a value."""
    found = folding.axes(v for v, step in last.terms if step == 1 and isinstance(v, Axis))
    lane = next((axis for axis in found if axis not in shape.reduced), None)
    if lane is None:
        raise Refused("scatter", "no two values side by side go to places side by side")
    return lane


def filling_nest(buffers: Buffers, write: Write) -> Nest:
    """What a GPU fills with zeros."""
    buffer, zero = buffers.output(write.tensor), buffers.name("zero")
    *rows, lane = (Axis(buffers.name("k"), size) for size in write.value.shape)
    indices = tuple(map(at, (*rows, lane)))
    place = buffers.address(write.tensor, indices, write.strides, write.offset)
    value = Constant(zero, identity(Op.SUM, buffer.dtype), buffer.dtype)
    body = (Loop(lane, (value, Store(buffer, place, zero)), lanes=True),)
    why = "sums by index begin with zeros"
    return Nest(tuple(rows), (), body, (), lane.extent, why)
