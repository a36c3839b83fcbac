"""Thread mapping: which axes are rows that are distributed over tasks, which axis runs over lanes,
and the order of the others.

AStitch's adaptive mapping (section 4.2), for CPUs and GPUs: many rows are distributed whole. Where
rows are few and long, the lane axis is split into blocks, and reductions across blocks go through
partial results. Very short rows run lanes across rows. A cost formula ranks the candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, prod

from hemstitch.ir.dims import Dim, quotient
from hemstitch.ir.graph import Node
from hemstitch.kernel_ir.index import Axis, Computed, Index, Variable, at
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.record import Execution, Machine
from hemstitch.stitching.group import Group, has_few_terms, is_gemv_sum, is_scatter_root
from hemstitch.stitching.lane_models import model_of
from hemstitch.stitching.loop_shapes import Mapping, RootShape
from hemstitch.stitching.matmul_mapping import MatmulLoops, map_matmuls
from hemstitch.stitching.partial_results import seconds as combining_seconds
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.scan_mapping import fits_mapping, is_scan_root, scanned_axis

BLOCKS_PER_THREAD = 4  # for load balance, of any machine


def choose_mappings(
    group: Group, shapes: Sequence[RootShape], matmuls: Sequence[MatmulLoops], machine: Machine
) -> Iterator[tuple[Mapping, list[RootShape]]]:
    """Mappings, each with the roots that follow it (AStitch's dominants): those for matmuls first,
    then by the largest root."""
    unmapped = [shape for shape in shapes if not is_scatter_root(shape.root)]
    while unmapped:
        needed = {node for shape in unmapped for node in shape.matmuls}
        pending = [matmul for matmul in matmuls if matmul.node in needed]
        if pending and any(is_scan_root(shape.root) for shape in unmapped):
            raise Refused("scan", "a matmul is in the same kernel")
        if pending:
            mapping = map_matmuls(pending, unmapped, group.k_along_lanes, machine)
        else:
            # Among roots of 0 or 1 elements, one with axes, which its followers need.
            dominant = max(unmapped, key=lambda shape: (max(1, shape.volume), len(shape.axes)))
            mapping = _choose_one(group, dominant, unmapped, machine)
        followers = [shape for shape in unmapped if fits_mapping(shape, mapping, machine)]
        if pending and machine.execution is Execution.SIMD:
            followers = [s for s in followers if not _reduces_strided(s, mapping, followers)]
        if pending and not any(shape.matmuls for shape in followers):
            raise Refused("matmul", "no root follows its rows")
        assert followers, "a mapping is made for one of them at least"
        yield mapping, followers
        unmapped = [shape for shape in unmapped if shape not in followers]


def _reduces_strided(shape: RootShape, mapping: Mapping, shapes: Sequence[RootShape]) -> bool:
    """Whether the root reduces strided elements lane by lane, which are contiguous across rows:
    columns of a left operand. It gets a mapping of its own, where only a write waits for it."""
    inner = mapping.inner(mapping.after_split(shape.axes))
    if not shape.reduced or shape.matmuls or not inner or inner[-1] not in shape.reduced:
        return False
    if any(shape.root.reduction in s.needs and (s.reduced or s.matmuls) for s in shapes):
        return False
    steps = [(a.coefficient(inner[-1]), a.coefficient(mapping.rows[-1])) for a in shape.addresses]
    own = [(lane, row) for lane, row in steps if lane != 0 and row != 0]  # distinct for each
    return bool(own) and all(lane != 1 and row == 1 for lane, row in own)


def _choose_one(
    group: Group, dominant: RootShape, shapes: Sequence[RootShape], machine: Machine
) -> Mapping:
    if not dominant.axes:
        return Mapping((), ())
    scanned = scanned_axis(dominant, shapes)
    lane = min(
        dominant.axes
        if scanned is None
        else [scanned, *model_of(machine).lanes_across(group, dominant, scanned, machine)],
        key=lambda axis: _lane_cost(group, dominant, axis, shapes, machine),
    )
    order = _memory_order(group, dominant, shapes, lane)
    if scanned is not None and scanned is not lane:
        order = [*(axis for axis in order if axis not in (scanned, lane)), scanned, lane]
    candidates = list(_candidates(group, dominant, order, shapes, machine))
    if not machine.has_grid_barrier:
        candidates = [mapping for mapping in candidates if _is_whole(mapping, shapes)]
        has_rows = any(mapping.rows for mapping in candidates) or dominant.reduced >= set(
            dominant.axes
        )
        if not has_rows and len(group.members) > 1:
            raise Refused(
                "global", "a single task would compute all rows, as `global_stitching` is off"
            )
    if scanned is not None:
        candidates = [mapping for mapping in candidates if scanned in mapping.order]
    if scanned is not None and scanned is not lane:
        in_cache = [m for m in candidates if _keeps_columns(group, m, machine)]
        candidates = in_cache or candidates
    return min(candidates, key=lambda mapping: _seconds(group, mapping, shapes, machine))


def _keeps_columns(group: Group, mapping: Mapping, machine: Machine) -> bool:
    """Whether the running results of a scan's lanes stay in L1, in f64."""
    return 8 * group.hint(mapping.order[-1].extent) <= machine.l1_bytes


def _lane_cost(
    group: Group, dominant: RootShape, axis: Axis, shapes: Sequence[RootShape], machine: Machine
) -> float:
    """Vector instructions if `axis` runs over lanes, summed over the roots that contain it."""
    extent = max(1, group.hint(axis.extent))
    steps = ceil(extent / machine.lanes) / extent  # per element; short axes waste lanes
    model = model_of(machine)
    outer = partial(_outer, group, dominant, shapes, axis)
    beside = model.beside_lanes(group, outer, shapes)
    if beside is not None:
        steps = min(steps, 1 / machine.lanes)
    sides = [axis, *(beside or ())]
    total = 0.0
    for shape in shapes:
        if axis not in shape.axes:
            total += shape.volume * (shape.flops + len(shape.addresses)) / machine.lanes
            continue
        memory = sum(
            _access_cost(shape, address, sides, machine, is_store=address is shape.stored)
            + model.line_cost(address.coefficient(axis), extent, machine)
            for address in shape.addresses
        )
        memory += model.accumulator_cost(shape, axis, shapes, machine)
        total += shape.volume * steps * (shape.flops + memory)
        if axis in shape.reduced:
            total += shape.volume * model.horizontal(extent, machine) / extent
    return total


def _outer(
    group: Group, dominant: RootShape, shapes: Sequence[RootShape], lane: Axis
) -> list[Axis]:
    """The dominant's axes around the lanes."""
    order = _memory_order(group, dominant, shapes, lane)
    return [axis for axis in order[:-1] if axis in dominant.axes]


def _access_cost(
    shape: RootShape, address: Index, sides: Sequence[Axis], machine: Machine, *, is_store: bool
) -> float:
    """Vector instructions of an access. `sides`: the axes of a tile, the lanes first; contiguous
    elements along one of them are loaded together."""
    step, *other_steps = (address.coefficient(side) for side in sides)
    computed = (v for v, _ in address.terms if isinstance(v, Computed))
    scalarised = float(min(machine.lanes, machine.strided_access))
    if any(sides[0] in shape.computed.get(variable, ()) for variable in computed):
        return scalarised * machine.gathered_share
    if step in (0, 1):
        return 1.0 if step else machine.uniform_access
    if step == -1 and not is_store:
        return machine.reversed_access
    near = [float(step) for step in other_steps if step in CPU.vector_strides]
    return min([*near, scalarised])


def _memory_order(
    group: Group, dominant: RootShape, shapes: Sequence[RootShape], lane: Axis
) -> list[Axis]:
    """All axes, by decreasing stride, the lane axis last."""
    strides: dict[Axis, int] = dict.fromkeys(dominant.axes, 0)
    for shape in shapes:
        for axis in shape.axes:
            steps = [abs(group.hint(address.coefficient(axis))) for address in shape.addresses]
            strides[axis] = max([strides.get(axis, 0), *steps])
    inner = [axis for axis in strides if axis is not lane]
    return [*sorted(inner, key=lambda axis: -strides[axis]), lane]


def _candidates(
    group: Group,
    dominant: RootShape,
    order: Sequence[Axis],
    shapes: Sequence[RootShape],
    machine: Machine,
) -> Iterator[Mapping]:
    """Candidate mappings: whole rows; one outer axis, even if it is reduced; rows and blocks of the
    lane axis; blocks. On SIMT also the axes outside each reduction, and prefixes of the outer axes.
    Of equals the first is taken: it has the longest strides."""
    lane = order[-1]
    reduced = frozenset().union(*(shape.reduced for shape in shapes))
    outer = [axis for axis in order[:-1] if axis in dominant.axes]
    sets = [tuple(axis for axis in outer if axis not in reduced), *((axis,) for axis in outer)]
    sets += model_of(machine).more_rows(outer, shapes)
    block, inner, split = _split_lanes(group, lane, machine)
    options = dict.fromkeys([*sets, ()])
    for rows in options:
        yield Mapping(rows, tuple(axis for axis in order if axis not in rows))
    if group.hint(block.extent) > 1:
        for rows in options:
            rest = tuple(axis for axis in order[:-1] if axis not in rows)
            yield Mapping((*rows, block), (*rest, inner), split)


def _is_whole(mapping: Mapping, shapes: Sequence[RootShape]) -> bool:
    """Whether no root that follows the mapping produces partial results."""
    rows = set(mapping.rows)
    followers = (shape for shape in shapes if rows <= set(mapping.after_split(shape.axes)))
    return not any(rows & set(mapping.after_split(shape.reduced)) for shape in followers)


def _split_lanes(
    group: Group, lane: Axis, machine: Machine
) -> tuple[Axis, Axis, dict[Variable, Index]]:
    """The lane axis split into blocks, so that every thread has several; the last one may be
    shorter."""
    wanted = ceil(group.hint(lane.extent) / (machine.threads * BLOCKS_PER_THREAD))
    size = min(
        machine.most_block, max(machine.least_block, -(-wanted // CPU.line_bytes) * CPU.line_bytes)
    )
    size = model_of(machine).block(size)
    blocks: Dim = quotient(lane.extent + (size - 1), size)
    block = Axis(f"{lane.name}b", blocks)
    inner = Axis(f"{lane.name}e", size, block, lane.extent)
    return block, inner, {lane: at(block).scaled(size) + at(inner)}


@dataclass(slots=True)
class _CostWalk:
    """The cost of roots that share one pass over the rows, since they wait for the same results."""

    flops: float = 0.0  # vector instructions of arithmetic; shared ones count once
    memory: float = 0.0  # of loads and stores
    reductions: float = 0.0  # of accumulators, beyond the arithmetic


def _seconds(
    group: Group, mapping: Mapping, shapes: Sequence[RootShape], machine: Machine
) -> float:
    """Estimated time of all roots under one mapping.

    Roots run in passes: behind each barrier everything is read and computed again; later in a row
    only what is not retained. Roots that cannot follow the mapping get a nest of their own.
    """
    rows = set(mapping.rows)
    count = max(1, prod(group.hint(axis.extent) for axis in mapping.rows))
    threads = min(machine.threads, count)
    walks: dict[tuple[int, bool], _CostWalk] = {}
    phase: dict[Node, int] = {}
    partial: set[Node] = set()
    total = 0.0
    for shape in shapes:
        axes = mapping.after_split(shape.axes)
        reduced = frozenset(mapping.after_split(shape.reduced))
        first = max((phase[n] + (n in partial) for n in shape.needs if n in phase), default=0)
        waits = any(phase.get(n) == first and n not in partial for n in shape.needs)
        if shape.root.reduction is not None:
            phase[shape.root.reduction] = first
            if reduced & rows or not rows <= set(axes):
                partial.add(shape.root.reduction)
                result_elements = prod(group.hint(a.extent) for a in axes if a not in reduced)
                followers = (s for s in shapes if rows <= set(mapping.after_split(s.axes)))
                for_all = any(shape.root.reduction in s.needs for s in followers)
                total += combining_seconds(result_elements, count, machine, for_all=for_all)
        walk = walks.setdefault((first, waits), _CostWalk())
        walk.flops = max(walk.flops, shape.volume * shape.flops / machine.lanes)
        walk.memory += shape.volume * len(shape.addresses) / machine.lanes
        if shape.reduced:
            walk.reductions += _reduction_work(group, mapping, shape, machine)
    imbalance = -(-count // threads) * threads / count
    for (first, waits), walk in walks.items():
        access, arithmetic = (1.0, machine.recomputed_share) if waits else (machine.access, 1.0)
        work = walk.memory * access + walk.flops * arithmetic + walk.reductions
        total += work * imbalance / threads / machine.operations_per_second
        if waits or first:
            total += _reload_seconds(walk, count if waits else 1, threads, machine)
    barriers = max((first for first, _ in walks), default=0)
    decode = (
        count * len(mapping.rows[1:]) * machine.row_decode / threads / machine.operations_per_second
    )
    return total + barriers * machine.barrier_seconds + decode


def _reload_seconds(walk: _CostWalk, rows: int, threads: int, machine: Machine) -> float:
    """The reads of a pass that is not the first: free from L1, else from the level that holds the
    row; behind a barrier from the level that holds everything."""
    sums = model_of(machine).sums_in_memory * walk.reductions
    moved = 4.0 * (walk.memory + sums) * machine.lanes
    row_bytes = moved / rows
    if row_bytes <= machine.l1_bytes:
        return 0.0
    if row_bytes <= machine.l2_bytes:
        return moved / machine.cache_bytes_per_second / threads
    if machine.access > 1.0:  # it covers a task's share of the memory bandwidth
        return walk.memory * machine.access / threads / machine.operations_per_second
    return moved / machine.memory_bytes_per_second


def _reduction_work(group: Group, mapping: Mapping, shape: RootShape, machine: Machine) -> float:
    """Vector instructions of an accumulator: horizontal sums of lanes, or loads and stores in
    memory."""
    inner, reduced = (
        mapping.inner(mapping.after_split(shape.axes)),
        set(mapping.after_split(shape.reduced)),
    )
    node, volume = shape.root.reduction, shape.volume
    if not inner:
        return 0.0
    if inner[-1] not in reduced:  # an accumulator in memory; see buffers.accumulator_dtype
        is_narrow = reduced & set(mapping.rows) or (
            node is not None and (is_gemv_sum(node) or has_few_terms(node))
        )
        return (
            (machine.narrow_accumulate if is_narrow else machine.wide_accumulate)
            * volume
            / machine.lanes
        )
    extent = max(1, group.hint(inner[-1].extent))
    cost = model_of(machine).horizontal(extent, machine)
    if any(axis not in reduced for axis in inner):
        cost += machine.row_buffer_access
    return cost * volume / extent
