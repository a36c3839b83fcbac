"""Products that are added up: which are one tile, and that it is the sum."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hemstitch.driver.verified import difference
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import Contract, Let, Loop, statements
from hemstitch.matmul.lowering.batch_reduce import batch_reductions
from hemstitch.matmul.lowering.blocking import block_matmuls
from hemstitch.matmul.lowering.tile_matmul import TileMatmul
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

OPTIONS = {"strict": True, "check": True}


def product(name: str) -> Contract:
    return Contract(name, Axis("k", 4), (), "l", "r", DType.F32, DType.F32)


def let(name: str, op: Op, *operands: str, dtype: DType = DType.F32) -> Let:
    return Let(name, op, operands, dtype, dtype)


A, B, C = map(product, "abc")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([A, B, C, let("s", Op.ADD, "b", "a"), let("t", Op.ADD, "s", "c")], {"t": "bac"}),
        ([A, B, let("s", Op.ADD, "a", "b"), C, let("t", Op.MUL, "s", "c")], {"s": "ab", "c": "c"}),
        ([A, B, let("s", Op.ADD, "a", "b"), let("t", Op.EXP, "a")], {"a": "a", "b": "b"}),
        ([A, B, let("s", Op.SUB, "a", "b")], {"a": "a", "b": "b"}),
        ([A, let("s", Op.ADD, "a", "a")], {"a": "a"}),
        ([A, B, let("s", Op.ADD, "a", "b", dtype=DType.F64)], {"a": "a", "b": "b"}),
        ([A, let("x", Op.EXP, "y"), let("s", Op.ADD, "a", "x")], {"a": "a"}),
    ],
)
def test_what_is_added_up_and_not_read_otherwise(body, expected) -> None:
    products = {
        reduction.name: "".join(contract.name for contract in reduction.contracts)
        for reduction in batch_reductions(body)
    }
    assert products == expected


def layer(x: Tensor, weight: Tensor) -> Tensor:
    """Over a text of words that lie side by side."""
    return torch.relu(F.conv1d(x.transpose(1, 2), weight))


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize(("channels", "sums"), [(40, [3]), (300, [3]), (400, [1, 1, 1])])
@pytest.mark.parametrize("features", [20, 64])
def test_a_convolution_along_a_text(channels: int, sums: list[int], features: int) -> None:
    """With more channels than go by at once each product has a tile in memory."""
    x, weight = torch.randn(3, 50, channels), torch.randn(features, channels, 3)
    machine = generic_cpu(2, 16)
    fast = {dtype: replace(units, share=100.0) for dtype, units in machine.matrix_units.items()}
    ((_, plan),) = plans_of(layer, (x, weight), replace(machine, matrix_units=fast))
    blocks = [block_matmuls(step.stitched.kernel, 2) for step in plan.kernels]
    loops = [s for kernel in blocks for s in statements(kernel) if isinstance(s, Loop)]
    tiles = [tile for tile in map(TileMatmul.of, loops) if tile is not None]
    assert [len(tile.operands) for tile in tiles] == sums
    torch._dynamo.reset()
    result = torch.compile(layer, backend="hemstitch", options=OPTIONS)(x, weight)
    assert difference(result, layer(x.double(), weight.double())) < 1e-6
