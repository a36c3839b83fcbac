"""Loops that cross two axes: what is near along the outer one and far along the lanes.

As many iterations of the outer loop as a vector has lanes run at once, one in each copy of the
body. What crosses is then a square: whole vectors in memory, transposed in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hemstitch.ir.dims import divides
from hemstitch.kernel_ir.index import Axis, Computed, Index
from hemstitch.kernel_ir.nodes import Constant, Let, Load, Loop, Stmt, Store, walk
from hemstitch.targets.cpu.emitter import Emitter, Value


def transposable_lanes(axis: Axis, body: tuple[Stmt, ...], width: int) -> Loop | None:
    """The lane loop in the serial loop over `axis`, if the two are to be printed together. Its
    length has to be known; the serial one may end early in the last block of a cut axis. What each
    row computes before its lanes, as a value of a bias, is computed in them."""
    *values, inner = body or (None,)
    if not isinstance(inner, Loop) or not inner.lanes:
        return None
    if not all(isinstance(s, Load | Let | Constant) for s in values):
        return None
    inner = replace(inner, body=(*values, *inner.body))
    if not isinstance(axis.extent, int) or axis.extent < width:
        return None
    if not _is_whole(inner.axis) or axis is inner.axis.outer:
        return None
    statements = list(walk(inner.body))
    is_simple = all(isinstance(s, Load | Let | Constant | Store | Loop) for s in statements)
    accesses = [s for s in statements if isinstance(s, Load | Store)]
    stored = {s.buffer for s in accesses if isinstance(s, Store)}
    is_ordered = any(isinstance(s, Load) and s.buffer in stored for s in accesses)
    is_transposed = any(transposed_step(s, axis, inner.axis) for s in accesses)
    return inner if is_simple and is_transposed and not is_ordered else None


def overlaps(extent: Value, width: int) -> bool:
    """The last iterations run with some before them once more, which only store the same again,
    rather than one by one: each of these would walk along far places."""
    return extent.text.isdigit() and int(extent.text) % width > width // 4


def _is_whole(axis: Axis) -> bool:
    """Its loop is always of one known length: no last block is shorter."""
    is_even = axis.outer is None or axis.limit is None or divides(axis.extent, axis.limit)
    return isinstance(axis.extent, int) and is_even


def transposed_step(access: Load | Store, axis: Axis, lane: Axis) -> int | None:
    """1 where one iteration of `axis` further is the next element, 2 where it is the next but one
    of a load; and one lane further is another place."""
    index, step = access.index, access.index.coefficient(axis)
    is_near = step == 1 or (step == 2 and isinstance(access, Load))
    if not is_near or index.coefficient(lane) in (0, 1) or not _is_affine(index):
        return None
    return 1 if step == 1 else 2


def _is_affine(index: Index) -> bool:
    return not any(isinstance(variable, Computed) for variable, _ in index.terms)


StorePair = tuple[Store, Store]


def with_interleaved_stores(
    statements: Sequence[Stmt], lane: Axis | None
) -> Iterator[Stmt | StorePair]:
    """The statements; in a loop over lanes as one those that store in neighbouring places, two a
    lane."""
    position = 0
    while position < len(statements):
        statement, *following = statements[position : position + 2]
        pair = None if lane is None else _store_pair(statement, following, lane)
        yield pair or statement
        position += 2 if pair is not None and isinstance(statement, Store) else 1


def _store_pair(statement: Stmt, following: Sequence[Stmt], lane: Axis) -> StorePair | None:
    match statement, following:
        case Loop(), _:
            return _duplicated(statement, lane)
        case Store() as first, [Store() as second] if _are_interleaved(first, second, lane):
            return first, second
        case _:
            return None


def _are_interleaved(first: Store, second: Store, lane: Axis) -> bool:
    is_next = first.buffer is second.buffer and first.index.shifted(1) == second.index
    return is_next and first.index.coefficient(lane) == 2 and _is_affine(first.index)


def _duplicated(loop: Loop, lane: Axis) -> StorePair | None:
    """The stores of a loop that puts each lane's value in two neighbouring places."""
    store = loop.body[0] if len(loop.body) == 1 and loop.axis.extent == 2 else None
    if not isinstance(store, Store) or not _is_affine(store.index):
        return None
    if (store.index.coefficient(loop.axis), store.index.coefficient(lane)) != (1, 2):
        return None
    first = replace(store, index=store.index.substitute({loop.axis: Index()}))
    return first, replace(first, index=first.index.shifted(1))


def transposed(e: Emitter, rows: Sequence[Value]) -> list[Value]:
    """Lane k of row j becomes lane j of row k: the perfect shuffle of the rows, for each bit of a
    lane's number."""
    half = len(rows) // 2
    vectors = list(rows)
    for _ in range(half.bit_length()):
        pairs = [interleaved(e, a, b) for a, b in zip(vectors[:half], vectors[half:])]
        vectors = [row for pair in pairs for row in pair]
    return vectors


def interleaved(e: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """a0 b0 a1 b1 ... as two vectors."""

    def part(first: int) -> Value:
        lanes = range(first, first + e.width // 2)
        order = ", ".join(f"i32 {lane}, i32 {lane + e.width}" for lane in lanes)
        return e.define(a.type, f"shufflevector {a}, {b}, <{e.width} x i32> <{order}>")

    return part(0), part(e.width // 2)
