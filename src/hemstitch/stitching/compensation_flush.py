"""Two-level accumulation of a task's sums: plain sums of its last few rows are periodically added
to wide or compensated sums of all its rows."""

from __future__ import annotations

from collections.abc import Iterator

from hemstitch.ir.graph import Node, Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import (
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
from hemstitch.kernel_ir.passes.compensated_sums import compensated_add
from hemstitch.stitching.buffers import Buffers, partial_step


def flush(buffers: Buffers, node: Node, recent: Buffer) -> tuple[Stmt, ...]:
    """Statements that add the sums in `recent` to the task's partial sums, and reset them to
    zero."""
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
    (partial, _), compensation = buffers.partial(node), buffers.compensation(node)
    return compensated_add(buffers.name, partial, compensation, place, value)
