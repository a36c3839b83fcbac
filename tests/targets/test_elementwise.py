"""Every elementwise op and cast on vectors gives what PyTorch's eager mode gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hemstitch.ir.graph import Op
from hemstitch.ir.ops import OPS, is_elementwise
from hemstitch.ir.types import DType
from hemstitch.targets.cpu.conversions import COMPUTE
from hemstitch.targets.cpu.elementwise import TABLES, apply, cast
from hemstitch.targets.cpu.emitter import Emitter, Value
from tests.targets.vector_harness import assembly, compile_host, pad

TORCH = {
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
}
INTS = [dtype for dtype in TORCH if dtype.kind.value == "int"]
FLOATS = [DType.F32, DType.F64]
ROWS = [(dtype, op) for dtype, table in TABLES.items() for op in table if op is not Op.WHERE]


def truncated_rest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """torch.fmod by C's fmod: eager's vectors give NaN where the quotient is huge."""
    return (
        torch.from_numpy(np.fmod(a.numpy(), b.numpy()))
        if a.is_floating_point()
        else torch.fmod(a, b)
    )


def remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rest = truncated_rest(a, b)
    return torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


EAGER: dict[Op, Callable[..., torch.Tensor]] = {
    Op.NOT: torch.bitwise_not,
    Op.FLOORDIV: torch.floor_divide,
    Op.TRUNCDIV: lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    Op.FMOD: truncated_rest,
    Op.REMAINDER: remainder,
    Op.SQRT: lambda x: torch.from_numpy(np.sqrt(x.numpy())),  # eager's may be MKL's: inexact
    Op.FMA: lambda a, b, c: torch.addcmul(c, a, b),
    Op.AND: torch.bitwise_and,
    Op.OR: torch.bitwise_or,
    Op.XOR: torch.bitwise_xor,
    Op.SHL: torch.bitwise_left_shift,
    Op.SHR: torch.bitwise_right_shift,
}
EXACT = {Op.SQRT, Op.RECIPROCAL, Op.RSQRT, Op.FLOORDIV, Op.TRUNCDIV, Op.FMOD, Op.REMAINDER, Op.DIV}
DIVISIONS = {Op.FLOORDIV, Op.TRUNCDIV, Op.FMOD, Op.REMAINDER}
NASTY_FLOATS = [
    *(0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 7.0, 1e-45, 1e-39, 1.1754944e-38, 1e-5),
    *(100.25, 255.0, 256.0, 8388607.5, 16777217.0, 3e9, 1e10, 1e19, 1e30, 3.4028235e38),
    *(65504.0, 65520.0, np.pi, np.inf, np.nan),
]


def nasty(dtype: DType, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_float:
        element = np.float32 if dtype is not DType.F64 else np.float64
        values = np.array(NASTY_FLOATS, element)
        fresh = (random.standard_normal(20) * 10.0 ** random.integers(-3, 6, 20)).astype(element)
        return np.concatenate([values, -values, fresh])
    element = torch.empty(0, dtype=TORCH[dtype]).numpy().dtype
    info = np.iinfo(element)
    edges = np.array([info.min, info.max, info.min + 1, info.max - 1], element)
    small = np.arange(-5 if info.min else 0, 12).astype(element)
    return np.concatenate([edges, small, random.integers(info.min, info.max, 16, element)])


def all_pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(nasty(dtype, 1), nasty(dtype, 2))
    return a.ravel(), b.ravel()


def operands(dtype: DType, op: Op) -> list[np.ndarray]:
    if OPS[op].arity == 1:
        return [nasty(dtype)]
    a, b = all_pairs(dtype)
    if op in DIVISIONS and not dtype.is_float:  # eager raises, or crashes
        overflow = (b == 0) | (b == -1) & (a == np.iinfo(a.dtype).min)
        a, b = a[~overflow], b[~overflow]
    return [a, b, np.random.default_rng(3).permutation(a)][: OPS[op].arity]


def eager(op: Op, *arrays: np.ndarray) -> np.ndarray:
    function = EAGER.get(op) or getattr(torch, op.value)
    return function(*(torch.from_numpy(array) for array in arrays)).numpy()


def assert_same(result: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit, but any NaN equals any NaN."""
    np.testing.assert_array_equal(result, expected)
    if result.dtype.kind == "f":
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(result)[number], np.signbit(expected)[number])


def run(dtype: DType, op: Op, width: int, arrays: list[np.ndarray]) -> np.ndarray:
    element = COMPUTE[dtype]
    function = compile_host(width, [element] * len(arrays), lambda e, v: [apply(e, op, dtype, *v)])
    (result,) = function(*(pad(array, width) for array in arrays))
    return result[: len(arrays[0])]


def test_the_tables_are_total() -> None:
    everything = {op for op in Op if is_elementwise(op)} - {Op.CAST, Op.CHECK}
    assert set().union(*TABLES.values()) == everything
    bits = {Op.NOT, Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHR}
    for dtype in FLOATS:
        assert set(TABLES[dtype]) == everything - bits
    inexact = set(TABLES[DType.F32]) - set(TABLES[DType.I64])
    for dtype in INTS:
        assert set(TABLES[dtype]) == everything - inexact
    assert bits - {Op.SHL, Op.SHR} < set(TABLES[DType.BOOL]) < set(TABLES[DType.U8])
    assert set(TABLES) == {dtype.compute for dtype in TORCH}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype, op", ROWS, ids=str)
def test_as_in_eager(dtype: DType, op: Op) -> None:
    arrays = operands(dtype, op)
    if dtype is DType.BOOL and op in (Op.ABS, Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC):
        expected = arrays[0]  # eager has none
    elif op in (Op.MAXIMUM, Op.MINIMUM):  # the first of equals, as clamp has it
        expected = eager(op, *reversed(arrays))
    else:
        expected = eager(op, *arrays)
    width = 8 if dtype is DType.F64 else 16
    result = run(dtype, op, width, arrays).view(expected.dtype)
    if dtype.is_float and OPS[op].flops > 2 and op not in EXACT:
        tolerance = 3e-7 if dtype is DType.F32 else 1e-15
        least = np.finfo(result.dtype).tiny  # eager's sigmoid and log1p flush denormals
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=least)
    else:
        assert_same(result, expected)


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("op", sorted(DIVISIONS, key=lambda op: op.value), ids=lambda op: op.value)
def test_integer_divisions_never_trap(dtype: DType, op: Op) -> None:
    a, b = all_pairs(dtype)
    result = run(dtype, op, 16, [a, b])
    assert not result[b == 0].any()
    if dtype is not DType.U8:
        overflow = (b == -1) & (a == np.iinfo(a.dtype).min)
        assert overflow.any()
        expected = a[overflow] if op in (Op.FLOORDIV, Op.TRUNCDIV) else 0
        np.testing.assert_array_equal(result[overflow], expected)


@pytest.mark.parametrize("dtype", TABLES, ids=str)
def test_where(dtype: DType) -> None:
    x, y = (pad(array, 16) for array in all_pairs(dtype))
    condition = np.random.default_rng(0).random(len(x)) < 0.5
    element = COMPUTE[dtype]
    function = compile_host(
        16, ["i1", element, element], lambda e, v: [apply(e, Op.WHERE, dtype, *v)]
    )
    (result,) = function(condition, x, y)
    assert_same(result.view(x.dtype), np.where(condition, x, y))


def representation(x: torch.Tensor, dtype: DType) -> np.ndarray:
    return (x.float() if dtype in (DType.F16, DType.BF16) else x).numpy()


@pytest.mark.parametrize("target", TORCH, ids=str)
@pytest.mark.parametrize("source", TORCH, ids=str)
def test_cast_as_in_eager(source: DType, target: DType) -> None:
    width = 16
    values = nasty(source)
    if source.is_float:  # denormals and ties of the half types
        ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 6e-8, 3e-40])
        values = np.concatenate([values, ties.astype(values.dtype), -ties.astype(values.dtype)])
    x = torch.from_numpy(pad(values, width)).to(TORCH[source])
    expected = representation(x.to(TORCH[target]), target)
    function = compile_host(width, [COMPUTE[source]], lambda e, v: [cast(e, v[0], source, target)])
    (result,) = function(representation(x, source))
    assert_same(result.view(expected.dtype), expected)


@pytest.mark.parametrize(
    "triple, cpu", [("x86_64-linux-gnu", "haswell"), ("aarch64-linux-gnu", "neoverse-n1")]
)
def test_other_hosts_can_select_everything(triple: str, cpu: str) -> None:
    for dtype in TABLES:

        def everything(e: Emitter, v: list[Value], dtype: DType = dtype) -> list[Value]:
            for op in TABLES[dtype]:
                condition = [e.compare("eq", v[2], v[2])] if op is Op.WHERE else []
                numbers = [v[0], v[1], v[0]][: OPS[op].arity - len(condition)]
                apply(e, op, dtype, *condition, *numbers)
            for target in TORCH:
                cast(e, v[0], dtype, target)
            return []

        element = COMPUTE[dtype]
        assert "ret" in assembly(8, [element, element, "i64"], everything, triple, cpu)


@pytest.mark.parametrize(
    "source, instruction", [(DType.F32, "vcvttps2dq"), (DType.F64, "vcvttpd2dq")]
)
def test_floats_become_i64_by_vectors(source: DType, instruction: str) -> None:
    def whole(e: Emitter, v: list[Value]) -> list[Value]:
        return [cast(e, v[0], source, DType.I64)]

    x = torch.linspace(-(2.0**31) - 9, 2.0**31 + 9, 8 * 64, dtype=TORCH[source])
    x[8] = float("nan")
    x[24:32] = torch.tensor([-(2.0**31), 2.0**31, 2.0**62, -(2.0**63), 2.0**63, 0.9, -0.9, -0.0])
    (result,) = compile_host(8, [COMPUTE[source]], whole)(x.numpy())
    assert_same(result, x.long().numpy())
    listing = assembly(8, [COMPUTE[source]], whole, "x86_64-linux-gnu", "haswell")
    assert instruction in listing
