"""Where eager rounds a product and a sum once: bit for bit, of each type, in vectors or alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.capture.elementwise import far_from, scalar_loops, special, spread
from tests.compiled import watched
from tests.effort import some

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def _program(x: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    weight = torch.tensor(0.3, dtype=x.dtype)
    return [
        *(torch.add(x, a, alpha=0.3), torch.sub(x, a, alpha=0.3), torch.rsub(x, a, alpha=0.3)),
        *(torch.add(x, 0.7, alpha=0.3), torch.rsub(x, 0.7, alpha=-1.7), torch.add(x, a, alpha=2)),
        *(torch.addcmul(x, a, b), torch.addcmul(x, a, b, value=0.3), torch.addcdiv(x, a, b)),
        *(torch.lerp(x, a, 0.3), torch.lerp(x, a, 0.7), torch.lerp(x, a, -1.7)),
        *(torch.lerp(x, a, b), torch.lerp(x, a, weight), torch.addcmul(x, a[:1], b)),
        *torch._foreach_add([x, a], [a, b], alpha=0.3),
        *torch._foreach_lerp([x, a], [a, b], 0.3),
        *torch._foreach_addcmul([x, a], [a, b], [b, x], 0.3),
        *torch._foreach_addcdiv([x, a], [a, b], [b, x], 0.3),
    ]


def _operands(dtype: torch.dtype, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    operands = []
    for _ in range(3):
        numbers = torch.cat([special(dtype), spread(dtype, count)])
        mixed = numbers[torch.randperm(len(numbers), generator=generator)]
        operand = torch.cat([mixed, torch.randn(2 * count, generator=generator).to(dtype)])
        operands.append(operand[: len(operand) // 64 * 64])  # of the rest eager makes no vector
    return operands


def _check(dtype: torch.dtype, count: int, **options: object) -> None:
    operands = _operands(dtype, count)
    results = watched(_program, **options)[0](*operands)
    vectors, alone = _program(*operands), _program(*map(scalar_loops, operands))
    for number, (result, *eager) in enumerate(zip(results, vectors, alone, strict=True)):
        assert result.dtype == eager[0].dtype, number
        same = [(result == e) | (result.isnan() & e.isnan()) for e in eager]
        signs = [result.signbit() == e.signbit() for e in eager]
        is_zero = result == 0
        differ = ~(same[0] | same[1]) | (is_zero & ~(signs[0] | signs[1]))
        assert not differ.any(), (number, [x[differ] for x in (*operands, result, *eager)])


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=str)
def test_of_tensors_and_numbers(dtype: torch.dtype) -> None:
    _check(dtype, 1000)


@pytest.mark.parametrize("dtype", some([F32], [F16, BF16]), ids=str)
def test_printed_for_a_gpu(dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    _check(dtype, 100, target="interpret")


def test_what_is_no_float_is_multiplied_and_added() -> None:
    integers = torch.arange(-4, 5)

    def program(x: Tensor) -> list[Tensor]:
        return [
            *(torch.add(x, x, alpha=3), torch.rsub(x, 7, alpha=2)),
            *(torch.addcmul(x, x, x, value=2), torch.add(x > 1, x > 2, alpha=True)),
        ]

    for result, expected in zip(watched(program)[0](integers), program(integers), strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", some([F32], [F64, F16, BF16]), ids=str)
def test_gradients_of_saturated_activations(dtype: torch.dtype) -> None:
    """1 - y * y keeps its digits where y is near to 1."""
    y = (1 - torch.logspace(-7, -1, 200, dtype=F64)).to(dtype)
    gradient = torch.linspace(-2, 2, 200, dtype=F64).to(dtype)

    def program(gradient: Tensor, y: Tensor) -> Tensor:
        return torch.ops.aten.tanh_backward(gradient, y)

    result = watched(program)[0](gradient, y)
    eager, exact = program(gradient, y), program(gradient.double(), y.double())
    assert not far_from(result, [eager], exact).any()
