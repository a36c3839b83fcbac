"""The accumulators of a nest: which a loop carries, and their unrolled copies."""

from __future__ import annotations

from collections.abc import Sequence

from hemstitch.kernel_ir.nodes import Accumulate, Init, Scan, Stmt, walk
from hemstitch.targets.cpu import vector_reductions
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.vector_reductions import Accumulator


class Accumulators(dict[str, Accumulator]):
    """Those that are open, by name."""

    def changed(self, body: tuple[Stmt, ...]) -> list[Accumulator]:
        """Accumulators from outside that statements of `body` add to."""
        names = {s.accumulator: None for s in walk(body) if isinstance(s, Accumulate | Scan)}
        inner = {s.name for s in walk(body) if isinstance(s, Init)}
        return [self[name] for name in names if name not in inner]

    def widen(self, e: Emitter, body: tuple[Stmt, ...], copies: int) -> None:
        """Those from outside get a partner for each further copy of the body."""
        for accumulator in self.changed(body):
            start = vector_reductions.start(e, accumulator.op, accumulator.dtype)
            accumulator.copies += [start] * (copies - 1)

    def narrow(self, e: Emitter, body: tuple[Stmt, ...]) -> None:
        """All copies of those from outside become one, pair by pair."""
        for accumulator in self.changed(body):
            while half := len(accumulator.copies) // 2:
                copies = accumulator.copies
                pairs, single = zip(copies[:half], copies[half : 2 * half]), copies[2 * half :]
                joined = [vector_reductions.joined(e, accumulator, a, b) for a, b in pairs]
                accumulator.copies = [*joined, *single]


def packed(accumulators: Sequence[Accumulator]) -> list[Value]:
    """What a loop carries of them."""
    return [value for a in accumulators for copy in a.copies for value in copy]


def unpack(accumulators: Sequence[Accumulator], values: Sequence[Value]) -> None:
    rest = iter(values)
    for accumulator in accumulators:
        accumulator.copies = [tuple(next(rest) for _ in copy) for copy in accumulator.copies]
