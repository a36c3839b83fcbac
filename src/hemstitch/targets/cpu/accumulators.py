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

    def widen(self, e: Emitter, body: tuple[Stmt, ...], unroll_factor: int) -> None:
        """Those from outside get a partner for each further copy of the body."""
        for accumulator in self.changed(body):
            identity = vector_reductions.identity_values(e, accumulator.op, accumulator.dtype)
            accumulator.values += [identity] * (unroll_factor - 1)

    def narrow(self, e: Emitter, body: tuple[Stmt, ...]) -> None:
        """All copies of those from outside become one, pair by pair."""
        for accumulator in self.changed(body):
            while half := len(accumulator.values) // 2:
                values = accumulator.values
                pairs, single = zip(values[:half], values[half : 2 * half]), values[2 * half :]
                joined = [vector_reductions.combined(e, accumulator, a, b) for a, b in pairs]
                accumulator.values = [*joined, *single]


def packed(accumulators: Sequence[Accumulator]) -> list[Value]:
    """What a loop carries of them."""
    return [value for a in accumulators for copy in a.values for value in copy]


def unpack(accumulators: Sequence[Accumulator], values: Sequence[Value]) -> None:
    rest = iter(values)
    for accumulator in accumulators:
        accumulator.values = [tuple(next(rest) for _ in copy) for copy in accumulator.values]
