"""The loop over a task's rows, from %low to %high: where each stands, and what runs beside it."""

from __future__ import annotations

from collections.abc import Sequence

from hemstitch.kernel_ir.nodes import EPILOGUE_ROWS
from hemstitch.targets.cpu.emitter import Emitter, Value

LOW, HIGH = Value("%low", "i64"), Value("%high", "i64")


def decoded(e: Emitter, extents: Sequence[Value], number: Value) -> list[Value]:
    """The index of every row axis from the row's number, the last axis fastest."""
    indices: list[Value] = []
    for extent in reversed(extents[1:]):
        indices.append(e.binary("urem", number, extent))
        number = e.binary("udiv", number, extent)
    return [number, *reversed(indices)] if extents else []


def starts_outer_row(e: Emitter, number: Value, last: Value) -> Value:
    """Row `number` is the first of the task, or, with `last` its index there, of the last axis."""
    is_first = e.compare("eq", number, LOW)
    return e.binary("or", is_first, e.compare("eq", last, e.i64(0)))


def ends_epilogue_group(e: Emitter, number: Value) -> Value:
    """Row `number` is the last of the task, or of EPILOGUE_ROWS rows since its first."""
    following = e.binary("add", number, e.i64(1))
    done = e.binary("sub", following, LOW)
    rest = e.binary("urem", done, e.i64(EPILOGUE_ROWS))
    is_last = e.compare("eq", following, HIGH)
    return e.binary("or", e.compare("eq", rest, e.i64(0)), is_last)
