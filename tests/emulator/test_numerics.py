"""What the emulator computes, against torch, float64 and exact fractions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")

from hemstitch.errors import UnsupportedError
from testing.emulator import emulate
from tests.emulator import kernels

ALL_BF16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)


def random_bits(count: int, seed: int = 0) -> torch.Tensor:
    """Floats of every size and sign, NaN and infinity too."""
    bits = np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)
    return torch.from_numpy(bits.view(np.float32))


def ties() -> torch.Tensor:
    """Halfway between two bf16, and next to it."""
    upper = np.arange(1 << 16, dtype=np.uint32)[::7] << 16
    return torch.from_numpy(
        np.concatenate([upper + 0x7FFF, upper + 0x8000, upper + 0x8001]).view("f4")
    )


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit for bit; any NaN equals any other."""
    nan = expected.isnan()
    words = {2: torch.int16, 4: torch.int32}[found.element_size()]
    return bool(
        torch.equal(found.isnan(), nan)
        and torch.equal(found[~nan].view(words), expected[~nan].view(words))
    )


def cast(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    target = torch.empty(source.shape, dtype=dtype)
    count, block = source.numel(), 8192
    emulate(
        kernels.cast,
        -(-count // block),
        {"source": source, "target": target, "n": count, "BLOCK": block},
    )
    return target


def test_every_bf16_becomes_the_same_f32_and_comes_back() -> None:
    wide = cast(ALL_BF16, torch.float32)
    assert same(wide, ALL_BF16.float())
    assert same(cast(wide, torch.bfloat16), ALL_BF16)


@pytest.mark.parametrize("values", [random_bits(1 << 18), ties()], ids=["random", "ties"])
def test_f32_to_bf16_rounds_to_nearest_even(values: torch.Tensor) -> None:
    assert same(cast(values, torch.bfloat16), values.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64, torch.int8])
def test_bf16_to_and_from_other_types(dtype: torch.dtype) -> None:
    values = torch.linspace(-100, 100, 777).bfloat16()
    assert torch.equal(cast(values, dtype), values.to(dtype))
    back = torch.linspace(-100, 100, 777).to(dtype)
    assert same(cast(back, torch.bfloat16), back.to(torch.bfloat16))


def test_f32_to_bf16_towards_zero() -> None:
    values = random_bits(1024)
    found = torch.empty(1024, dtype=torch.bfloat16)
    emulate(kernels.cast_towards_zero, 1, {"source": values, "target": found, "BLOCK": 1024})
    cut = (values.view(torch.int32) & -65536).view(torch.float32)
    assert same(found, torch.where(values.isnan(), values, cut).bfloat16())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_floats_to_integers_saturate(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    inf = float("inf")
    values = torch.tensor([float("nan"), inf, -inf, 1e30, -1e30, 2.9, -0.9, 7.0])
    nan = info.min if dtype == torch.int64 else 0
    assert cast(values, dtype).tolist() == [
        *(nan, info.max, info.min, info.max, info.min, 2, 0, 7),
    ]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_a_wide_nan_is_the_least_integer(dtype: torch.dtype) -> None:
    """A byte is what remains of a wider one."""
    values = torch.tensor([float("nan"), 5.0], dtype=torch.float64)
    least = 0 if dtype == torch.int8 else torch.iinfo(dtype).min
    assert cast(values, dtype).tolist() == [least, 5]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", torch.add),
        ("sub", torch.sub),
        ("mul", torch.mul),
        ("div", torch.div),
        ("neg", lambda a, b: -a),
        ("abs", lambda a, b: a.abs()),
        ("scaled", lambda a, b: a * 2.5 + 1.0),
        ("maximum", torch.fmax),
        ("minimum", torch.fmin),
        ("clamp", lambda a, b: a.clamp(b - 1.0, b + 1.0)),
        ("where", lambda a, b: torch.where(a < b, a, b)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_arithmetic_rounds_as_torch_does(name: str, expected: object, dtype: torch.dtype) -> None:
    a, b = (torch.randn(2048, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (1, 2))
    a[:3] = torch.tensor([float("inf"), 1.0, 1.0] if name == "neg" else [float("inf"), 0.0, -0.0])
    found = torch.empty(2048, dtype=dtype)
    selects = name in ("maximum", "minimum", "clamp", "where")
    kernel = kernels.selection if selects else kernels.arithmetic
    emulate(kernel, 2, {"x": a, "y": b, "out": found, "OPERATION": name, "BLOCK": 1024})
    assert same(found, expected(a, b))  # type: ignore[operator]


def test_the_sign_of_a_negated_zero_depends_on_the_version() -> None:
    """-x is 0 - x in Triton 3.6, on hardware too."""
    zeros, found = torch.zeros(2), torch.empty(2)
    emulate(
        kernels.arithmetic,
        1,
        {"x": zeros, "y": zeros, "out": found, "OPERATION": "neg", "BLOCK": 2},
    )
    assert found.signbit().all() == (triton.__version__ != "3.6.0")


def test_the_larger_of_a_number_and_nan_is_the_number() -> None:
    a, b = torch.full((4,), float("nan")), torch.tensor([1.0, float("nan"), -1.0, 0.0])
    found = torch.empty(4)
    for name in ("maximum", "minimum"):
        emulate(kernels.selection, 1, {"x": a, "y": b, "out": found, "OPERATION": name, "BLOCK": 4})
        assert same(found, b)
    emulate(kernels.selection, 1, {"x": a, "y": b, "out": found, "OPERATION": "clamp", "BLOCK": 4})
    assert same(found, b - 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_fused_multiply_add_in_a_kernel(dtype: torch.dtype) -> None:
    a, b = torch.randn(1024).to(dtype), torch.randn(1024).to(dtype)
    found = torch.empty(1024, dtype=dtype)
    emulate(kernels.selection, 1, {"x": a, "y": b, "out": found, "OPERATION": "fma", "BLOCK": 1024})
    assert same(found, (a.double() * b.double() + a.double()).to(dtype))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exp", torch.exp),
        ("exp2", torch.exp2),
        ("log", lambda x: x.abs().log()),
        ("erf", torch.erf),
        ("rsqrt", lambda x: x.abs().rsqrt()),
        ("sin", torch.sin),
        ("floor", torch.floor),
    ],
)
def test_functions_are_rounded_once(name: str, expected: object) -> None:
    x = torch.randn(1024) * 3
    found = torch.empty(1024)
    emulate(kernels.unary, 1, {"x": x, "out": found, "OPERATION": name, "BLOCK": 1024})
    assert same(found, expected(x.double()).float())  # type: ignore[operator]


def test_a_function_of_the_standard_library() -> None:
    x, found = torch.randn(64), torch.empty(64)
    emulate(kernels.unary, 1, {"x": x, "out": found, "OPERATION": "sigmoid", "BLOCK": 64})
    torch.testing.assert_close(found, x.sigmoid(), rtol=1e-6, atol=0)


def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.dtype, precision: str) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    found = torch.empty(m, n, dtype=out)
    arguments = {"a": a, "b": b, "out": found, "M": m, "N": n, "K": k, "PRECISION": precision}
    emulate(kernels.product, 1, arguments)
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_product_of_matrices(dtype: torch.dtype) -> None:
    a, b = torch.randn(16, 64).to(dtype), torch.randn(64, 32).to(dtype)
    assert torch.equal(multiply(a, b, torch.float32, "ieee"), (a.double() @ b.double()).float())


def test_a_product_in_tf32_sees_ten_bits() -> None:
    a, b = torch.randn(16, 64), torch.randn(64, 16)
    cut = [(x.view(torch.int32) & -8192).view(torch.float32).double() for x in (a, b)]
    found = multiply(a, b, torch.float32, "tf32")
    assert torch.equal(found, (cut[0] @ cut[1]).float())
    assert not torch.equal(found, (a.double() @ b.double()).float())


def test_a_product_of_integers() -> None:
    a = torch.randint(-128, 128, (16, 64), dtype=torch.int8)
    b = torch.randint(-128, 128, (64, 16), dtype=torch.int8)
    assert torch.equal(multiply(a, b, torch.int32, "ieee"), (a.long() @ b.long()).int())


def test_integers() -> None:
    a = torch.tensor([7, -7, 2**31 - 1, -(2**31)], dtype=torch.int32)
    b = torch.tensor([2, 2, -3, 5], dtype=torch.int32)
    found = torch.empty(5, 4, dtype=torch.int32)
    emulate(kernels.integers, 1, {"x": a, "y": b, "out": found, "N": 4})
    assert torch.equal(found[0], torch.div(a, b, rounding_mode="trunc"))
    assert torch.equal(found[1], torch.fmod(a, b))
    assert torch.equal(found[2:4], torch.stack([a >> 1, ~a]))
    assert torch.equal(found[4], (a.long() * 65537).int())


def test_bits_of_unsigned_integers() -> None:
    x = torch.tensor([0, 1, 2**32 - 1, 5], dtype=torch.uint32)
    found = torch.empty(4, dtype=torch.uint32)
    emulate(kernels.inverted, 1, {"x": x, "out": found, "N": 4})
    assert found.tolist() == [2**32 - 1 - each for each in x.tolist()]


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_high_words_of_products(dtype: type[np.generic]) -> None:
    a, b = (np.random.default_rng(s).integers(0, 1 << 32, 64, dtype=np.uint32) for s in (1, 2))
    found = torch.empty(64, dtype=torch.uint32 if dtype is np.uint32 else torch.int32)
    x, y = (torch.from_numpy(each.view(dtype)) for each in (a, b))
    emulate(kernels.high_words, 1, {"x": x, "y": y, "out": found, "N": 64})
    expected = (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)
    assert (found.numpy().view(np.uint32) == expected).all()


def test_eight_bit_floats_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="fp8e5 in the emulator"):
        cast(torch.ones(4), torch.float8_e5m2)
