"""What does more than compute a value runs as in eager: as often, in the same order, read or not;
what a program checks of its data is checked before anything relies on it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, tensor
from torch.utils.checkpoint import checkpoint

Function = Callable[..., Any]
TOLD: list[str] = []


def _tell(name: str, **keywords: Any) -> Any:
    """An operation that tells its name and gives a copy."""

    def function(what: str, x: Tensor) -> Tensor:
        TOLD.append(what)
        return x * 1

    told = torch.library.custom_op(name, function, mutates_args=())
    told.register_fake(lambda what, x: torch.empty_like(x))
    told.register_autograd(
        lambda ctx, gradient: (None, told(f"{ctx.what}'s gradient", gradient)),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "what", inputs[0]),
    )
    return told


told, counted = _tell("hemstitch_tests::told"), _tell("hemstitch_tests::counted")
torch.fx.node.has_side_effect(torch.ops.hemstitch_tests.told.default)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    TOLD.clear()
    yield
    torch._dynamo.reset()


def compiled(function: Function, **keywords: Any) -> Function:
    options = {"strict": True, "check": True}
    return torch.compile(function, backend="hemstitch", options=options, **keywords)


def unread(x: Tensor) -> Tensor:
    told("first", x)
    told("second", x.exp())
    told("third", x)
    return (x.sin() * 2).sum()


def read(x: Tensor) -> Tensor:
    return (told("read", x.sin()) * 2).sum()


def twice(x: Tensor) -> Tensor:
    return (counted("twice", x.sin()) * counted("twice", x.sin())).sum()


def made_again(x: Tensor) -> Tensor:
    def part(x: Tensor) -> Tensor:
        return told("part", x.sin()).cos()

    result = checkpoint(part, x, use_reentrant=False)
    assert isinstance(result, Tensor)
    return result.sum()


@pytest.mark.parametrize("function", [unread, read, twice, made_again])
def test_calls_are_those_of_eager(function: Function) -> None:
    fast = compiled(function)
    for with_gradient in (False, True):
        lists, results = [], []
        for each in (function, fast):
            TOLD.clear()
            x = torch.arange(5.0, requires_grad=with_gradient)
            result = each(x)
            if with_gradient:
                result.backward()
            lists.append([*TOLD])
            results.append((result.detach(), x.grad))
        assert lists[0] == lists[1]
        assert lists[0]
        torch.testing.assert_close(*results)


def positive(x: Tensor) -> Tensor:
    assert (x > 0).all(), "must be positive"
    return x.sqrt().sum()


def asynchronous(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all(), "must be positive")
    return x.sqrt().sum()


@pytest.mark.parametrize("function", [positive, asynchronous])
def test_assertions_on_tensors(function: Function) -> None:
    fast = compiled(function)
    for with_gradient in (False, True):
        x = torch.ones(5, requires_grad=with_gradient)
        torch.testing.assert_close(fast(x), function(x))
        with pytest.raises(RuntimeError, match="must be positive"):
            fast(torch.tensor([1.0, 2.0, 3.0, -4.0, 5.0], requires_grad=with_gradient))
        torch.testing.assert_close(fast(x), function(x))


def test_what_is_written_after_an_assertion_stays() -> None:
    def function(x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all(), "must be positive")
        x.mul_(2)
        return x + 1

    fast, bad = compiled(function), tensor([1.0, -1.0])
    x, y = torch.ones(2), torch.ones(2)
    torch.testing.assert_close(fast(x), function(y))
    torch.testing.assert_close(x, y)
    with pytest.raises(RuntimeError, match="must be positive"):
        fast(bad)
    assert bad.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("with_gradient", [False, True])
def test_sizes_that_a_program_promises(with_gradient: bool) -> None:
    """Else kernels would read past the end."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        found = x.nonzero()
        torch._check(found.size(0) == 4)
        return (found + 3) * weight

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = compiled(function, fullgraph=True)
        weight = torch.rand(4, 1, requires_grad=with_gradient)
        for _ in range(2):
            good = tensor([0, 1, 3, 4, 2, 0, 0]), weight
            torch.testing.assert_close(fast(*good), function(*good))
            for bad in (tensor([0, 0, 0, 0, 0, 0, 1]), torch.zeros(7).long(), torch.ones(7)):
                with pytest.raises(RuntimeError, match="assertion"):
                    fast(bad, weight)


LARGE = 2**53  # from here on float64 has not every integer
COMPARISONS = {"eq": (3, 3, 4), "lt": (LARGE + 2, LARGE + 1, LARGE + 2), "ge": (5, 5, 4)}


@pytest.mark.parametrize("name", COMPARISONS)
def test_numbers_that_a_program_promises(name: str) -> None:
    limit, good, bad = COMPARISONS[name]

    def function(i: Tensor) -> Tensor:
        number = i[0].item()
        torch._check(getattr(operator, name)(number, limit), lambda: "no such number")
        return torch.ones(4, dtype=torch.int64) * number

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        fast = compiled(function, fullgraph=True)
        torch.testing.assert_close(fast(tensor([good])), function(tensor([good])))
        with pytest.raises(RuntimeError, match=r"assertion|no such number"):
            fast(tensor([bad]))
        torch.testing.assert_close(fast(tensor([good])), function(tensor([good])))
