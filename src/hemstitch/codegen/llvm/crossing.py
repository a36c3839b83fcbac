"""Loops that cross two axes: what is near along the outer one and far along the lanes.

As many iterations of the outer loop as a vector has lanes run at once, one in each copy of the
body. What crosses is then a square: whole vectors in memory, transposed in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from hemstitch.codegen.llvm.emitter import Emitter, Value
from hemstitch.ir.dims import divides
from hemstitch.kernel.index import Axis, Computed, Index
from hemstitch.kernel.nodes import Constant, Let, Load, Loop, Stmt, Store, walk


def lanes_to_cross(axis: Axis, body: tuple[Stmt, ...], width: int) -> Loop | None:
    """The lane loop in the serial loop over `axis`, if the two are to be printed together. Its
    length has to be known; the serial one may end early in the last block of a cut axis."""
    inner = body[0] if len(body) == 1 else None
    if not isinstance(inner, Loop) or not inner.lanes:
        return None
    if not isinstance(axis.extent, int) or axis.extent < width:
        return None
    if not _is_whole(inner.axis) or axis is inner.axis.outer:
        return None
    statements = list(walk(inner.body))
    simple = all(isinstance(s, Load | Let | Constant | Store | Loop) for s in statements)
    accesses = [s for s in statements if isinstance(s, Load | Store)]
    stored = {s.buffer for s in accesses if isinstance(s, Store)}
    ordered = any(isinstance(s, Load) and s.buffer in stored for s in accesses)
    crossed = any(is_crossed(s.index, axis, inner.axis) for s in accesses)
    return inner if simple and crossed and not ordered else None


def _is_whole(axis: Axis) -> bool:
    """Its loop is always of one known length: no last block is shorter."""
    is_even = axis.outer is None or axis.limit is None or divides(axis.extent, axis.limit)
    return isinstance(axis.extent, int) and is_even


def is_crossed(index: Index, axis: Axis, lane: Axis) -> bool:
    """One iteration of `axis` further is the next element; one lane further is another place."""
    is_affine = not any(isinstance(variable, Computed) for variable, _ in index.terms)
    return is_affine and index.coefficient(axis) == 1 and index.coefficient(lane) not in (0, 1)


def doubled_store(loop: Loop, lane: Axis) -> Store | None:
    """The store in a loop that puts each lane's value in two neighbouring places."""
    store = loop.body[0] if len(loop.body) == 1 and loop.axis.extent == 2 else None
    if not isinstance(store, Store) or any(isinstance(v, Computed) for v, _ in store.index.terms):
        return None
    steps = store.index.coefficient(loop.axis), store.index.coefficient(lane)
    return store if steps == (1, 2) else None


def transposed(e: Emitter, rows: Sequence[Value]) -> list[Value]:
    """Lane k of row j becomes lane j of row k: the perfect shuffle of the rows, for each bit of a
    lane's number."""
    half = len(rows) // 2
    found = list(rows)
    for _ in range(half.bit_length()):
        pairs = [interleaved(e, a, b) for a, b in zip(found[:half], found[half:])]
        found = [row for pair in pairs for row in pair]
    return found


def interleaved(e: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """a0 b0 a1 b1 ... as two vectors."""

    def part(first: int) -> Value:
        lanes = range(first, first + e.width // 2)
        order = ", ".join(f"i32 {lane}, i32 {lane + e.width}" for lane in lanes)
        return e.define(a.type, f"shufflevector {a}, {b}, <{e.width} x i32> <{order}>")

    return part(0), part(e.width // 2)
