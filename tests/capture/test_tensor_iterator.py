"""The order of axes that eager gives elementwise operations of strided operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hemstitch.capture.tensor_iterator import are_usual, dense, elementwise_order, is_pointwise

aten = torch.ops.aten
ALONE = (aten.neg.default, aten.sigmoid.default, aten.logical_not.default, aten.gelu.default)
PAIRED = (
    *(aten.add.Tensor, aten.hypot.default, aten.eq.Tensor, aten.floor_divide.default),
    *(aten.copysign.Tensor, aten.xlogy.Tensor, aten.logaddexp.default, aten.maximum.default),
)
BY_NUMBER = (aten.mul.Scalar, aten.pow.Tensor_Scalar, aten.leaky_relu.default)
MEMORY = torch.linspace(0.5, 2, 4096)
VOLUME = MEMORY.half().as_strided((1, 2, 2, 1, 1), (0, 1, 2, 0, 0))  # also channels-last


@st.composite
def operands(draw: st.DrawFn, count: int) -> list[Tensor]:
    """Views that may overlap, with repeated axes and axes of one element."""
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 7]), min_size=1, max_size=5))

    def view() -> Tensor:
        repeated = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
        sizes = [1 if again else size for again, size in zip(repeated, shape)]
        strides = [draw(st.sampled_from([0, 1, 2, 5, 10, 15, 30])) for _ in shape]
        dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
        return MEMORY.to(dtype).as_strided(sizes, strides)

    return [view() for _ in range(count)]


def _check(op: Any, arguments: list[Any]) -> None:
    result = op(*arguments)
    if not are_usual(arguments):
        order = elementwise_order(op, arguments, result)
        assert order is None or dense(result.shape, order).strides == [*result.stride()]


@settings(deadline=None, max_examples=200)
@given(operands(1), st.sampled_from(ALONE))
def test_of_one(views: list[Tensor], op: Any) -> None:
    _check(op, views)


@settings(deadline=None, max_examples=400)
@given(operands(2), st.sampled_from(PAIRED))
def test_of_two(views: list[Tensor], op: Any) -> None:
    _check(op, views)


@settings(deadline=None, max_examples=200)
@example([VOLUME], aten.pow.Tensor_Scalar)
@given(operands(1), st.sampled_from(BY_NUMBER))
def test_of_one_and_a_number(views: list[Tensor], op: Any) -> None:
    _check(op, [*views, 2.0])


def test_what_is_elementwise() -> None:
    assert all(map(is_pointwise, (*ALONE, *PAIRED, *BY_NUMBER)))
    others = (aten.add_.Tensor, aten.sum.default, aten.clone.default, torch.ops.prims.add.default)
    assert not any(map(is_pointwise, others))


HALVES: list[Callable[[Tensor, Tensor], Tensor]] = [
    *(torch.add, torch.hypot, torch.eq, torch.ldexp, torch.floor_divide),
    lambda x, y: torch.nn.functional.gelu(x) + 1,
    lambda x, y: torch.nn.functional.hardtanh(x) - y,
    lambda x, y: (x * y).transpose(0, 1) * 2,
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["known sizes", "symbolic sizes"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 4, 5), [(34, 0, 0), (1, 17, 0)]),
        ((5, 4, 17), [(17, 34, 0), (10, 34, 17)]),
        ((2, 1, 17), [(34, 17, 17), (34, 0, 0)]),
    ],
)
def test_results_lie_as_in_eager(
    shape: tuple[int, ...], strides: list[tuple[int, ...]], dtype: torch.dtype, dynamic: bool
) -> None:
    torch._dynamo.reset()

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return [function(x, y) for function in HALVES]

    x, y = (MEMORY.to(dtype).as_strided(shape, each) for each in strides)
    results = torch.compile(program, backend="hemstitch", dynamic=dynamic)(x, y)
    for number, (result, expected) in enumerate(zip(results, program(x, y), strict=True)):
        assert result.stride() == expected.stride(), number
        torch.testing.assert_close(result, expected, rtol=2e-2, atol=1e-3)
