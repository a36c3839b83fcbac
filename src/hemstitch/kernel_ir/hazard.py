"""Write-after-read hazards of kernels that update a tensor in place.

Tasks run concurrently. So an update is safe only if the row that stores an element is the one that
loads it, and loads it first.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import BLOCKS, Buffer, Kernel, Load, Nest, Stmt, Store


@dataclass(frozen=True, slots=True)
class _Access:
    """A load or store. `position`: number of its statement in the kernel. `loops`: axes of the row
    and of the loops around."""

    statement: Load | Store
    phase: int
    nest: Nest
    position: int
    loops: tuple[Axis, ...]


def hazard(kernel: Kernel, replaced: Container[Buffer]) -> str | None:
    """The hazard that a kernel has, or None. `replaced`: parameters whose old contents the kernel
    may load. What it loads of other parameters it has stored itself."""
    accesses_of: dict[Buffer, list[_Access]] = {}
    for access in _accesses(kernel):
        if access.statement.buffer in replaced:
            accesses_of.setdefault(access.statement.buffer, []).append(access)
    for buffer, accesses in accesses_of.items():
        loads = [a for a in accesses if isinstance(a.statement, Load)]
        stores = [a for a in accesses if isinstance(a.statement, Store)]
        for store in stores if loads else ():
            if not all(_is_before(load, store) for load in loads):
                return f"{buffer.name} is read where another row may have replaced it"
    return None


def _is_before(load: _Access, store: _Access) -> bool:
    """Every element is loaded before it is stored."""
    if load.phase != store.phase:
        return load.phase < store.phase
    is_same = load.nest is store.nest and load.position < store.position
    index = store.statement.index
    repeated = [a for a in store.loops if a.extent != 1 and index.coefficient(a) == 0]
    return is_same and load.statement.index == index and not repeated


def _accesses(kernel: Kernel) -> Iterator[_Access]:
    position = 0
    for number, phase in enumerate(kernel.phases):
        for nest in phase.nests:
            for statement, loops in _walk((*nest.prologue, *nest.body, *nest.epilogue), nest.rows):
                position += 1
                if isinstance(statement, (Load, Store)):
                    yield _Access(statement, number, nest, position, loops)


def _walk(
    statements: Iterable[Stmt], loops: tuple[Axis, ...]
) -> Iterator[tuple[Stmt, tuple[Axis, ...]]]:
    for statement in statements:
        yield statement, loops
        if isinstance(statement, BLOCKS):
            yield from _walk(statement.body, (*loops, statement.axis))
