"""Whether a kernel that replaces a tensor it reads sees the old contents everywhere.

Tasks run side by side, so this holds only where each element is read by the row that writes it,
and before it does.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import BLOCKS, Buffer, Kernel, Load, Nest, Stmt, Store


@dataclass(frozen=True, slots=True)
class _Access:
    """`place`: number of its statement in the kernel. `loops`: the row's axes and those around."""

    statement: Load | Store
    phase: int
    nest: Nest
    position: int
    loops: tuple[Axis, ...]


def hazard(kernel: Kernel, replaced: Container[Buffer]) -> str | None:
    """What is wrong, or None. `replaced`: the parameters that held something before; what a kernel
    reads of others is what it has put there itself."""
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
    """No element is loaded after it is stored."""
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
