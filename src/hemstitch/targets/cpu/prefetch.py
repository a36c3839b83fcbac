"""Which loads ask early for what later rows read, and how far ahead.

Processors fetch ahead by themselves, but only along what is being read: a row that is walked more
than once (a softmax, a normalisation) leaves memory idle from its second walk on, and a stream ends
with its page. So one of the later walks, that with most arithmetic, asks for one of the next rows.
What is read in pieces, some columns of each line, is no stream at all, nor are some lines of each
channel's image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hemstitch.ir.ops import OPS
from hemstitch.kernel_ir.index import Axis, Index
from hemstitch.kernel_ir.nodes import Buffer, Let, Load, Loop, Nest, Role, Stmt
from hemstitch.machine.cpu_numbers import CPU


@dataclass(frozen=True, slots=True)
class _PrefetchWalk:
    """A load of an argument in a loop over lanes, that walks on by `stride`; `work`: flops of an
    element there; `outer_axis`: of the loop that this one is in, if it is in one."""

    load: Load
    lane: Axis
    stride: int
    work: int
    outer_axis: Axis | None


@dataclass(frozen=True, slots=True)
class SoftwarePrefetch:
    """For what lies `distance` elements ahead, so many `lines` for each vector, to come into this
    `level` of the caches. Rows that are no longer than `prefetch_short_row_bytes` come into L1;
    of longer ones L1, which waits for few lines at a time, would get so many that the walk's own
    loads wait behind them."""

    distance: int
    level: int
    lines: int = 1


def prefetches(nest: Nest) -> Mapping[str, SoftwarePrefetch]:
    """Of such loads, by their names."""
    if not nest.rows:
        return {}
    prefetches_of = dict(_line_prefetches(nest))
    streams: dict[tuple[Buffer, Index], list[_PrefetchWalk]] = {}
    for walk in _walks(nest.body):
        if walk.stride == 1:
            streams.setdefault((walk.load.buffer, walk.load.index), []).append(walk)
    for walks in streams.values():
        walk = max(walks[1:] or walks, key=lambda walk: walk.work)
        software_prefetch = _piece_prefetch(walk) or _row_prefetch(
            walk.load, walk.lane, nest.rows, len(walks)
        )
        if software_prefetch is not None:
            prefetches_of[walk.load.name] = software_prefetch
    return prefetches_of


def _walks(body: tuple[Stmt, ...], outer_axis: Axis | None = None) -> Iterator[_PrefetchWalk]:
    for loop in body:
        if not isinstance(loop, Loop):
            continue
        if not loop.lanes:
            yield from _walks(loop.body, loop.axis)
            continue
        work = sum(OPS[statement.op].flops for statement in loop.body if isinstance(statement, Let))
        for load in loop.body:
            if not isinstance(load, Load) or load.buffer.role is not Role.INPUT:
                continue
            stride = load.index.coefficient(loop.axis)
            if isinstance(stride, int) and stride > 0:
                yield _PrefetchWalk(load, loop.axis, stride, work, outer_axis)


def _line_prefetches(nest: Nest) -> Iterator[tuple[str, SoftwarePrefetch]]:
    """Of rows that read pieces far apart, each of which the next row goes on with. Each load of a
    piece asks for what a later row reads from there up to where the next load does: all at once
    would be more than a processor waits for."""
    pieces: dict[tuple[Buffer, object], list[_PrefetchWalk]] = {}
    for walk in _walks(nest.body):
        pieces.setdefault((walk.load.buffer, walk.load.index.terms), []).append(walk)
    for walks in pieces.values():
        row_step = _row_step_of_pieces(walks[0], nest.rows[-1])
        loads = {walk.load.index.constant: walk.load for walk in walks}
        starts = {start: load for start, load in loads.items() if isinstance(start, int)}
        if row_step is None or len(starts) < len(loads):
            continue
        bytes_ = walks[0].load.buffer.dtype.bytes
        covered_until = min(starts) + row_step
        for start in sorted(starts, reverse=True):
            if (covered_until - start) * bytes_ >= CPU.line_bytes:
                lines = -(-(covered_until - start) * bytes_ // CPU.line_bytes)
                yield starts[start].name, SoftwarePrefetch(CPU.prefetch_rows * row_step, 2, lines)
                covered_until = start


def _row_step_of_pieces(walk: _PrefetchWalk, row: Axis) -> int | None:
    """How many elements a row goes on in pieces that are far apart and of a large tensor. Blocks
    of one row, whose next is a row further, are none."""
    index, bytes_ = walk.load.index, walk.load.buffer.dtype.bytes
    if walk.outer_axis is None or not all(isinstance(axis, Axis) for axis, _ in index.terms):
        return None
    step, piece_stride = index.coefficient(row), index.coefficient(walk.outer_axis)
    tensor_size, pieces, size = walk.load.buffer.size, walk.outer_axis.extent, walk.lane.extent
    if (
        not isinstance(step, int)
        or not isinstance(piece_stride, int)
        or not isinstance(tensor_size, int)
    ):
        return None
    if not isinstance(pieces, int) or not isinstance(size, int):
        return None
    is_scattered = (
        piece_stride * bytes_ >= CPU.stream_gap_bytes
        and tensor_size * bytes_ >= CPU.prefetch_tensor_bytes
    )
    is_continued = (
        walk.stride * (size - 1) < step < piece_stride
        and pieces * step * bytes_ <= CPU.prefetch_row_bytes
    )
    return step if is_scattered and is_continued else None


def _piece_prefetch(walk: _PrefetchWalk) -> SoftwarePrefetch | None:
    """Of a walk through some columns of a matrix: pieces of lines that lie far apart."""
    if walk.outer_axis is None:
        return None
    step, size = walk.load.index.coefficient(walk.outer_axis), walk.lane.extent
    pieces, bytes_ = walk.outer_axis.extent, walk.load.buffer.dtype.bytes
    if not isinstance(step, int) or not isinstance(size, int) or not isinstance(pieces, int):
        return None
    if (
        not 0 < size * bytes_ <= CPU.prefetch_short_row_bytes
        or pieces * size * bytes_ < CPU.prefetch_walk_bytes
        or step <= size
    ):
        return None
    return SoftwarePrefetch(step * -(-CPU.prefetch_bytes // (size * bytes_)), 1)


def _row_prefetch(
    load: Load, lane: Axis, rows: Sequence[Axis], walks: int
) -> SoftwarePrefetch | None:
    step, bytes_ = load.index.coefficient(rows[-1]), load.buffer.dtype.bytes
    volume = _volume(load.index, rows)
    if not isinstance(step, int) or step <= 0 or volume is None:
        return None
    if walks == 1:
        if step != lane.extent or step * bytes_ > CPU.prefetch_short_row_bytes:
            return None
    elif volume * bytes_ > CPU.prefetch_row_bytes:
        return None
    level = 1 if volume * bytes_ <= CPU.prefetch_short_row_bytes else 2
    return SoftwarePrefetch(step * -(-CPU.prefetch_bytes // (volume * bytes_)), level)


def _volume(index: Index, rows: Sequence[Axis]) -> int | None:
    """How many elements a row reads."""
    volume = 1
    for axis, _ in index.terms:
        if not isinstance(axis, Axis) or not isinstance(axis.extent, int):
            return None
        volume *= 1 if axis in rows else max(axis.extent, 1)
    return volume
