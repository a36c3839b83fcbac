"""Arguments that are not what a graph was compiled for, and tensors whose elements are nowhere: the
same results, from the graph as traced."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor
from torch import Tensor

from hemstitch.errors import GraphWarning

SHAPE = 4, 6


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        yield


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="hemstitch", **how)


def gated(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x * y) * torch.sigmoid(x)


def negative() -> Tensor:
    """Whose elements in memory have the other sign."""
    view = torch.randn(SHAPE, dtype=torch.complex64).conj().imag
    assert view.is_neg()
    return view


def zeros() -> Tensor:
    """Without memory."""
    return torch._efficientzerotensor(SHAPE)


OTHERS = {
    "size": lambda: (torch.randn(40, 6), torch.randn(40, 6)),
    "type": lambda: (torch.randn(SHAPE).double(), torch.randn(SHAPE)),
    "strides": lambda: (torch.randn(6, 4).t(), torch.randn(SHAPE)),
    "repeated": lambda: (torch.randn(6).expand(SHAPE), torch.randn(SHAPE)),
    "offset": lambda: (torch.randn(9, 6)[5:], torch.randn(SHAPE)),
    "negative": lambda: (negative(), torch.randn(SHAPE)),
    "zero": lambda: (zeros(), torch.randn(SHAPE)),
}


def unguarded(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    return compiled(function, options={"guard_filter_fn": lambda all_: [False] * len(all_)}, **how)


def test_arguments_that_no_guard_has_seen() -> None:
    function = unguarded(gated)
    function(torch.randn(SHAPE), torch.randn(SHAPE))
    for make in OTHERS.values():
        x, y = make()
        torch.testing.assert_close(function(x, y), gated(x, y))


def test_arguments_of_symbolic_sizes_that_no_guard_has_seen() -> None:
    function = unguarded(gated, dynamic=True)
    for rows in (4, 50):
        x, y = torch.randn(rows, 6), torch.randn(rows, 6)
        torch.testing.assert_close(function(x, y), gated(x, y))
    x, y = torch.randn(6, 9).t(), torch.randn(9, 6)
    torch.testing.assert_close(function(x, y), gated(x, y))
    with pytest.raises(RuntimeError, match="must match the size"):
        function(torch.randn(500, 6), torch.randn(4, 6))


def trains_as_eager(function: Callable[..., Any], arguments: list[Tensor], seed: Tensor) -> None:
    expected = torch.autograd.grad(gated(*arguments), arguments, seed)
    for _ in range(3):  # the first backward goes through AOTAutograd's wrappers
        result = torch.autograd.grad(function(*arguments), arguments, seed)
        torch.testing.assert_close(result, expected)


def test_training_of_arguments_that_no_guard_has_seen() -> None:
    function = unguarded(gated)
    trains_as_eager(
        function, [torch.randn(SHAPE).requires_grad_() for _ in "xy"], torch.ones(SHAPE)
    )
    for kind in ("strides", "offset"):
        arguments = [x.requires_grad_() for x in OTHERS[kind]()]
        trains_as_eager(function, arguments, torch.randn(SHAPE))


@pytest.mark.parametrize("seed", [negative, zeros, lambda: torch.randn(6).expand(SHAPE)])
def test_gradients_that_are_no_plain_tensors(seed: Callable[[], Tensor]) -> None:
    trains_as_eager(compiled(gated), [torch.randn(SHAPE).requires_grad_() for _ in "xy"], seed())


def test_what_hooks_give_in_place_of_what_was_saved() -> None:
    """`save_on_cpu` keeps no strides."""

    def program(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight).t().sin().exp()

    function, seed = compiled(program), torch.randn(5, 4)
    x, weight = torch.randn(SHAPE), torch.randn(6, 5, requires_grad=True)
    (expected,) = torch.autograd.grad(program(x, weight), weight, seed)
    for _ in range(2):
        function(x, weight).sum().backward()
    with torch.autograd.graph.save_on_cpu():
        result = function(x, weight)
    torch.testing.assert_close(torch.autograd.grad(result, weight, seed)[0], expected)


def test_gradients_in_batches() -> None:
    function, seeds = compiled(gated), torch.randn(3, *SHAPE)
    arguments = [torch.randn(SHAPE).requires_grad_() for _ in "xy"]
    for _ in range(3):
        results = (each(*arguments) for each in (function, gated))
        batches = [torch.autograd.grad(x, arguments, seeds, is_grads_batched=True) for x in results]
        torch.testing.assert_close(*batches)
    inputs = tuple(x.detach() for x in arguments)
    new, old = (
        torch.autograd.functional.jacobian(each, inputs, vectorize=True)
        for each in (function, gated)
    )
    torch.testing.assert_close(new, old)


def test_tensors_without_memory_or_with_the_other_sign() -> None:
    def program(x: Tensor, y: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        nothing = torch._efficientzerotensor(SHAPE)
        norm = torch.linalg.norm(nothing)
        return gated(x, y), nothing, nothing * x, nothing.sum(0) + x, norm, c.conj().imag * 2 + x

    plain, c = torch.randn(SHAPE), torch.randn(SHAPE, dtype=torch.complex64)
    function = compiled(program)
    for x, y in ((plain, plain), (plain, zeros()), (negative(), plain), (plain.t().t(), plain)):
        result, expected = function(x, y, c), program(x, y, c)
        torch.testing.assert_close(result, tuple(each + 0 for each in expected))


@pytest.mark.parametrize("kind", ["jvp", "jacfwd", "hessian"])
def test_derivatives_in_forward_mode(kind: str) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    transform = {
        "jvp": lambda x: torch.func.jvp(network, (x,), (torch.ones(3),))[1],
        "jacfwd": torch.func.jacfwd(network),
        "hessian": torch.func.vmap(torch.func.hessian(network)),
    }[kind]
    x = torch.randn(3) if kind != "hessian" else torch.randn(2, 3)
    parameters = [*network.parameters()][:3]
    new, old = compiled(transform)(x), transform(x)
    torch.testing.assert_close(new, old)
    torch.testing.assert_close(
        torch.autograd.grad(new.sum(), parameters), torch.autograd.grad(old.sum(), parameters)
    )


@pytest.mark.parametrize("is_trained", [False, True])
def test_storage_that_the_graph_takes(is_trained: bool) -> None:
    """As FSDP's does."""

    def program(x: Tensor, weight: Tensor) -> Tensor:
        torch.ops.inductor.resize_storage_bytes_(x, 32)
        with torch.no_grad():
            x.copy_(torch.arange(8.0))
        return (x * weight).sin()

    x, weight = torch.zeros(8), torch.randn(8, requires_grad=is_trained)
    x.untyped_storage().resize_(0)
    result, expected = compiled(program)(x, weight), (torch.arange(8.0) * weight).sin()
    torch.testing.assert_close(result, expected)
    if is_trained:
        grad = torch.autograd.grad
        torch.testing.assert_close(grad(result.sum(), weight), grad(expected.sum(), weight))


def test_a_tensor_of_inference_mode() -> None:
    function, x = compiled(gated), torch.randn(SHAPE)
    with torch.inference_mode():
        y = torch.randn(SHAPE)
        torch.testing.assert_close(function(x, y), gated(x, y))
    torch.testing.assert_close(function(x, y), gated(x, y))
