"""Whether accesses of 16 bytes a thread are possible, so that a lint may ask for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hemstitch.ir.dims import divides
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import (
    AccumulateMatmul,
    Contract,
    Load,
    Loop,
    Nest,
    Stmt,
    Store,
    walk,
)
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.targets.gpu.tiling import is_tile


def is_vectorisable(nest: Nest) -> bool:
    """Every access from lanes is to neighbours, and starts at a multiple of 16 bytes. Tiles of
    products lie in registers as matrix units want them."""
    if any(isinstance(statement, Contract | AccumulateMatmul) for statement in walk(nest.body)):
        return False
    return all(_is_vectorisable(access, lane) for access, lane in _accesses(nest.body, None))


def _is_vectorisable(access: Load | Store, lane: Axis) -> bool:
    index, count = access.index, GPU.access_bytes // access.buffer.dtype.bytes
    if index.coefficient(lane) == 0:
        return True
    coefficients = [step for variable, step in index.terms if variable is not lane]
    return (
        index.coefficient(lane) == 1
        and isinstance(lane.extent, int)
        and lane.extent >= GPU.least_warp_elements
        and all(divides(count, step) for step in (*coefficients, index.constant, lane.extent))
    )


def _accesses(statements: Iterable[Stmt], lane: Axis | None) -> Iterator[tuple[Load | Store, Axis]]:
    for statement in statements:
        if isinstance(statement, Loop):
            opens = lane is None and is_tile(statement)
            yield from _accesses(statement.body, statement.axis if opens else lane)
        elif isinstance(statement, (Load, Store)) and lane is not None:
            yield statement, lane
