"""Calls that go to the compiled graphs without AOTAutograd's wrappers: the same as through them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hemstitch.runtime import recycling as recycle

DIRECT, WRAPPED = "HemstitchBackward", "CompiledFunctionBackward"


def gated(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x * y) * torch.sigmoid(x)


def tensors(count: int = 2, shape: tuple[int, ...] = (4, 6)) -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for _ in range(count)]


def gradients(function: Callable[..., Any], arguments: list[Tensor], seed: Tensor) -> Any:
    return torch.autograd.grad(function(*arguments), arguments, seed)


def ready(function: Callable[..., Any], *arguments: Tensor, **options: Any) -> Callable[..., Any]:
    """Compiled, backward too: the first backward pass goes through the wrappers."""
    compiled = torch.compile(function, backend="hemstitch", **options)
    result = compiled(*arguments)
    first = result[0] if isinstance(result, tuple) else result
    first.sum().backward()
    for argument in arguments:
        argument.grad = None
    return compiled


def test_first_backward_is_wrapped_and_later_ones_are_direct() -> None:
    x, y = tensors()
    compiled = torch.compile(gated, backend="hemstitch")
    names = []
    for _ in range(3):
        result = compiled(x, y)
        names.append(result.grad_fn.name())
        result.sum().backward()
    assert names == [WRAPPED, DIRECT, DIRECT]


@pytest.mark.parametrize(
    "function, expected",
    [
        (lambda x: x.topk(9).values, "TopkBackward0"),
        (lambda x: torch.sort(x, descending=True).values, "SortBackward0"),
        (lambda x: x.topk(9).values * 2, DIRECT),  # a kernel in both passes
        (lambda x: x.topk(3).values, DIRECT),  # so few are found by a kernel
        # What replaces the function is what is called.
        (lambda x: torch.linalg.vander(x[0], N=4), DIRECT),
    ],
)
def test_library_calls_alone_are_autograds(function: Callable[..., Any], expected: str) -> None:
    """Once backward is compiled as well."""
    x = torch.randn(40, 60, requires_grad=True)
    compiled = ready(function, x)
    result = compiled(x)
    assert result.grad_fn.name() == expected
    seed = torch.randn_like(result)
    reference = function(x)
    assert torch.equal(result, reference) and result.stride() == reference.stride()
    ours, eager = (torch.autograd.grad(value, x, seed)[0] for value in (result, reference))
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("seed", ["contiguous", "transposed", "expanded"])
def test_gradients_in_any_layout(seed: str) -> None:
    arguments = tensors()
    compiled = ready(gated, *arguments)
    given = {
        "contiguous": torch.randn(4, 6),
        "transposed": torch.randn(6, 4).mT,
        "expanded": torch.randn(()).expand(4, 6),
    }[seed]
    expected = gradients(gated, arguments, given)
    torch.testing.assert_close(gradients(compiled, arguments, given), expected)


def test_backward_twice() -> None:
    arguments = tensors()
    result = ready(gated, *arguments)(*arguments).sum()
    once = torch.autograd.grad(result, arguments, retain_graph=True)
    assert all(map(torch.equal, once, torch.autograd.grad(result, arguments)))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(result, arguments)


def test_second_derivative_is_refused() -> None:
    arguments = tensors()
    result = ready(gated, *arguments)(*arguments).sum()
    once = torch.autograd.grad(result, arguments, create_graph=True)
    expected = torch.autograd.grad(gated(*arguments).sum(), arguments)
    torch.testing.assert_close([x.detach() for x in once], list(expected))
    with pytest.raises(RuntimeError, match="second derivative"):
        once[0].sum().backward()


def test_a_result_that_nobody_uses() -> None:
    def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return gated(x, y), torch.exp(x) - y

    x, y = tensors()
    compiled = ready(two, x, y)
    seed = torch.randn(4, 6)
    expected = torch.autograd.grad(two(x, y)[1], (x, y), seed)
    found = torch.autograd.grad(compiled(x, y)[1], (x, y), seed)
    torch.testing.assert_close(found, expected)


def test_results_without_gradient() -> None:
    def parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return gated(x, y), x > y, (x * 2).detach()

    x, y = tensors()
    result = ready(parts, x, y)(x, y)
    assert [value.requires_grad for value in result] == [True, False, False]
    assert result[0].grad_fn is not None and result[0].grad_fn.name() == DIRECT


def test_a_reshaped_result_may_be_changed() -> None:
    def flat(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.mT).reshape(-1)

    x, y = tensors()
    result = ready(flat, x, y)(x, y)
    result.mul_(2)
    expected = torch.autograd.grad(flat(x, y).mul(2).sum(), (x, y))
    torch.testing.assert_close(torch.autograd.grad(result.sum(), (x, y)), expected)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_a_changed_result_that_backward_reads_is_noticed(same: bool, whole: bool) -> None:
    """A reshape of what is saved, or another like it; AOTAutograd's wrappers do not notice."""

    def scores(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        lines = x.flatten(0, 1) @ weight
        result = lines.unflatten(0, x.shape[:2])
        read = result if same else lines.view(3, 5, 40)
        return result, (read if whole else read[:, :-1]).flatten(0, 1).logsumexp(1)

    x, weight = torch.randn(3, 5, 8, requires_grad=True), torch.randn(8, 40, requires_grad=True)
    result, loss = ready(scores, x, weight)(x, weight)
    expected = torch.autograd.grad(scores(x, weight)[1].sum(), (x, weight))
    with torch.no_grad():
        result.mul_(2)
    if same and whole:
        with pytest.raises(RuntimeError, match="inplace"):
            loss.sum().backward()
    else:  # of a part eager has a copy
        torch.testing.assert_close(torch.autograd.grad(loss.sum(), (x, weight)), expected)


def test_running_statistics_change_and_count_as_changed() -> None:
    def norm(x: Tensor, weight: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return F.batch_norm(x, mean, variance, weight, training=True)

    x, weight = torch.randn(8, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    compiled = ready(norm, x, weight, torch.zeros(3), torch.ones(3))
    state, expected = [[torch.zeros(3), torch.ones(3)] for _ in range(2)]
    result = compiled(x, weight, *state)
    torch.testing.assert_close(result, norm(x, weight, *expected))
    torch.testing.assert_close(state, expected)
    assert [tensor._version for tensor in state] == [1, 1]
    assert result.grad_fn is not None and result.grad_fn.name() == DIRECT


def test_a_changed_argument_is_noticed() -> None:
    x, y = tensors()
    result = ready(gated, x, y)(x, y).sum()
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_a_view_of_an_argument_keeps_the_wrappers() -> None:
    def view(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return gated(x, y), x.t()

    x, y = tensors()
    result = ready(view, x, y)(x, y)
    assert result[0].grad_fn is not None and result[0].grad_fn.name() == WRAPPED
    assert result[1]._base is x


def test_autocast_during_backward_changes_nothing() -> None:
    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(x @ y.mT)

    x, y = tensors()
    compiled, seed = ready(product, x, y), torch.randn(4, 4)
    expected = gradients(product, [x, y], seed)
    result = compiled(x, y)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(result, (x, y), seed)
    torch.testing.assert_close(found, expected)


def test_gradients_turned_on_inside() -> None:
    def inside(x: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            return gated(x, y)

    x, y = tensors()
    compiled = torch.compile(inside, backend="hemstitch")
    expected = torch.autograd.grad(gated(x, y).sum(), (x, y))
    for _ in range(2):
        with torch.no_grad():
            result = compiled(x, y)
            assert not torch.is_grad_enabled()
        torch.testing.assert_close(torch.autograd.grad(result.sum(), (x, y)), expected)


def test_hooks_on_saved_tensors_see_them() -> None:
    x, y = tensors()
    compiled, seen = ready(gated, x, y), []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor * 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compiled(x, y)
    assert seen
    torch.testing.assert_close(
        torch.autograd.grad(result.sum(), (x, y)), torch.autograd.grad(gated(x, y).sum(), (x, y))
    )


def layers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Backward reads an argument, a result and what nobody else has."""
    hidden = torch.softmax(x @ y.T, -1)
    return torch.tanh(hidden @ y), hidden.sum()


def test_memory_of_what_backward_reads_is_used_again() -> None:
    arguments = tensors(shape=(300, 300))
    compiled = ready(layers, *arguments, dynamic=False)
    for _ in range(3):
        compiled(*arguments)[0].sum().backward()
    blocks = [block for pool in recycle._POOLS.values() for block in pool.blocks]
    arguments.clear()
    assert blocks and all(torch._C._storage_Use_Count(block[2]) == 1 for block in blocks)


def test_no_result_holds_itself() -> None:
    arguments = tensors()
    compiled = ready(layers, *arguments)
    result, _ = compiled(*arguments)
    gone = weakref.ref(result)
    gc.disable()
    try:
        del result, _
        assert gone() is None
    finally:
        gc.enable()


def test_an_argument_that_needs_no_gradient_is_not_held() -> None:
    def masked(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(y > 0, x, -x)

    x, y = tensors()
    compiled = ready(masked, x, y * 1)
    result = compiled(x, y * 1)
    assert torch.autograd.grad(result.sum(), y, allow_unused=True) == (None,)


def test_inference_is_direct_where_gradients_are_on() -> None:
    x, y = (tensor.detach() for tensor in tensors())
    compiled = torch.compile(gated, backend="hemstitch")
    for _ in range(2):
        result = compiled(x, y)
        torch.testing.assert_close(result, gated(x, y))
        assert torch.is_grad_enabled()


def parts(x: Tensor) -> list[Tensor]:
    return [x, x + 1, *x.split(2), x[1:, ::2], x.mT, x[0].expand(3, 6)]


def of_other_types(x: Tensor) -> list[Tensor]:
    return [torch.view_as_complex(x.view(4, 3, 2)), x.view(torch.int32), x[0]]


@pytest.mark.parametrize("function", [parts, of_other_types])
@pytest.mark.parametrize("begin", [0, 2])
def test_views_without_gradients_are_eagers(function: Any, begin: int) -> None:
    compiled = torch.compile(function, backend="hemstitch")
    x = torch.randn(4 + begin, 6)[begin:]
    for _ in range(2):
        for view, expected in zip(compiled(x), function(x), strict=True):
            assert torch.equal(view, expected) and view.stride() == expected.stride()
            assert view._is_view() == expected._is_view() and view._base is expected._base
            assert view.data_ptr() == expected.data_ptr() or not view._is_view()
    assert compiled(x)[0]._version == x._version


def test_views_without_gradients_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    again = []
    module = torch._functorch._aot_autograd.runtime_wrappers
    monkeypatch.setattr(module, "gen_alias_from_base", lambda *a, **k: again.append(a))
    torch.compile(parts, backend="hemstitch")(torch.randn(4, 6))
    assert not again


def test_autograd_sees_writes_to_views() -> None:
    compiled = torch.compile(lambda x: (x[1], x * 2), backend="hemstitch")
    weight = torch.randn(6, requires_grad=True)
    for _ in range(2):
        x = torch.randn(4, 6)
        before = x[1].clone()
        compiled(x)[0].mul_(weight)
        assert torch.equal(torch.autograd.grad(x.sum(), weight)[0], before)


def test_views_of_what_is_written_to() -> None:
    def written(x: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        return x[1:], x.mT

    x = torch.zeros(4, 6)
    first, second = torch.compile(written, backend="hemstitch")(x)
    x.add_(1)
    assert torch.equal(first, torch.full((3, 6), 2.0)) and second._base is x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", ["step", "backward"])
def test_compiled_autograd(part: str) -> None:
    x, y = tensors()
    compiled = ready(gated, x, y)
    expected = torch.autograd.grad(gated(x, y).sum(), (x, y))
    result = compiled(x, y).sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        if part == "step":
            result = compiled(x, y).sum()
        result.backward()
    torch.testing.assert_close((x.grad, y.grad), expected)


def test_transforms_see_through() -> None:
    x, y = tensors()
    compiled = ready(gated, x, y)
    found = torch.func.grad(lambda a, b: compiled(a, b).sum())(x.detach(), y.detach())
    torch.testing.assert_close(found, torch.autograd.grad(gated(x, y).sum(), x)[0])
    torch.testing.assert_close(torch.vmap(compiled)(x, y), gated(x, y))
