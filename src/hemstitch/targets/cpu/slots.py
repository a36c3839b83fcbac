"""What a nest touches, in the order it is met: a pointer for each buffer, an i64 for each symbolic
size, found as table[indices[slot]]. So two nests that differ in nothing else are the same text, and
one function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hemstitch.ir.dims import Dim, SymbolicDim
from hemstitch.kernel_ir.index import Index
from hemstitch.kernel_ir.nodes import (
    THREADS,
    Buffer,
    Check,
    Contract,
    Loop,
    Nest,
    Role,
    Stmt,
    buffers_of,
    walk,
)
from hemstitch.targets.cpu.emitter import Emitter, Value

STATUS = "status"  # the slot that a failed check writes its number to
Slot = Buffer | SymbolicDim | str


@dataclass(slots=True)
class Slots:
    """`values`: of each, what the caller must put into the table. `stride`: bytes from one task's
    scratch to the next's."""

    emitter: Emitter
    stride: Dim
    values: dict[Slot, Value] = field(default_factory=dict)

    def load(self, nest: Nest) -> None:
        """Every buffer pointer and size, once, at the top of the function."""
        everything = [statement for part in nest.parts for statement in walk(part)]
        for statement in everything:
            for buffer in buffers_of(statement):
                self._load(buffer)
            for size in _sizes_of(statement):
                self._load_size(size)
        for axis in nest.rows:
            self._load_size(axis.extent)
        if any(isinstance(statement, Check) for statement in everything):
            self._load(STATUS)

    def __getitem__(self, key: Slot) -> Value:
        return self.values[key]

    def dim(self, size: Dim) -> Value:
        if size == THREADS:
            return Value("%threads", "i64")
        return self.emitter.i64(size) if isinstance(size, int) else self.values[size]

    def quotient(self, size: Dim, divisor: int) -> Value:
        """Of a size that `divisor` divides."""
        if isinstance(size, int):
            return self.emitter.i64(size // divisor)
        value = self.dim(size)
        e = self.emitter
        return value if divisor == 1 else e.binary("sdiv exact", value, e.i64(divisor))

    def _load_size(self, size: Dim) -> None:
        if isinstance(size, SymbolicDim) and size != THREADS:
            self._load(size)

    def _load(self, key: Slot) -> None:
        if key in self.values:
            return
        e = self.emitter
        number = e.define("ptr", f"getelementptr i32, ptr %indices, i64 {len(self.values)}")
        position = e.define("i32", f"load i32, {number}")
        place = e.define("ptr", f"getelementptr i64, ptr %table, {position}")
        type_ = "i64" if isinstance(key, SymbolicDim) else "ptr"
        value = self.values[key] = e.define(type_, f"load {type_}, {place}")
        if isinstance(key, Buffer) and key.role is Role.TASK:
            self._load_size(self.stride)
            offset = e.binary("mul", self.dim(self.stride), Value("%task", "i64"))
            self.values[key] = e.define("ptr", f"getelementptr i8, {value}, {offset}")


def _sizes_of(statement: Stmt) -> Iterator[Dim]:
    """Every size that a statement mentions."""
    if isinstance(statement, Loop | Contract):
        yield statement.axis.extent
        if statement.axis.limit is not None:
            yield statement.axis.limit
    for name in ("index", "position"):
        index = getattr(statement, name, None)
        if isinstance(index, Index):
            yield index.constant
            for _, coefficient in index.terms:
                yield coefficient
