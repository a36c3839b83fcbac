"""What is computed twice becomes one, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import (
    Buffer,
    Constant,
    Contract,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Role,
    Stmt,
    Store,
    walk,
)
from hemstitch.kernel_ir.passes.common_subexpressions import without_common_subexpressions
from hemstitch.matmul.lowering.blocking import block_nest
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

IN = Buffer("in", DType.F32, Role.INPUT, 64)
OUT, OTHER = (Buffer(name, DType.F32, Role.OUTPUT, 64) for name in ("out", "other"))
ROW = Axis("row", 8)


def nest(*body: Stmt, prologue: tuple[Stmt, ...] = ()) -> Nest:
    return Nest((ROW,), prologue, body, (), 1, "")


def lanes(*body: Stmt, axis: Axis) -> Loop:
    return Loop(axis, body, lanes=True)


def add(name: str, first: str, second: str) -> Let:
    return Let(name, Op.ADD, (first, second), DType.F32, DType.F32)


def fill(name: str, to: Buffer, source: Buffer = IN, size: int = 8) -> Loop:
    """Twice what is in `source`, in loops with lanes of their own."""
    axis = Axis(f"lanes of {name}", size)
    load = Load(f"{name} loaded", source, at(axis))
    return lanes(load, add(name, load.name, load.name), Store(to, at(axis), name), axis=axis)


def test_loops_that_read_the_same_are_one() -> None:
    (loop,) = without_common_subexpressions(nest(fill("a", OUT), fill("b", OTHER))).body
    assert isinstance(loop, Loop)
    kinds = [type(statement) for statement in loop.body]
    assert kinds == [Load, Let, Store, Store]
    assert {s.value for s in loop.body if isinstance(s, Store)} == {"a"}


@pytest.mark.parametrize(
    ("why", "second"),
    [
        ("it reads something else", fill("b", OTHER, replace(IN))),
        ("it reads what the first one stores", fill("b", OTHER, OUT)),
        ("both store there", fill("b", OUT)),
        ("it has other lanes", fill("b", OTHER, size=4)),
        ("it is serial", replace(fill("b", OTHER), lanes=False)),
        ("it ends where values say", replace(fill("b", OTHER), between=("x", "y"))),
    ],
)
def test_others_stay_apart(why: str, second: Loop) -> None:
    first = fill("a", OUT)
    assert without_common_subexpressions(nest(first, second)).body == (first, second), why


def test_what_may_have_changed_is_loaded_again() -> None:
    place = Index((), 3)
    body = (
        Load("a", OUT, place),
        Store(OUT, place, "x"),
        Load("b", OUT, place),
        add("c", "a", "b"),
    )
    assert without_common_subexpressions(nest(*body)).body == body
    same = (Load("a", IN, place), Load("b", IN, place), Store(OUT, place, "b"))
    assert without_common_subexpressions(nest(*same)).body == (same[0], Store(OUT, place, "a"))


def test_masks_and_zeros() -> None:
    """A load that gives zeros by itself; another zero, and another mask, are no such zeros."""
    zeros = (Constant("zero", 0.0, DType.F32), Constant("minus", -0.0, DType.F32))
    load = Load("x", IN, at(ROW), "mask")
    chosen = [
        Let(name, Op.WHERE, (mask, "x", other), DType.F32, DType.F32)
        for name, mask, other in [("a", "mask", "zero"), ("b", "mask", "minus"), ("c", "m", "zero")]
    ]
    stores = [Store(OUT, Index((), k), name) for k, name in enumerate("abc")]
    simplified = without_common_subexpressions(nest(load, *chosen, *stores, prologue=zeros))
    assert simplified.prologue == zeros
    assert simplified.body == (load, *chosen[1:], replace(stores[0], value="x"), *stores[1:])


def test_what_is_made_in_a_loop_is_not_known_behind_it() -> None:
    inside = Loop(Axis("k", 2), (Position("a", at(ROW)), Store(OUT, at(ROW), "a")), lanes=False)
    behind = (Position("b", at(ROW)), Store(OTHER, at(ROW), "b"))
    assert without_common_subexpressions(nest(inside, *behind)).body == (inside, *behind)
    assert without_common_subexpressions(nest(*behind, inside)).body[-1].body == (
        Store(OUT, at(ROW), "b"),
    )


@pytest.mark.usefixtures("kernels_multiply")
def test_each_element_of_a_tile_is_loaded_once() -> None:
    """Of an image, into the sums that Winograd's products multiply."""
    x = torch.randn(4, 64, 16, 16).contiguous(memory_format=torch.channels_last)
    inputs = x, torch.randn(64, 64, 3, 3)
    ((_, plan),) = plans_of(lambda x, w: F.conv2d(x, w, padding=1), inputs, generic_cpu(2, 16))
    nests = [n for step in plan.kernels for n in step.stitched.kernel.phases[-1].nests]
    (multiplying,) = (n for n in nests if any(isinstance(s, Contract) for s in walk(n.body)))
    blocked = block_nest(multiplying, 2)
    assert blocked is not None
    fills = [
        s
        for s in walk(without_common_subexpressions(blocked.nest).body)
        if isinstance(s, Loop) and s.lanes and _fills(s)
    ]
    assert [sum(isinstance(s, Load) for s in loop.body) for loop in fills] == [24]


def _fills(loop: Loop) -> bool:
    return any(isinstance(s, Store) and s.buffer.name.endswith("_left") for s in loop.body)
