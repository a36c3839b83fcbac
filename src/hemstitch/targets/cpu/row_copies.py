"""Rows that are only copied: the C library's memcpy, which is faster than vector stores for long
rows (docs/design/code-generation-for-cpus.md).
"""

from __future__ import annotations

from collections.abc import Callable

from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import Load, Stmt, Store
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.targets.cpu.emitter import Emitter, Value


def copied_row(axis: Axis, body: tuple[Stmt, ...]) -> tuple[Store, Load] | None:
    """Where a loop over `axis` takes what lies one after the other from one tensor to another. Of
    an axis that only a call knows, a row may be long."""
    match body:
        case (Load(mask=None) as load, Store() as store):
            target, source = store.buffer, load.buffer
            walks = {access.index.coefficient(axis) for access in (load, store)}
            is_long = (
                not isinstance(axis.extent, int)
                or axis.extent * target.dtype.bytes >= CPU.memcpy_bytes
            )
            is_copy = store.value == load.name and target.dtype is source.dtype and walks == {1}
            return (store, load) if is_copy and is_long and target is not source else None
    return None


def copy_if_long(
    e: Emitter, row: tuple[Store, Load], extent: Value, pointer: Callable[[Store | Load], Value]
) -> Value:
    """`pointer`: where what is stored or loaded begins. Gives how many elements are left."""
    size = row[0].buffer.dtype.bytes
    is_long = e.compare("sge", extent, e.i64(CPU.memcpy_bytes // size))
    with e.when(is_long):
        ends = [pointer(access) for access in row]
        bytes_ = e.binary("mul", extent, e.i64(size))
        e.call("llvm.memcpy.p0.p0.i64", "void", *ends, bytes_, Value("false", "i1"))
    return e.i64(0) if extent.text.isdigit() else e.select(is_long, e.i64(0), extent)
