"""The parts of a row between products (`blocking.py`), and what rows hand on from one to
another."""

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
from hemstitch.matmul.lowering.tile_matmul import TileProduct


@dataclass(slots=True)
class BlockPart:
    """Statements that run row by row, and behind them `loops` over the rows of a block: products,
    before some of which their left operand is filled in, of which the statements know nothing.
    `lines`: what fills in what several rows of a left operand have in common."""

    statements: list[Stmt] = field(default_factory=list)
    lines: list[Loop] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)

    @property
    def products(self) -> Iterator[TileProduct]:
        return (tile for tile in map(TileProduct.of, self.loops) if tile is not None)


class Reach:
    """What rows hand on from part to part: `names` of values and their types, row `buffers`."""

    def __init__(self, nest: Nest, parts: Sequence[BlockPart]) -> None:
        made = [{name for s in part.statements for name in defined(s)} for part in parts]
        read = [{name for s in part.statements for name in used(s)} for part in parts]
        types = _types(nest)
        self.names = {
            name: types[name]
            for number, names in enumerate(made)
            for name in sorted(names)
            if any(name in later for later in read[number + 1 :])
        }
        lasting = task_buffers([*nest.prologue, *nest.epilogue])
        runs = (run for p in parts for run in (p.statements, p.loops))
        touched = [task_buffers(run) for run in runs]
        known = task_buffers(nest.body)
        handed_on = {b for b in known if sum(b in buffers for buffers in touched) > 1}
        pairs = (_pair(statement) for statement in walk(nest.body))
        for pair in pairs:  # one index serves both, so both lie alike
            if not handed_on.isdisjoint(pair):
                handed_on.update(pair)
        self.buffers = [b for b in known if b in handed_on and b not in lasting]


def _pair(statement: Stmt) -> tuple[Buffer, ...]:
    """Values and their positions, which are compared together."""
    return tuple(buffers_of(statement)) if isinstance(statement, AccumulateInto) else ()


def task_buffers(body: Iterable[Stmt]) -> list[Buffer]:
    found = dict.fromkeys(buffer for statement in walk(body) for buffer in buffers_of(statement))
    return [buffer for buffer in found if buffer.role is Role.TASK]


def _types(nest: Nest) -> Mapping[str, DType]:
    """Of the values that the statements of a row make, outside loops."""
    found: dict[str, DType] = {}
    inits = {s.name: s.dtype for s in nest.body if isinstance(s, Init)}
    for statement in nest.body:
        match statement:
            case Let(name, _, _, _, dtype) | Constant(name, _, dtype):
                found[name] = dtype.compute
            case Load(name, buffer):
                found[name] = buffer.dtype.compute
            case Finish(name, accumulator, position):
                found[name] = inits[accumulator].compute
                if position is not None:
                    found[position] = DType.I64
            case Random(name):
                found[name] = DType.F32
            case Position(name):
                found[name] = DType.I64
            case _:
                pass
    return found
