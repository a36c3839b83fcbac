"""Sums of the last few rows of a task, added to its sums of all rows. Takes a reduction and the
memory of the former, and gives what is done now and then."""

from __future__ import annotations

from collections.abc import Iterator

from hemstitch.ir.graph import Node, Op
from hemstitch.ir.types import DType
from hemstitch.kernel.index import Axis, Index, at
from hemstitch.kernel.nodes import (
    TASK,
    AccumulateInto,
    Buffer,
    Constant,
    Let,
    Load,
    Loop,
    Stmt,
    Store,
)
from hemstitch.stitch.buffers import Buffers, partial_step


def flush(buffers: Buffers, node: Node, recent: Buffer) -> tuple[Stmt, ...]:
    """They start anew after it."""
    new = buffers.name
    axis, value = Axis(new("k"), node.type.size), new("v")
    place = at(axis) + at(TASK).scaled(partial_step(node))
    add = _compensated if buffers.is_compensated(node) else _widened
    added = tuple(add(buffers, node, place, value, recent.dtype))
    zero = new("zero")
    body: tuple[Stmt, ...] = (
        Load(value, recent, at(axis)),
        *added,
        Constant(zero, 0, recent.dtype),
        Store(recent, at(axis), zero),
    )
    return (Loop(axis, body, lanes=True),)


def _widened(
    buffers: Buffers, node: Node, place: Index, value: str, dtype: DType
) -> Iterator[Stmt]:
    wide, (partial, _) = buffers.name("w"), buffers.partial(node)
    yield Let(wide, Op.CAST, (value,), dtype, partial.dtype)
    yield AccumulateInto(partial, place, node.op, partial.dtype, wide)


def _compensated(
    buffers: Buffers, node: Node, place: Index, value: str, dtype: DType
) -> Iterator[Stmt]:
    """Knuth's two-sum gives what rounding loses; of an infinite sum that is not a number."""
    (partial, _), lost = buffers.partial(node), buffers.lost(node)
    names = [buffers.name("v") for _ in range(12)]
    total, before, whole, added, kept, of_total, of_value, lacks, *rest = names
    none, zero, known, after = rest
    yield Load(total, partial, place)
    yield Load(before, lost, place)
    yield Let(whole, Op.ADD, (total, value), dtype, dtype)
    yield Let(added, Op.SUB, (whole, total), dtype, dtype)
    yield Let(kept, Op.SUB, (whole, added), dtype, dtype)
    yield Let(of_total, Op.SUB, (total, kept), dtype, dtype)
    yield Let(of_value, Op.SUB, (value, added), dtype, dtype)
    yield Let(lacks, Op.ADD, (of_total, of_value), dtype, dtype)
    yield Let(none, Op.ISNAN, (lacks,), dtype, DType.BOOL)
    yield Constant(zero, 0.0, dtype)
    yield Let(known, Op.WHERE, (none, zero, lacks), dtype, dtype)
    yield Let(after, Op.ADD, (before, known), dtype, dtype)
    yield Store(partial, place, whole)
    yield Store(lost, place, after)
