"""Contractions as serial reduction loops, for targets that have no tile matmul."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.nodes import (
    Accumulate,
    Contract,
    Finish,
    Init,
    Kernel,
    Let,
    Loop,
    Nest,
    Phase,
    Stmt,
    statements,
)
from hemstitch.matmul.lowering.tile_matmul import TileMatmul


def expand_contractions(kernel: Kernel) -> Kernel:
    """The kernel with a reduction loop for each `Contract`, except in tile matmuls."""
    if not any(isinstance(statement, Contract) for statement in statements(kernel)):
        return kernel
    return replace(kernel, phases=tuple(map(_phase, kernel.phases)))


def _phase(phase: Phase) -> Phase:
    return replace(phase, nests=tuple(map(_nest, phase.nests)))


def _nest(nest: Nest) -> Nest:
    return replace(nest, body=tuple(_statements(nest.body)))


def _statements(statements: Iterable[Stmt]) -> Iterator[Stmt]:
    for statement in statements:
        match statement:
            case Contract():
                yield from _loop(statement)
            case Loop(body=body) if TileMatmul.of(statement) is None:
                yield replace(statement, body=tuple(_statements(body)))
            case _:
                yield statement


def _loop(contract: Contract) -> Iterator[Stmt]:
    accumulator, step = f"{contract.name}_sum", f"{contract.name}_step"
    operands = (contract.left, contract.right)
    multiply = Let(step, Op.MUL, operands, contract.dtype, contract.dtype)
    yield Init(accumulator, Op.SUM, contract.dtype, across=False)
    body = (*contract.body, multiply, Accumulate(accumulator, step))
    yield Loop(contract.axis, body, lanes=False)
    yield Finish(contract.name, accumulator)
