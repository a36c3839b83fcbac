"""Lanes beyond the end of a loop read nothing, also where all lanes read one element."""

from __future__ import annotations

import re

from hemstitch.codegen.llvm.kernel import Target, print_kernel
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel.index import Axis, Index, at
from hemstitch.kernel.nodes import (
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
    text = print_kernel(kernel, Target(8, 1, False)).text
    (mask,) = re.findall(r"reduce\.or\.v8i1\(<8 x i1> (%\w+)\)", text)
    (first,) = re.findall(rf"{mask} = and <8 x i1> (%\w+), %\w+", text)
    (compared,) = re.findall(rf"{first} = icmp slt <8 x i64> (<.*?>), ", text)
    assert compared == f"<{', '.join(f'i64 {lane}' for lane in range(8))}>"
