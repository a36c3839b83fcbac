"""Lanes beyond the end of a loop read nothing, also where all lanes read one element."""

from __future__ import annotations

import re

import pytest

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import (
    Buffer,
    Constant,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Phase,
    Position,
    Role,
    Store,
)
from hemstitch.targets.cpu.description import Target
from tests.lowered import llvm


def test_a_condition_that_only_they_meet() -> None:
    """As a padding from the second lane on does, of a loop of two."""
    source, result = (Buffer(role.value, DType.F32, role, 2) for role in (Role.INPUT, Role.OUTPUT))
    axis = Axis("lane", 2)
    body = (
        Position("place", at(axis)),
        Let("is_inside", Op.GE, ("place", "two"), DType.I64, DType.BOOL),
        Load("value", source, Index((), 0), "is_inside"),
        Store(result, at(axis), "value"),
    )
    nest = Nest((), (Constant("two", 2, DType.I64),), (Loop(axis, body, lanes=True),), (), 1, "")
    kernel = Kernel("kernel", (source, result), (Phase((nest,)),))
    text = llvm(kernel, Target(8, 1, False)).text
    (mask,) = re.findall(r"reduce\.or\.v8i1\(<8 x i1> (%\w+)\)", text)
    (lanes,) = re.findall(rf"{mask} = and <8 x i1> <(.*?)>, %\w+", text)
    assert lanes.split(", ") == ["i1 true"] * 2 + ["i1 false"] * 6


@pytest.mark.parametrize("of_rows", [True, False])
def test_a_condition_that_none_of_them_meets(of_rows: bool) -> None:
    """A row before a tensor's first, where there may be no memory, is not even addressed: to find
    that out lane by lane takes the processor hundreds of cycles."""
    source = Buffer("source", DType.F32, Role.INPUT, 32)
    result = Buffer("result", DType.F32, Role.OUTPUT, 64)
    row, lane = Axis("row", 4), Axis("lane", 16)
    before = Index(((row, 16), (lane, 1)), -32)
    body = (
        Position("place", at(row if of_rows else lane)),
        Let("is_inside", Op.GE, ("place", "two"), DType.I64, DType.BOOL),
        Load("value", source, before, "is_inside"),
        Store(result, Index(((row, 16), (lane, 1)), 0), "value"),
    )
    if of_rows:
        inner = (*body[:2], Loop(lane, body[2:], lanes=True))
    else:
        inner = (Loop(lane, body, lanes=True),)
    nest = Nest((row,), (Constant("two", 2, DType.I64),), inner, (), 1, "")
    text = llvm(Kernel("kernel", (source, result), (Phase((nest,)),)), Target(8, 1, False))
    assert bool(re.search(r"select i1 %\w+, ptr %\w+, ptr %\w+", text.text)) == of_rows
