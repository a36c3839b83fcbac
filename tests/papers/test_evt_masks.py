"""EVT's rows about what its partitioner moves from backward to forward: the mask of a ReLU, which
is made where the ReLU is, and saved in place of what it is made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hemstitch.report.explain import KernelInfo, Report, explain

ROWS, COLUMNS, HIDDEN = 256, 64, 512  # Figure 14 has 4096, 256, 2048
FLOAT = 4
OPTIONS = {"strict": True, "check": True}


def learned(*shape: int) -> Tensor:
    return (torch.randn(shape) * shape[-1] ** -0.5).requires_grad_()


def compiled(program: Callable[..., Tensor], **more: Any) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    return torch.compile(program, backend="hemstitch", options={**OPTIONS, **more})


def both(program: Callable[..., Tensor], arguments: Sequence[Tensor]) -> list[Tensor]:
    """The result, and the gradients of everything that has one."""
    trained = [x for x in arguments if x.requires_grad]
    torch.manual_seed(1)
    result = program(*arguments)
    weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    return [result, *torch.autograd.grad(result, trained, weights)]


def kernel_with(report: Report, graph: str, *ops: str) -> KernelInfo:
    """The only one of a graph that has all of these operations."""
    [found] = [k for k in report.kernels if k.graph == graph and {*ops} <= {*k.ops}]
    return found


def made(report: Report, op: str, graph: str) -> int:
    return sum(kernel.ops.count(op) for kernel in report.kernels if kernel.graph == graph)


def figure_3(x: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """Five products: mm1 to mm3 here, mm4 and mm5 lead back to the ReLU."""
    return torch.tanh(torch.relu(x @ first) @ second) @ third


@pytest.mark.usefixtures("kernels_multiply")
def test_EV_11_the_mask_is_made_with_the_relu_and_not_with_the_last_product(measured) -> None:
    """{mm1, relu, >0} and {mm5, x}, not {mm1, relu} and {mm5, >0, x}: a byte is written and read
    where four would be read. Only the first layer learns, as in the figure."""
    x, second, third = (
        torch.randn(ROWS, COLUMNS),
        *map(Tensor.detach, (learned(HIDDEN, COLUMNS), learned(COLUMNS, COLUMNS))),
    )
    arguments = [x, learned(COLUMNS, HIDDEN), second, third]
    report = explain(figure_3, *arguments, backward=True, options=OPTIONS)
    assert report.library_calls.count("aten.mm.default") <= 1  # the gradient of the first weights
    early = kernel_with(report, "forward", "dot", "maximum", "le")
    late = kernel_with(report, "backward", "dot", "where")
    mask = ROWS * HIDDEN
    assert mask in early.writes.values() and mask in late.reads.values()
    assert made(report, "le", "backward") == made(report, "maximum", "backward") == 0
    assert FLOAT * mask not in {*early.writes.values(), *late.reads.values()}
    found, expected = both(compiled(figure_3), arguments), both(figure_3, arguments)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    measured(f"{mask >> 10} KiB written and read in place of {FLOAT * mask >> 10}")


def test_EV_11_a_derivative_that_waits_for_a_product_is_a_cycle() -> None:
    """{mm2, tanh, dtanh}: all five products in one graph, and nothing says what forward is."""

    def whole(x: Tensor, first: Tensor, second: Tensor, third: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(torch.relu(x @ first) @ second)
        result = hidden @ third
        gradient = (result @ third.t()) * (1 - hidden * hidden)
        return result, (gradient @ second.t()) * (x @ first > 0)

    shapes = ((ROWS, COLUMNS), (COLUMNS, HIDDEN), (HIDDEN, COLUMNS), (COLUMNS, COLUMNS))
    report = explain(whole, *map(torch.randn, shapes), options={**OPTIONS, "products": False})
    assert any(each.startswith("tanh | mul: cycle") for each in report.refusals), report.refusals
    assert not [k for k in report.kernels if "tanh" in k.ops and "sub" in k.ops]


def perceptron(x: Tensor, first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
    return F.dropout(F.relu(x @ first + bias), 0.25) @ second


def perceptrons() -> list[Tensor]:
    shapes = ((ROWS, COLUMNS), (COLUMNS, HIDDEN), (HIDDEN,), (HIDDEN, COLUMNS))
    return [learned(*shape) for shape in shapes]


def test_EV_29_the_mask_of_a_perceptron_is_a_byte(measured) -> None:
    """Every byte of both kernels: the library multiplies."""
    arguments = perceptrons()
    options = {**OPTIONS, "products": False}
    report = explain(perceptron, *arguments, backward=True, options=options)
    forward, backward = report.kernels
    count, seed = ROWS * HIDDEN, 8
    assert "le" in forward.ops and "le" not in backward.ops and "where" in backward.ops
    assert sorted(forward.reads.values()) == [seed, FLOAT * HIDDEN, FLOAT * count]
    assert sorted(forward.writes.values()) == [count, FLOAT * count]  # the mask, what is multiplied
    sums = {name: size for name, size in backward.reads.items() if name.startswith("partial")}
    reads = [size for name, size in backward.reads.items() if name not in sums]
    assert sorted(reads) == [seed, count, FLOAT * count]
    assert max(backward.writes.values()) == FLOAT * count
    measured(f"1 B an element, {count >> 10} KiB in place of {FLOAT * count >> 10}")


@pytest.mark.usefixtures("kernels_multiply")
def test_EV_29_the_multiplication_is_behind_the_second_product() -> None:
    report = explain(perceptron, *perceptrons(), backward=True, options=OPTIONS)
    count = ROWS * HIDDEN
    assert count in kernel_with(report, "forward", "dot", "maximum", "le").writes.values()
    late = kernel_with(report, "backward", "dot", "where")
    assert count in late.reads.values() and FLOAT * count not in late.reads.values()


@pytest.mark.parametrize("products", [True, False])
def test_EV_29_gradients_are_those_of_the_mask(products: bool) -> None:
    """Against eager with the mask of the same seed, which a run with one as the last weight
    shows."""
    arguments = perceptrons()
    run = compiled(perceptron, products=products)
    dropped = both(run, [*arguments[:3], torch.eye(HIDDEN)])[0]
    keep = (dropped != 0) / 0.75

    def eager(x: Tensor, first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
        return F.relu(x @ first + bias) * keep @ second

    run = compiled(perceptron, products=products)
    torch.testing.assert_close(both(run, arguments), both(eager, arguments), rtol=1e-4, atol=1e-4)
