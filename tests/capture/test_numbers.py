"""Numbers of the program beside tensors of other types: promotion, rounding, and what cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.capture import elementwise
from tests.compiled import watched

Function = Callable[..., Any]
HALF = torch.tensor([0.1, 0.3, 0.7, 1.1, -2.0, 100.0, math.inf, math.nan], dtype=torch.float16)
INTEGERS = torch.tensor([1, 2049, 70000, -5, 3, 0, 7, 9])


def _equal(program: Function, *arguments: Any, **options: Any) -> None:
    expected = program(*arguments)
    compiled, _ = watched(program, **options)
    for number, (new, old) in enumerate(zip(compiled(*arguments), expected, strict=True)):
        assert new.dtype == old.dtype and new.shape == old.shape, number
        torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True, msg=str(number))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_read_numbers_as_eager_does(dtype: torch.dtype) -> None:
    """Rounded, but for factors and divisors."""
    pi, large = torch.tensor(3.14159), torch.tensor(100_000)

    def program(x: Tensor, pi: Tensor, large: Tensor, integers: Tensor) -> list[Tensor]:
        return [
            *(x == 0.1, x != 1.1, x >= 0.1, x < 0.7, x > 0.1, x <= 0.3, x > 0.7, x > 3e38),
            *(x + 0.1, x - 0.3, 0.7 - x, x * 0.1, x / 0.3, 0.3 / x, x // 0.3, x % 0.3),
            *(torch.fmod(x, 0.1), torch.div(x, 0.1, rounding_mode="trunc"), x + 1e10),
            *(x + pi, pi - x, x * pi, x / pi, x == pi, pi * x, x // pi, x % pi, x + large),
            *(x * integers, x + integers, x == integers, integers / x, x < integers),
            *(F.hardshrink(x, 0.3), x.masked_fill(x == 0.3, -1.0), x.clamp(0.1, 0.3)),
            *(torch.where(x > 0.1, x, 0.7), torch.where(x < pi, pi, x), torch.maximum(x, pi)),
            *(x.masked_fill(x > 0, pi), torch.full_like(x, 0.1), torch.clamp(x, pi, large)),
        ]

    _equal(program, HALF.to(dtype), pi, large, INTEGERS)


def test_products_by_index_are_added_up_no_worse_than_in_eager() -> None:
    """As a mixture of experts combines its tokens, in a half type."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 16, generator=generator).half()
    weights = torch.rand(64, 1, generator=generator).half()
    tokens = torch.arange(64) % 16

    def program(rows: Tensor, weights: Tensor, tokens: Tensor) -> Tensor:
        return torch.zeros(16, 16, dtype=rows.dtype).index_add(0, tokens, rows * weights)

    result = watched(program)[0](rows, weights, tokens)
    products = (rows * weights).double()
    exact = torch.zeros(16, 16, dtype=torch.float64).index_add(0, tokens, products)
    errors = [(x.double() - exact).abs().max() for x in (result, program(rows, weights, tokens))]
    assert errors[0] <= errors[1]


def test_numbers_that_follow_from_sizes() -> None:
    def program(n: int) -> list[Tensor]:
        x = torch.arange(4)
        return [
            *(torch.full((1,), n >= 1024), torch.full((2,), n != 5), torch.full((2,), n / 2)),
            torch.full((2,), n == 5, dtype=torch.float32),
            *(torch.full((2,), n > 3 and n < 9), torch.full((2,), not (n > 5))),
            torch.full((2,), n, dtype=torch.bool),
            torch.full((2,), n * 0.5, dtype=torch.int64),
            *(torch.full_like(x, n > 6), x.new_full((2,), n < 6), torch.where(x > 2, n > 5, False)),
            *(x.masked_fill(x > 1, n), torch.zeros(3).fill_(n), torch.scalar_tensor(n)),
        ]

    compiled = torch.compile(program, backend="hemstitch", dynamic=True, options={"strict": True})
    for n in (1024, 5, 0, 1, 7):
        for new, old in zip(compiled(n), program(n), strict=True):
            assert new.dtype == old.dtype and torch.equal(new, old), n


REFUSED: dict[str, Function] = {
    "masked_fill": lambda x, value: x.masked_fill(x > 1, value),
    "fill": torch.fill,
    "full_like": torch.full_like,
    "clamp": lambda x, value: x.clamp(max=value),
    "hardtanh": lambda x, value: F.hardtanh(x, -abs(value), abs(value)),
    "pad": lambda x, value: F.pad(x, (1, 1), value=value),
    "scatter": lambda x, value: x.scatter(0, torch.tensor([0]), value),
    "threshold": lambda x, value: F.threshold(x, 1, value),
    "add": lambda x, value: torch.add(x, x, alpha=value),
    "pow": lambda x, value: x**value,
}


@pytest.mark.parametrize(("dtype", "value"), [(torch.int8, 300), (torch.float16, -1e9)], ids=str)
def test_a_number_that_the_type_cannot_hold_is_refused(dtype: torch.dtype, value: float) -> None:
    x = torch.tensor([1, -2, 100]).to(dtype)
    for name, function in REFUSED.items():
        with pytest.raises(RuntimeError) as expected:
            function(x, value)
        compiled = torch.compile(function, backend="hemstitch")
        with pytest.raises(RuntimeError) as raised:
            compiled(x, value)
        assert str(expected.value) in str(raised.value), name


def test_infinities_and_wrapped_numbers_are_held() -> None:
    def program(x: Tensor, bytes_: Tensor) -> list[Tensor]:
        return [
            *(x.masked_fill(x > 1, -math.inf), torch.full_like(x, math.nan), x.clamp(max=math.inf)),
            *(bytes_.masked_fill(bytes_ > 1, -1), torch.full_like(bytes_, -1)),
            *(torch.addcmul(bytes_, bytes_, bytes_, value=0.5), x + True),
        ]

    _equal(program, HALF, torch.tensor([1, 2, 200], dtype=torch.uint8))


def test_numbers_that_are_copied_are_converted() -> None:
    """They may wrap, unlike those that fill."""

    def program(*tensors: Tensor) -> list[Tensor]:
        numbers = (3.7, -1, 300, True, math.nan)
        return [x.clone().copy_(n) for x in tensors for n in numbers if not _is_undefined(x, n)]

    types = (torch.uint8, torch.int64, torch.bool, torch.float16, torch.float32)
    _equal(program, *(torch.zeros(3).to(dtype) for dtype in types))


def _is_undefined(x: Tensor, number: float) -> bool:
    return number != number and not x.is_floating_point()


INTEGER_TYPES = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


@pytest.mark.parametrize("dtype", INTEGER_TYPES, ids=str)
def test_extreme_integers(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    line = torch.tensor([limits.min, limits.max, 0, 1, 7, 3, limits.max - 1, limits.min + 1])
    x, y = (part.reshape(-1) for part in torch.meshgrid(line, line, indexing="ij"))

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return [
            *(x + y, x - y, x * y, torch.maximum(x, y), x & y, x ^ y, x << y, x >> y, x == y),
            *(x < y, x.abs(), -x, x.sign(), ~x, x ** y.abs().clamp(0, 5), x.square(), x / y),
            *(x.float() * y, x * 2.5, x + True, torch.add(x, y, alpha=3), torch.rsub(x, 3)),
            *(x.half(), x.bfloat16(), x.to(torch.int8), x.long(), x << 9, x >> 9, x**3, x % 7),
            *(x // 7, torch.fmod(x, 7), x.half() * y, x.bfloat16() + y, x.half() == y),
        ]

    _equal(program, x.to(dtype), y.to(dtype))


def test_bools_and_conversions() -> None:
    x = torch.tensor([True, False, True, False])
    y = torch.tensor([True, True, False, False])
    numbers = torch.tensor([3e9, -3e9, 1e20, math.inf, -math.inf, math.nan, 2.0**31, 300.9, -1.5])

    def program(x: Tensor, y: Tensor, numbers: Tensor) -> list[Tensor]:
        return [
            *(x + y, x * y, x < y, x >= y, x / (y + 1), x * 0.5, x + 1, torch.maximum(x, y)),
            *(x**2, x // (y + 1), x.half() + y, torch.add(x, y, alpha=-1), x.logical_xor(y)),
            *(numbers.int(), numbers.long(), numbers.short(), numbers.byte(), numbers.bool()),
            *(numbers.double().byte(), numbers.double().int(), numbers.half().int()),
        ]

    _equal(program, x, y, numbers)


NOT_DEFINED: dict[str, Function] = {
    "sub": lambda x, y: x - 1,
    "rsub": lambda x, y: 3 - x,
    "sub of a bool": lambda x, y: y - True,
    "alpha of bools": lambda x, y: torch.add(x, x, alpha=0.5),
    "alpha, a bool": lambda x, y: torch.add(x, 1, alpha=True),
    "addcmul": lambda x, y: torch.addcmul(x, x, x),
    "lerp": lambda x, y: torch.lerp(y, y, 0.5),
    "threshold": lambda x, y: F.threshold(x, 0, 1),
    "relu": lambda x, y: F.relu(x),
    "clamp": lambda x, y: x.clamp(False, True),
    "abs": lambda x, y: x.abs(),
    "fmod": lambda x, y: torch.fmod(x, True),
    "frac": lambda x, y: y.frac(),
    "logaddexp": lambda x, y: torch.logaddexp(y, y),
    "softmax": lambda x, y: y.softmax(0),
    "divisor that wraps to 0": lambda x, y: y // 2**31,
    "remainder by it": lambda x, y: y % 2**40,
}


def test_what_eager_does_not_define_for_a_type_is_refused() -> None:
    x, y = torch.tensor([True, False]), torch.tensor([1, 2], dtype=torch.int8)
    for name, function in NOT_DEFINED.items():
        with pytest.raises(RuntimeError) as expected:
            function(x, y)
        torch._dynamo.reset()
        with pytest.raises(expected.type) as raised:
            torch.compile(function, backend="hemstitch")(x, y)
        assert str(expected.value) in str(raised.value), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_powers_by_numbers(dtype: torch.dtype) -> None:
    """Of a half type the numbers are rounded to it. With f16 eager's root is a power."""
    numbers = (0.0, 1.0, 2.0, 0.5, 0.25, 3.0, 40.0, 250.0, 6e4, 1e-3, 6e-8, math.inf)
    x = torch.tensor([*numbers, *(-number for number in numbers), math.nan, -0.7]).to(dtype)
    exponents = (0.5, -0.5, 1 / 3, 2.7, -1.3, 0.0, -0.0, 2, -1, -2.0, 101, 1e4, math.inf, -math.inf)

    def program(x: Tensor) -> list[Tensor]:
        powers = [x**exponent for exponent in exponents]
        zero = torch.tensor(2.7)
        return [*powers, *(base**x for base in exponents), x**zero, zero**x]

    results = watched(program)[0](x)
    vectors = [result[: len(x)] for result in program(elementwise.vector_loops(x))]
    alone = program(elementwise.scalar_loops(x))
    for number, (result, *eager) in enumerate(zip(results, vectors, alone, strict=True)):
        assert not elementwise.far_from(result, eager, None).any(), number


@pytest.mark.parametrize("divisor", [2, -2, 3])
def test_truth_values_divided_by_themselves(divisor: int) -> None:
    """What is left of 1 is 0, which divided by 0 is no number, though LLVM says 0."""

    def program(x: Tensor) -> list[Tensor]:
        whole = torch.div(x, divisor, rounding_mode="trunc")
        return [whole / x, (x.int() >> 1) / x, (x.int() & 2) / x]

    x = torch.arange(64) % 3 == 0
    for result, expected in zip(watched(program)[0](x), program(x), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
