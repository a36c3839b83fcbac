"""Squares of elements cross from one order of axes to another."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import Buffer, Let, Load, Loop, Role, Store
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.memory import load_transposed, store_interleaved, store_transposed
from hemstitch.targets.cpu.register_transpose import transposable_lanes, transposed
from tests.compiled import watched
from tests.effort import some
from tests.targets.vector_harness import array_pointer, compile_host

WIDTHS = some([4, 8, 16], [32])  # the widest takes LLVM seconds
STRIDE = 67


@pytest.mark.parametrize("width", [4, 8])
def test_transposed(width: int) -> None:
    rows = [np.arange(width, dtype=np.int32) + 100 * k for k in range(width)]
    columns = compile_host(width, ["i32"] * width, transposed)(*rows)
    np.testing.assert_array_equal(np.stack(columns), np.stack(rows).T)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("step", [1, 2])
def test_squares(width: int, dtype: DType, step: int) -> None:
    """target[j, k] = -source[k, j * step] of the first lanes, and nothing else is touched."""
    for lanes in {1, width // 2 + 1, width}:
        torch_dtype = torch.float32 if dtype is DType.F32 else torch.bfloat16
        source = torch.randn(width * STRIDE).to(torch_dtype)
        target = torch.zeros(width * STRIDE, dtype=torch_dtype)

        def body(e: Emitter, v: list[Value], lanes: int = lanes) -> list[Value]:
            values = load_transposed(e, dtype, array_pointer(e, 9), STRIDE, lanes, step)
            values = [e.fneg(value) for value in values]
            store_transposed(e, dtype, array_pointer(e, 10), e.i64(STRIDE), lanes, values)
            return []

        function = compile_host(width, ["i1"], body)
        arrays = [x.view(torch.uint8).numpy() for x in (source, target)]
        function(np.zeros(width, bool), *arrays, n=width)
        expected = torch.zeros(width, STRIDE, dtype=torch_dtype)
        expected[:lanes, :width] = -source.view(width, STRIDE)[:lanes, : width * step : step]
        assert torch.equal(target.view(width, STRIDE), expected)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_twins(width: int, masked: bool, dtype: DType) -> None:
    values = torch.randn(2, width).to(TORCH_DTYPES[dtype])
    mask = np.arange(width) < width - 1
    target = torch.zeros(2 * width + 1, dtype=TORCH_DTYPES[dtype])

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        store_interleaved(e, dtype, array_pointer(e, 11), (v[1], v[2]), v[0] if masked else None)
        return []

    function = compile_host(width, ["i1", "float", "float"], body)
    function(mask, *values.float().numpy(), target.view(torch.uint8).numpy(), n=width)
    expected = values.t() * torch.from_numpy(mask)[:, None] if masked else values.t()
    assert torch.equal(target[:-1], expected.flatten())
    assert target[-1] == 0


def test_rest_of_the_axis() -> None:
    """Whatever is left of the axis behind whole squares, and of the lanes."""
    lengths = (8, 9, 11, 13, 15, 22)

    def program(*values: torch.Tensor) -> list[torch.Tensor]:
        kinds = (torch.float64, torch.int64, torch.bfloat16)
        return [x.to(kind, memory_format=torch.channels_last) for x in values for kind in kinds]

    values = [torch.randn(2, length, 3, 7) for length in lengths]
    compiled, _ = watched(program)
    for result, expected in zip(compiled(*values), program(*values)):
        assert result.stride() == expected.stride()
        assert torch.equal(result, expected)


def test_values_of_each_row() -> None:
    """A bias along the outer axis, as of a layer whose weights are the left operand."""
    row, lane = Axis("row", 32), Axis("lane", 128)
    tile = Buffer("tile", DType.F32, Role.TASK, 32 * 128)
    bias, result = (
        Buffer("bias", DType.F32, Role.INPUT, 32),
        Buffer("y", DType.F32, Role.OUTPUT, 4096),
    )
    value = Load("b", bias, at(row))
    lanes = Loop(
        lane,
        (
            Load("x", tile, Index(((row, 128), (lane, 1)))),
            Let("z", Op.ADD, ("x", "b"), DType.F32, DType.F32),
            Store(result, Index(((row, 1), (lane, 32))), "z"),
        ),
        lanes=True,
    )
    crossed = transposable_lanes(row, (value, lanes), 16)
    assert crossed is not None
    assert crossed.body == (value, *lanes.body)
    assert transposable_lanes(row, (value, Store(result, at(row), "b"), lanes), 16) is None
    assert transposable_lanes(row, (), 16) is None


@pytest.mark.usefixtures("kernels_multiply")
def test_layers_of_few_rows_store_whole_vectors() -> None:
    """The weights are the left operand, so that rows of the result are columns of the product."""
    layer, x = torch.nn.Linear(512, 2048).bfloat16(), torch.randn(64, 512).bfloat16()
    with torch.no_grad():
        compiled, report = watched(lambda x: torch.relu(layer(x)))
        torch.testing.assert_close(compiled(x), torch.relu(layer(x)), rtol=2e-2, atol=2e-2)
    (kernel,) = report.kernels
    assert "dot" in kernel.ops
    assert not re.search(r"store (i16|half|bfloat) ", kernel.source)
