"""What only backward needs, computed and saved by forward: whose gradients, what is saved, and what
it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hemstitch.backend import compile_with
from hemstitch.options import Options
from hemstitch.report.explain import Report, explain

ROWS, COLUMNS, WIDE = 32, 24, 40
Function = Callable[..., Tensor]


def learned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def compiled(function: Function, seen: list[Any] | None = None, **more: Any) -> Function:
    """`seen`: takes (kind, compiled graph)."""

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Any:
        observe = None if seen is None else lambda *each: seen.append(each)
        return compile_with(gm, inputs, Options(cache=False, strict=True, check=True), observe)

    torch._dynamo.reset()
    return torch.compile(function, backend=backend, **more)


def both(function: Function, arguments: Sequence[Tensor]) -> list[Tensor]:
    """The result, and the gradients of everything that has one."""
    trained = [x for x in arguments if x.requires_grad]
    torch.manual_seed(3)
    result = function(*arguments)
    weights = torch.linspace(-1, 2, result.numel()).reshape(result.shape).to(result.dtype)
    return [result, *torch.autograd.grad(result, trained, weights)]


def kept(seen: Sequence[Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """Types and shapes of what forward gives beside its result; arguments are not among them."""
    [graph] = [found.captured.graph for kind, found in seen if kind == "forward"]
    return [(str(o.value.type.dtype), tuple(o.value.type.shape)) for o in graph.outputs[1:]]


def bools(seen: Sequence[Any]) -> int:
    return sum(dtype == "bool" for dtype, _ in kept(seen))


def half_off(x: Tensor) -> Tensor:
    return torch.where(x.abs() > 0.5, x, torch.sin(x))


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: F.relu(x) + 1,
    "relu in place": lambda x: F.relu_(x * 1) + 1,
    "leaky relu": F.leaky_relu,
    "leaky relu in place": lambda x: F.leaky_relu_(x * 1),
    "relu6": lambda x: F.relu6(x * 4),
    "hardtanh": F.hardtanh,
    "hardsigmoid": lambda x: F.hardsigmoid(x * 4),
    "hardswish": F.hardswish,
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "clamp from below": lambda x: x.clamp_min(0.1),
    "where": half_off,
    "masked": lambda x: x.masked_fill(x > 0.3, 2.0),
    "larger": lambda x: torch.maximum(x, x.roll(1, 0)),
    "max pool": lambda x: F.max_pool1d(x, 2).repeat(1, 2),
    "gelu": F.gelu,
    "elu": F.elu,
    "absolute": torch.abs,
    "used twice": lambda x: (lambda y: y * y.sigmoid() + y.sum(0))(F.relu(x)),
    "chain": lambda x: F.relu(F.leaky_relu(x.clamp(-1, 1)) - 0.1) + 1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BETWEEN)
def test_gradients_are_eagers(name: str, dtype: torch.dtype) -> None:
    def layers(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return BETWEEN[name](x @ first) @ second

    shapes = ((ROWS, COLUMNS), (COLUMNS, WIDE), (WIDE, COLUMNS))
    arguments = [learned(*shape, dtype=dtype) for shape in shapes]
    exact = both(layers, [x.detach().double().requires_grad_() for x in arguments])
    eager, ours = both(layers, arguments), both(compiled(layers), arguments)
    for found, near, wanted in (map(Tensor.detach, each) for each in zip(ours, eager, exact)):
        scale = (1e-6 if dtype is torch.float32 else 1e-2) * float(wanted.norm())
        error = float((found.double() - wanted).norm())
        assert error <= 2 * float((near.double() - wanted).norm()) + scale


def test_nan_and_zero_are_on_eagers_side() -> None:
    x = torch.tensor(
        [-1.0, -0.0, 0.0, 1.0, torch.nan, torch.inf, -torch.inf] * 8, requires_grad=True
    )
    for function in (F.relu, F.leaky_relu, F.hardsigmoid, lambda x: x.clamp(0, 1)):

        def program(x: Tensor, function: Any = function) -> Tensor:
            return function(x * 1.0) + 1.0  # type: ignore[no-any-return]

        found, expected = both(compiled(program), [x]), both(program, [x])
        torch.testing.assert_close(found, expected, equal_nan=True)


def perceptron(x: Tensor, first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
    return F.dropout(F.relu(x @ first + bias), 0.25) @ second


def perceptrons() -> list[Tensor]:
    return [learned(*s) for s in ((ROWS, COLUMNS), (COLUMNS, WIDE), (WIDE,), (WIDE, COLUMNS))]


def test_a_mask_is_saved_in_place_of_what_it_is_made_from() -> None:
    """The next layer reads what dropout leaves, so that nothing else needs the ReLU's result."""
    seen: list[Any] = []
    run, arguments = compiled(perceptron, seen), perceptrons()
    both(run, arguments)
    found = [(dtype, sorted(shape)) for dtype, shape in kept(seen) if shape]
    assert sorted(found) == [("bool", [ROWS, WIDE]), ("f32", [ROWS, WIDE])]


def test_dropout_has_the_same_mask_in_both_passes() -> None:
    """By the gradient of the weight behind it, which sees the dropped values, against the mask."""
    x, first, bias, _ = perceptrons()
    second = torch.eye(WIDE)
    result, _, _, by_bias = both(compiled(perceptron), [x, first, bias, second])
    weights = torch.linspace(-1, 2, result.numel()).reshape(result.shape)
    torch.testing.assert_close(by_bias, ((result != 0) * weights / 0.75).sum(0))


def test_a_mask_is_not_held_beside_what_it_is_made_from() -> None:
    """The next layer's gradient reads the ReLU's result."""

    def layers(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return F.relu(x @ first) @ second

    seen: list[Any] = []
    both(compiled(layers, seen), [learned(*s) for s in ((ROWS, 8), (8, WIDE), (WIDE, 8))])
    assert kept(seen) == [("f32", (ROWS, WIDE))]


def test_a_mask_that_is_cheaper_to_make_again_is_not_saved() -> None:
    """Batch norm's input is there for its own gradient."""

    def normed(x: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, training=True)) * 2

    seen: list[Any] = []
    both(compiled(normed, seen), [learned(ROWS, 8, COLUMNS)])
    assert bools(seen) == 0


def test_forward_has_no_kernel_for_a_mask_alone() -> None:
    """A library call makes and another reads what the mask is of: each kernel of backward that
    needs it makes it again."""

    def sorted_twice(x: Tensor) -> Tensor:
        y = torch.cumsum(x, 0)
        return torch.cumsum(y, 1) * y.clamp(-1, 1).sum()

    seen: list[Any] = []
    x = learned(ROWS, COLUMNS)
    found = both(compiled(sorted_twice, seen), [x])
    torch.testing.assert_close(found, both(sorted_twice, [x]), rtol=1e-4, atol=1e-4)
    report = explain(sorted_twice, x, backward=True)
    [forward] = [each for each in report.kernels if each.graph == "forward"]
    assert forward.reads["in0"] <= 4 * x.numel()


def test_batch_sizes_share_one_compile() -> None:
    seen: list[Any] = []
    run = compiled(perceptron, seen, dynamic=True)
    _, *weights = perceptrons()
    for rows in (5, 16, 33):
        x = learned(rows, COLUMNS)
        torch.manual_seed(0)
        ours = both(run, [x, *weights])
        assert ours[1].shape == x.shape and not ours[1].isnan().any()
    assert [kind for kind, _ in seen] == ["forward", "backward"]
    assert bools(seen) == 1


def test_batch_sizes_have_eagers_gradients() -> None:
    def layers(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return F.leaky_relu(x @ first).clamp(-1, 1) @ second

    run = compiled(layers, dynamic=True)
    weights = [learned(COLUMNS, WIDE), learned(WIDE, 8)]
    for rows in (5, 16, 33):
        x = learned(rows, COLUMNS)
        torch.testing.assert_close(
            both(run, [x, *weights]), both(layers, [x, *weights]), rtol=1e-4, atol=1e-4
        )


def test_a_checkpoint_keeps_no_mask() -> None:
    """What the program wants made again is not kept in another shape."""

    def program(*arguments: Tensor) -> Tensor:
        return checkpoint(perceptron, *arguments, use_reentrant=False)  # type: ignore[no-any-return]

    seen: list[Any] = []
    arguments = perceptrons()
    both(compiled(program, seen), arguments)
    assert all(dtype != "bool" and ROWS not in shape for dtype, shape in kept(seen))

    def twice(x: Tensor, first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
        def block(x: Tensor) -> Tensor:
            return F.relu(x @ first + bias) @ second

        return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False)  # type: ignore[no-any-return]

    found, expected = both(compiled(twice), arguments), both(twice, arguments)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_what_forward_overwrites_is_saved_as_it_was() -> None:
    """PyTorch's partitioners save the argument, which has become something else by then."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Buffer(torch.ones(COLUMNS))

        def forward(self, x: Tensor) -> Tensor:
            result = F.relu(torch.exp(x * self.scale.clone()))
            with torch.no_grad():
                self.scale.add_(1)
            return result

    x = learned(ROWS, COLUMNS)
    eager, ours = Counting(), Counting()
    run = compiled(ours)
    for _ in range(3):
        torch.testing.assert_close(both(run, [x]), both(eager, [x]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.scale, eager.scale)


def test_a_model_that_normalises_by_running_numbers() -> None:
    """Buffers that forward writes to, and backward does not read."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    eager = nn.Sequential(*layers, nn.Dropout(0.0), nn.Flatten(), nn.Linear(8 * 9, 4))
    x = torch.randn(4, 3, 8, 8)
    names = [name for name, _ in eager.named_parameters()]
    results = []
    for run in (eager, compiled(eager)):
        eager.zero_grad()
        eager[1].reset_running_stats()
        run(x).square().sum().backward()
        results.append([p.grad for p in eager.parameters()] + [*eager.buffers()])
        results[-1] = [each.clone() for each in results[-1]]
    assert len(results[0]) == len(names) + 3
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def written(report: Report, graph: str) -> list[int]:
    kernels = [kernel for kernel in report.kernels if kernel.graph == graph]
    return [size for kernel in kernels for size in kernel.writes.values()]


def test_no_kernel_more_and_fewer_bytes() -> None:
    """Forward writes a byte and backward reads it where it would read four."""
    arguments = perceptrons()
    report = explain(perceptron, *arguments, backward=True, options={"products": False})
    graphs = [kernel.graph for kernel in report.kernels]
    assert graphs == ["forward", "backward"]
    assert ROWS * WIDE in written(report, "forward")
    assert sorted(report.kernels[1].reads.values())[-2:] == [ROWS * WIDE, 4 * ROWS * WIDE]
