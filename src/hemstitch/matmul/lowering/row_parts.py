"""The statements of a row between matmuls (`blocking.py`), and the values live across them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hemstitch.ir.types import DType
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    Buffer,
    Constant,
    Finish,
    Init,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Random,
    Role,
    Stmt,
    buffers_of,
    walk,
)
from hemstitch.kernel_ir.rewriter import defined, used
from hemstitch.matmul.lowering.tile_matmul import TileMatmul


@dataclass(slots=True)
class BlockPart:
    """`statements` run row by row. Then `loops` over the rows of the block run: matmuls, and copies
    of their left operands. `line_buffers`: loops before these that fill line buffers of left
    operands with overlapping rows."""

    statements: list[Stmt] = field(default_factory=list)
    line_buffers: list[Loop] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)

    @property
    def matmuls(self) -> Iterator[TileMatmul]:
        """The tile matmuls among the loops."""
        return (tile for tile in map(TileMatmul.of, self.loops) if tile is not None)


class LiveAcrossParts:
    """What is live across parts of a row: `names` of values with their types, and row `buffers`."""

    def __init__(self, nest: Nest, parts: Sequence[BlockPart]) -> None:
        defined_names = [{name for s in part.statements for name in defined(s)} for part in parts]
        used_names = [{name for s in part.statements for name in used(s)} for part in parts]
        types = _types(nest)
        self.names = {
            name: types[name]
            for number, names in enumerate(defined_names)
            for name in sorted(names)
            if any(name in later for later in used_names[number + 1 :])
        }
        outlive_row = task_buffers([*nest.prologue, *nest.epilogue])
        bodies = (body for p in parts for body in (p.statements, p.loops))
        touched = [task_buffers(body) for body in bodies]
        in_body = task_buffers(nest.body)
        live = {b for b in in_body if sum(b in buffers for buffers in touched) > 1}
        pairs = (_pair(statement) for statement in walk(nest.body))
        for pair in pairs:  # one index addresses both, so they have the same layout
            if not live.isdisjoint(pair):
                live.update(pair)
        self.buffers = [b for b in in_body if b in live and b not in outlive_row]


def _pair(statement: Stmt) -> tuple[Buffer, ...]:
    """Two buffers of one index: values and their positions."""
    return tuple(buffers_of(statement)) if isinstance(statement, AccumulateInto) else ()


def task_buffers(body: Iterable[Stmt]) -> list[Buffer]:
    """The task buffers that statements access."""
    buffers = dict.fromkeys(buffer for statement in walk(body) for buffer in buffers_of(statement))
    return [buffer for buffer in buffers if buffer.role is Role.TASK]


def _types(nest: Nest) -> Mapping[str, DType]:
    """Types of the values that a row defines outside its loops."""
    types: dict[str, DType] = {}
    inits = {s.name: s.dtype for s in nest.body if isinstance(s, Init)}
    for statement in nest.body:
        match statement:
            case Let(name, _, _, _, dtype) | Constant(name, _, dtype):
                types[name] = dtype.compute
            case Load(name, buffer):
                types[name] = buffer.dtype.compute
            case Finish(name, accumulator, position):
                types[name] = inits[accumulator].compute
                if position is not None:
                    types[position] = DType.I64
            case Random(name):
                types[name] = DType.F32
            case Position(name):
                types[name] = DType.I64
            case _:
                pass
    return types
