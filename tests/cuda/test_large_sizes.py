"""Sizes whose products need 64 bits: in Triton's own form of a kernel nothing that is made of them
has 32. Nothing runs, so that no memory is needed."""

from __future__ import annotations

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

from hemstitch.ir.dims import evaluate
from hemstitch.planning import planner
from hemstitch.runtime.gpu.grid import grid_of
from hemstitch.runtime.gpu.loaded_kernel import build, variant_of
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of
from tests.lowered import triton

ROWS, COLUMNS = 14_200, 151_936  # logits of a long text: more than 2 ** 31


def programs_of(function, *arguments):
    for _, plan in plans_of(function, arguments, generic_gpu()):
        for step in plan.kernels:
            yield triton(step.stitched.kernel, step.groups[0].hint, 132)


def narrow_arithmetic(program, sizes):
    """Operations on 32 bits that have a size in them."""
    text = build(program, variant_of(True, sizes), "sm_90").asm["ttir"]
    names = "|".join(str(size) for size in program.sizes)
    return re.findall(rf"arith\.\w+ .*%(?:{names})\b.* : i32", text)


def test_products_of_sizes_have_64_bits():
    with FakeTensorMode():
        x = torch.randn(ROWS, COLUMNS, dtype=torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 0)
        functions = (
            lambda x: x.tanh() + 1,
            lambda x: x.float().sum(0),
            lambda x: x.float().argmax(),
        )
        for function in functions:
            for program in programs_of(function, x):
                sizes = (ROWS,) * len(program.sizes)
                assert sizes and not narrow_arithmetic(program, sizes)


def test_as_many_programs_as_tiles():
    with FakeTensorMode():
        x = torch.randn(ROWS, COLUMNS, dtype=torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 0)
        (program,) = programs_of(lambda x: x.tanh() + 1, x)
    sizes = {str(size): ROWS for size in program.sizes}
    assert evaluate(program.tiles, sizes) * 4096 >= ROWS * COLUMNS
    assert grid_of(program, (ROWS,), None).programs == evaluate(program.tiles, sizes)


def test_positions_among_more_elements_than_are_in_memory():
    with FakeTensorMode():
        for size, bits in ((300, 32), (70_000, 64)):
            x = torch.randn(size)
            pairs = programs_of(lambda x: (x[:, None] + x[None]).flatten().argmax(), x)
            assert all(f"zero = tl.zeros([1, 1], tl.int{bits})" in each.text for each in pairs)


def test_sums_of_columns_leave_the_tile_of_a_product(monkeypatch):
    """What is filled with zeros once, before the first row, is no tile of rows."""
    monkeypatch.setattr(planner, "without_gain", lambda opened, clustering: set())

    def accumulated(function):
        with FakeTensorMode():
            x, w = (torch.randn(s, 1024, dtype=torch.bfloat16) for s in (4096, 1024))
            text = "\n".join(each.text for each in programs_of(function, x, w))
        return set(re.findall(r"dot\d+ = tl.zeros\((\[.*?\])", text))

    alone = accumulated(lambda x, w: torch.relu(x @ w.T))
    assert alone
    assert accumulated(lambda x, w: (y := torch.relu(x @ w.T), y.sum(0))) == alone
