"""What forward keeps for backward, and what backward computes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hemstitch.backend import compile_with
from hemstitch.options import Options
from hemstitch.report.explain import explain
from tests.compiled import watched

ROWS, COLUMNS = 64, 128


def kept_and_gradients(
    function: Callable[..., Tensor], *arguments: Tensor, options: dict[str, Any] | None = None
) -> tuple[list[Any], Any]:
    """(shapes of what forward returns beside its result and arguments, gradients)"""
    shapes: list[Any] = []

    def observe(kind: str, compiled: Any) -> None:
        if kind == "forward":
            graph = compiled.captured.graph
            shapes.extend(tuple(node.value.shape) for node in graph.outputs[1:])

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Any:
        return compile_with(
            gm, inputs, Options(cache=False, strict=True, **(options or {})), observe
        )

    torch._dynamo.reset()
    trained = [argument for argument in arguments if argument.requires_grad]
    result = torch.compile(function, backend=backend)(*arguments)
    return shapes, torch.autograd.grad(result.sum(), trained)


def trained(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def attention(scores: Tensor, values: Tensor) -> Tensor:
    """The dropped weights are in memory for the product; the weights themselves need not be."""
    return (torch.softmax(scores, -1) * 2.0) @ values


def two_sources(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x * y).exp()


def long_chain(x: Tensor) -> Tensor:
    for _ in range(12):
        x = torch.sin(x)
    return x * x


def large(shapes: list[Any]) -> list[Any]:
    return [shape for shape in shapes if torch.Size(shape).numel() >= ROWS * COLUMNS]


def test_logits_are_kept_and_not_their_logarithms() -> None:
    logits, labels = trained(ROWS, COLUMNS), torch.randint(COLUMNS, (ROWS,))
    shapes, gradients = kept_and_gradients(cross_entropy, logits, labels)
    assert not large(shapes)
    expected = torch.autograd.grad(cross_entropy(logits, labels), logits)
    torch.testing.assert_close(gradients, expected)


def test_what_a_product_reads_is_the_only_large_tensor_kept() -> None:
    scores, values = trained(ROWS, COLUMNS), trained(COLUMNS, 8)
    shapes, gradients = kept_and_gradients(attention, scores, values)
    assert len(large(shapes)) == 1
    expected = torch.autograd.grad(attention(scores, values).sum(), (scores, values))
    torch.testing.assert_close(gradients, expected)


def test_a_result_is_not_read_beside_what_it_follows_from() -> None:
    """Batch norm needs its input for the gradient; the mask of the ReLU follows from it too."""

    def normed(x: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, training=True))

    x = trained(ROWS, 8, COLUMNS)
    report = explain(normed, x, backward=True)
    [kernel] = [kernel for kernel in report.kernels if kernel.graph == "backward"]
    assert sorted(kernel.reads.values())[-2:] == [4 * x.numel()] * 2
    assert sum(size >= 4 * x.numel() for size in kernel.reads.values()) == 2
    _, gradients = kept_and_gradients(normed, x)
    torch.testing.assert_close(gradients, torch.autograd.grad(normed(x).sum(), [x]))


def test_a_result_that_a_product_reads_is_not_computed_again() -> None:
    """It is in memory for the gradient of the weight."""

    def layer(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(F.batch_norm(x, None, None, training=True))
        return y, y @ weight

    x, weight = trained(ROWS, COLUMNS), trained(COLUMNS, 8)
    report = explain(layer, x, weight, backward=True)
    written = [kernel.writes for kernel in report.kernels if kernel.graph == "backward"]
    assert sum(4 * x.numel() in each.values() for each in written) == 1


@pytest.mark.parametrize(
    ("function", "count"), [(two_sources, 2), (long_chain, 1)], ids=["two_sources", "long_chain"]
)
def test_what_is_dear_to_compute_is_left_to_the_cut(
    function: Callable[..., Tensor], count: int
) -> None:
    arguments = [trained(ROWS, COLUMNS) for _ in range(count)]
    _, gradients = kept_and_gradients(function, *arguments)
    expected = torch.autograd.grad(function(*arguments).sum(), arguments)
    torch.testing.assert_close(gradients, expected)


def mlp(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(F.layer_norm(x, (COLUMNS,)) @ first), (COLUMNS,)) @ second


@pytest.mark.parametrize("options", [{"planner": "ilp"}, {"memory_budget": 0.3}], ids=str)
def test_whoever_decides_gradients_are_right(options: dict[str, Any]) -> None:
    arguments = [trained(ROWS, COLUMNS), trained(COLUMNS, COLUMNS), trained(COLUMNS, COLUMNS)]
    _, gradients = kept_and_gradients(mlp, *arguments, options=options)
    expected = torch.autograd.grad(mlp(*arguments).sum(), arguments)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-4)


def test_a_small_budget_keeps_less() -> None:
    """The first layer norm can be made again from its input; the library's products cannot."""
    arguments = [trained(ROWS, COLUMNS), trained(COLUMNS, COLUMNS), trained(COLUMNS, COLUMNS)]
    held = [
        len(large(kept_and_gradients(mlp, *arguments, options={"memory_budget": share})[0]))
        for share in (1.0, 0.5, 0.0)
    ]
    assert held[0] > held[1] >= held[2]


def test_what_the_program_checkpoints_is_not_kept() -> None:
    """Not even the library's products, which nothing else makes again."""

    def block(x: Tensor, weight: Tensor) -> Tensor:
        weight = weight / COLUMNS
        return torch.sin(torch.sin(x @ weight) @ weight) @ weight

    def program(x: Tensor, weight: Tensor) -> Tensor:
        return checkpoint(block, x, weight, use_reentrant=False)  # type: ignore[no-any-return]

    arguments = [trained(4 * ROWS, COLUMNS), trained(COLUMNS, COLUMNS)]
    shapes, gradients = kept_and_gradients(program, *arguments)
    assert not large(shapes)
    assert large(kept_and_gradients(block, *arguments)[0])
    expected = torch.autograd.grad(block(*arguments).sum(), arguments)
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-3)


def test_a_size_is_no_part_of_what_is_as_long() -> None:
    """Backward reads the length of what forward has put together, and nothing else of it."""

    def function(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return torch.cat((x @ weight, y @ weight)).sum(1)

    torch._dynamo.reset()
    options = {"strict": True, "check": True}
    compiled = torch.compile(function, backend="hemstitch", options=options, dynamic=True)
    wide = {"dtype": torch.float64}  # exponentials of single precision differ by much
    weight = torch.randn(6, 4, **wide, requires_grad=True)
    for rows in (3, 5):
        x, y = torch.randn(rows, 6, **wide, requires_grad=True), torch.randn(7, 6, **wide)
        found, expected = (
            torch.autograd.grad(each(x, y, weight).exp().sum(), (x, weight))
            for each in (compiled, function)
        )
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.max(0)[0],
        lambda x: x.min(1)[0],
        lambda x: x.topk(2, 1)[0],
        lambda x: x.topk(3, 0)[0],  # whose gradient is the library's
    ],
)
def test_places_are_kept_and_not_computed_again(function: Callable[[Tensor], Tensor]) -> None:
    """They are results of what forward does anyway; backward would read all of `x` for them."""
    x = trained(ROWS, COLUMNS)
    shapes, gradients = kept_and_gradients(function, x)
    places = tuple(n for n in function(x).shape if n > 1)
    assert [tuple(n for n in shape if n > 1) for shape in shapes] == [places]
    torch.testing.assert_close(gradients, torch.autograd.grad(function(x).sum(), [x]))


def test_functions_of_doubles_are_not_computed_again() -> None:
    """Which takes longer than to read what forward has written anyway."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1, dtype=torch.float64)

    compiled, report = watched(program)
    x = torch.randn(64, 50, requires_grad=True)
    compiled(x).backward(torch.rand(64, 50, dtype=torch.float64))
    (backward,) = (kernel for kernel in report.kernels if kernel.graph == "backward")
    assert "exp" not in backward.ir


def _half(x: Tensor, weight: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, weight)


def _checkpointed(x: Tensor, y: Tensor) -> Tensor:
    result = checkpoint(lambda x: torch.sin(x + y).exp(), x + 1, use_reentrant=False)
    assert isinstance(result, Tensor)
    return result


WRITTEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scaled": lambda x, y: torch.sin(x * 2).exp(),
    "sign": lambda x, y: (x + 1).abs(),
    "part": lambda x, y: F.gelu(x[1:] + 1),
    "two": lambda x, y: F.gelu(x + y),
    "normalised": lambda x, y: F.layer_norm(x + y, (8,)),
    "two types": lambda x, y: F.silu(torch.cat([x, x.bfloat16()])).float(),
    "read twice": lambda x, y: F.gelu(x + 1) + F.silu(x - y),
    "masked": lambda x, y: torch.where(x > 0, y, -y).exp(),
    "positions": lambda x, y: (y + 1).sin() * (x * 3).cos(),
    "multiplied": lambda x, y: torch.tanh(x @ y + x),
    "checkpoint": _checkpointed,
    "half": _half,
}


@pytest.mark.parametrize("planner", ["auto", "ilp"])
@pytest.mark.parametrize("has_gradient", [True, False])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_program_may_write_to_what_autograd_does_not_save(
    name: str, has_gradient: bool, planner: str
) -> None:
    """Arguments that are no leaves: what backward needs of them is not read from them."""
    function, leaves = WRITTEN[name], [trained(8, 8), trained(8, 8)]
    compiled = torch.compile(function, backend="hemstitch", options={"planner": planner})

    def gradients(function: Callable[[Tensor, Tensor], Tensor], write: str) -> Any:
        x, y = (leaf * 1 for leaf in leaves)
        x = x if has_gradient else x.detach()
        result = function(x, y) * leaves[1].sum()
        with torch.no_grad():
            x.add_(1) if write == "add_" else x.unsqueeze_(0)
        try:
            return torch.autograd.grad(result.sum(), leaves, allow_unused=True)
        except RuntimeError as error:
            assert "inplace" in str(error)
            return "raises"

    for write in ("add_", "unsqueeze_"):
        expected, ours = gradients(function, write), gradients(compiled, write)
        _assert_alike(ours, expected)


RESULTS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "product": lambda x: (y := x @ x.t(), F.gelu(y + 1)),
    "part": lambda x: (y := x.exp() + 1, F.gelu(y[1:] + 2)),
    "view": lambda x: ((y := x @ x.t()).view(-1), F.gelu(y + 1)),
    "twice": lambda x: (y := x * 3, F.gelu(y + 1) + torch.sin(y * 2)),
    "library": lambda x: (y := torch.linalg.inv(x), F.gelu(y + 1)),
    "read": lambda x: (y := x @ x.t(), F.gelu(y)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_program_may_write_to_results_that_autograd_does_not_save(name: str) -> None:
    function, leaf = RESULTS[name], trained(8, 8)

    def gradient(function: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Any:
        first, second = function(leaf * 1)
        with torch.no_grad():
            first.add_(1)
        try:
            return torch.autograd.grad(second.sum(), leaf)
        except RuntimeError as error:
            assert "inplace" in str(error)
            return "raises"

    expected = gradient(function)
    compiled = torch.compile(function, backend="hemstitch")
    for _ in range(2):  # through AOTAutograd's wrappers, then without
        _assert_alike(gradient(compiled), expected)


def _assert_alike(ours: Any, eager: Any) -> None:
    if "raises" in (ours, eager):
        assert ours == eager
    else:
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


def test_leaves_and_weights_are_kept_in_place_of_what_is_made_of_them() -> None:
    """Autograd does not let a program write to them."""
    weight = torch.nn.Parameter(torch.randn(ROWS, COLUMNS))
    programs: list[tuple[Callable[..., Tensor], Tensor, list[Any]]] = [
        (lambda x: F.gelu(x + 1), trained(ROWS, COLUMNS), []),
        (lambda x: F.gelu(x + 1), trained(ROWS, COLUMNS) * 1, [(ROWS, COLUMNS)]),
        (lambda x: F.gelu(weight + 1) + x, trained(1), []),
    ]
    for function, argument, kept in programs:
        shapes, _ = kept_and_gradients(function, argument)
        assert shapes == kept
