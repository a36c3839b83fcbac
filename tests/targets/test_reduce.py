"""Joining vectors and lanes gives what PyTorch's reductions give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hemstitch.ir.graph import Op
from hemstitch.ir.ops import identity
from hemstitch.ir.types import DType
from hemstitch.targets.cpu.conversions import COMPUTE
from hemstitch.targets.cpu.elementwise import TABLES
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.vector_reductions import (
    combine,
    combine_arg,
    horizontal,
    horizontal_arg,
)
from tests.targets.vector_harness import assembly, compile_host

NUMBERS = [dtype for dtype in TABLES if dtype is not DType.BOOL]
SIMPLE = [(dtype, op) for dtype in NUMBERS for op in (Op.SUM, Op.PROD, Op.MAX, Op.MIN)]
SIMPLE += [(DType.BOOL, op) for op in (Op.SUM, Op.PROD, Op.MAX, Op.MIN, Op.ANY, Op.ALL)]
REFERENCE = {
    Op.SUM: np.sum,
    Op.PROD: np.prod,
    Op.MAX: np.max,
    Op.MIN: np.min,
    Op.ANY: np.any,
    Op.ALL: np.all,
}
WIDTHS = [4, 8, 16, 32]


def numpy_type(dtype: DType) -> np.dtype:
    names = {DType.BOOL: "bool", DType.U8: "uint8", DType.F32: "float32", DType.F64: "float64"}
    return np.dtype(names.get(dtype) or f"int{8 * dtype.bytes}")


def vectors(dtype: DType, width: int, count: int = 64) -> np.ndarray:
    """Small whole numbers, so that sums are exact; some NaN; many equals."""
    random = np.random.default_rng(width)
    if dtype is DType.BOOL:
        shares = random.choice([0.0, 0.1, 0.9, 1.0], (count, 1))
        return random.random((count, width)) < shares
    x = random.integers(0 if dtype is DType.U8 else -4, 5, (count, width))
    x = x.astype(numpy_type(dtype))
    if dtype.is_float:
        x[random.random(x.shape) < 0.02] = np.nan
        x[random.random(x.shape) < 0.05] = -np.inf
        x[0] = -np.inf
    return x


def expected(op: Op, x: np.ndarray) -> np.ndarray:
    return (
        REFERENCE[op](x, axis=1, dtype=x.dtype)
        if op in (Op.SUM, Op.PROD)
        else REFERENCE[op](x, axis=1)
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype, op", SIMPLE, ids=str)
def test_lanes_join(dtype: DType, op: Op, width: int) -> None:
    x = vectors(dtype, width)
    function = compile_host(
        width, [COMPUTE[dtype]], lambda e, v: [e.splat(horizontal(e, op, dtype, v[0]))]
    )
    (result,) = function(x.ravel())
    np.testing.assert_array_equal(result.view(x.dtype)[::width], expected(op, x))


@pytest.mark.parametrize("dtype, op", SIMPLE, ids=str)
def test_the_identity_changes_nothing(dtype: DType, op: Op) -> None:
    x = vectors(dtype, 16)

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        nothing = e.constant(identity(op, dtype), COMPUTE[dtype])
        return [combine(e, op, dtype, nothing, v[0]), combine(e, op, dtype, v[0], nothing)]

    for result in compile_host(16, [COMPUTE[dtype]], body)(x.ravel()):
        np.testing.assert_array_equal(result.view(x.dtype), x.ravel())
    assert type(identity(op, dtype)) is {"b": bool, "i": int, "u": int, "f": float}[x.dtype.kind]


@pytest.mark.parametrize("op", [Op.ARGMAX, Op.ARGMIN])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_the_best_lane_is_eagers(dtype: DType, width: int, op: Op) -> None:
    """Two vectors, joined in either order, then their lanes."""
    x = vectors(dtype, 2 * width)
    low, high = x[:, :width].ravel(), x[:, width:].ravel()

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        first = (v[0], e.lane_numbers())
        second = (v[1], e.binary("add", e.lane_numbers(), e.constant(width, "i64")))
        masked = (
            e.constant(identity(op, dtype), COMPUTE[dtype]),
            e.constant((1 << 63) - 1, "i64"),
        )
        results = []
        for best, new in ((first, second), (second, first)):
            best = combine_arg(e, op, dtype, combine_arg(e, op, dtype, masked, best), new)
            results += [e.splat(part) for part in horizontal_arg(e, op, dtype, best)]
        return results

    results = compile_host(width, [COMPUTE[dtype]] * 2, body)(low, high)
    function = torch.argmax if op is Op.ARGMAX else torch.argmin
    index = function(torch.from_numpy(x), dim=1).numpy()
    value = np.take_along_axis(x, index[:, None], axis=1)[:, 0]
    for k in (0, 2):
        np.testing.assert_array_equal(results[k].view(x.dtype)[::width], value)
        np.testing.assert_array_equal(results[k + 1][::width], index)


@pytest.mark.parametrize(
    "triple, cpu", [("x86_64-linux-gnu", "haswell"), ("aarch64-linux-gnu", "neoverse-n1")]
)
def test_other_hosts_can_select_everything(triple: str, cpu: str) -> None:
    for dtype, op in SIMPLE:

        def body(e: Emitter, v: list[Value], dtype: DType = dtype, op: Op = op) -> list[Value]:
            horizontal(e, op, dtype, combine(e, op, dtype, *v))
            return []

        assert "ret" in assembly(8, [COMPUTE[dtype]] * 2, body, triple, cpu)
