"""What is left of a lane loop after its whole turns: whole vectors, and the first lanes of one."""

from __future__ import annotations

import re

import pytest

from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index
from hemstitch.kernel_ir.nodes import Buffer, Kernel, Load, Loop, Nest, Phase, Role, Store
from hemstitch.targets.cpu.description import Target
from tests.lowered import llvm

LANES = 8


def printed(extent: int, dtype: DType) -> str:
    """A copy of rows."""
    row, lane = Axis("row", 4), Axis("lane", extent)
    source, result = (Buffer(r.value, dtype, r, 4 * extent) for r in (Role.INPUT, Role.OUTPUT))
    place = Index(((row, extent), (lane, 1)), 0)
    loop = Loop(lane, (Load("value", source, place), Store(result, place, "value")), lanes=True)
    nest = Nest((row,), (), (loop,), (), 1, "")
    kernel = Kernel("kernel", (source, result), (Phase((nest,)),))
    return llvm(kernel, Target(LANES, 1, False)).text


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I64], ids=str)
@pytest.mark.parametrize("extent", [1, 3, 7, 8, 50, 65, 95])
def test_no_store_has_a_mask(extent: int, dtype: DType) -> None:
    text = printed(extent, dtype)
    assert "call void @llvm.masked.store" not in text
    whole = len(re.findall(rf"store <{LANES} x ", text))
    assert whole == min(extent // LANES, 4) + (extent // LANES % 4 if extent > 4 * LANES else 0)


@pytest.mark.parametrize("extent", [3, 7, 50, 65])
def test_the_first_lanes_are_stored_in_parts(extent: int) -> None:
    text = printed(extent, DType.F32)
    parts = [int(size) for size in re.findall(r"store <(\d+) x float>", text) if int(size) < LANES]
    rest = extent % LANES
    stored = parts or [1] * len(re.findall(r"store float ", text))
    assert sorted(stored, reverse=True) == stored
    assert sum(stored) == rest
