"""Forward and backward through AOTAutograd, capture and the interpreter, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.helpers import InterpretBackend, library_names
from tests.effort import some

Function = Callable[..., Any]
Shapes = tuple[tuple[int, ...], ...]

# Sizes of 1 and of more than 9 stay; the others grow from one call to the next.
FUNCTIONS: dict[str, tuple[Function, Shapes]] = {
    "gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), ((4, 6),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), ((4, 6), (6,), (6,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5), ((4, 6), (6,))),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        ((4, 6, 3), (6,), (6,)),
    ),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((4, 12, 5), (12,), (12,))),
    "softmax": (lambda x: F.softmax(x, -1) + F.log_softmax(x, 0), ((4, 6),)),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, torch.arange(x.shape[0]), label_smoothing=0.1),
        ((4, 7),),
    ),
    "ignore_index": (
        lambda x: F.cross_entropy(x, torch.arange(x.shape[0]), ignore_index=2),
        ((4, 7),),
    ),
    "regression": (
        lambda x, y: F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y),
        ((4, 6), (4, 6)),
    ),
    "binary": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()) + F.softplus(x).mean(),
        ((4, 6), (4, 6)),
    ),
    "attention": (F.scaled_dot_product_attention, ((2, 3, 4, 8),) * 3),
    "attention_by_hand": (
        lambda q, k, v: (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v,
        ((2, 3, 4, 8),) * 3,
    ),
    "moments": (
        lambda x: x.var(0).sum() + x.std(1, correction=0).sum() + x.norm() + x.logsumexp(1).sum(),
        ((4, 6),),
    ),
    "extremes": (lambda x: x.max(1).values + x.amin(1) + x.median(1)[0], ((4, 6),)),
    "library": (lambda x: x.cumsum(0) + x.sort(1)[0] + x.topk(2, 1)[0].sum(), ((4, 6),)),
    "rolled": (lambda x: x.roll(2, 0) + x.flip(1) + F.pad(x, (1, -1)), ((4, 6),)),
    "cosine": (lambda x, y: F.cosine_similarity(x, y, -1), ((4, 6), (4, 6))),
    "pool": (
        lambda x: F.avg_pool2d(x, 2).sum() + F.adaptive_avg_pool2d(x, 2).mean(),
        ((2, 3, 12, 10),),
    ),
    "convolution": (lambda x, w: F.relu(F.conv2d(x, w)), ((2, 10, 12, 10), (12, 10, 3, 3))),
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(x)).sum(-1) * 2, ((4, 6),)),
    "turned numbers": (
        lambda x: torch.view_as_real(torch.view_as_complex(x[..., None] * x[0, :2]) * (1 + 2j)),
        ((4, 6),),
    ),
    "sizes": (
        lambda x: x.reshape(-1)[: x.numel() // 2] * (x.shape[0] + 1) / x.shape[1],
        ((4, 6),),
    ),
}


def make(shapes: Shapes, growth: int) -> list[torch.Tensor]:
    return [
        torch.randn(
            [size + growth if 1 < size < 10 else size for size in shape], dtype=torch.float64
        ).requires_grad_()
        for shape in shapes
    ]


def gradients(function: Function, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    result = function(*arguments)
    return [result, *torch.autograd.grad(result.square().sum(), arguments)]


@pytest.mark.parametrize("dynamic", some([False], [True]))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str, dynamic: bool) -> None:
    """With sizes dynamic, one compile serves both calls: capture adds no guard."""
    torch._dynamo.reset()
    function, shapes = FUNCTIONS[name]
    backend = InterpretBackend()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)
    for growth in (0, 1) if dynamic and name not in ("pool", "convolution") else (0,):
        arguments = make(shapes, growth)
        torch.testing.assert_close(gradients(compiled, arguments), gradients(function, arguments))
    assert len(backend.captured) == 2


def test_a_layer_in_training_and_inference() -> None:
    torch._dynamo.reset()
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    backend = InterpretBackend()
    compiled = torch.compile(layer, backend=backend)
    parameters = list(layer.parameters())
    expected, result = layer(x), compiled(x)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(
        torch.autograd.grad(result.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
    )
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected)


def test_precision_of_the_reference() -> None:
    """In float64 the interpreter is nearer to the truth than eager's float32."""
    torch._dynamo.reset()
    x = torch.randn(64, 256) * 10

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.softmax(-1), (256,)).exp().mean(-1)

    truth = function(x.double())
    result = torch.compile(function, backend=InterpretBackend(precise=True))(x)
    assert result.dtype is torch.float64
    torch.testing.assert_close(result, truth, rtol=1e-12, atol=1e-12)


def test_autocast_becomes_casts() -> None:
    torch._dynamo.reset()
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    backend = InterpretBackend()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ w).relu()

    result = torch.compile(function, backend=backend)(x, w)
    assert result.dtype is torch.bfloat16
    assert torch.equal(result, function(x, w))
    assert library_names(backend.captured[0]) == ["aten.mm.default"]


def test_norms_leave_nothing_to_the_library() -> None:
    torch._dynamo.reset()
    backend = InterpretBackend()
    x = torch.randn(4, 12, 5, requires_grad=True)
    weight = torch.randn(12, requires_grad=True)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.group_norm(F.batch_norm(x, None, None, w, w, True), 3, w, w)
        return F.layer_norm(y, (5,)).softmax(1)

    torch.compile(function, backend=backend)(x, weight).sum().backward()
    assert [library_names(captured) for captured in backend.captured] == [[], []]


class _Counted(torch.autograd.Function):
    """Forward and backward write to the same argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: Tensor) -> Tensor:
        ctx.save_for_backward(x, count.clone())
        count.mul_(2).add_(1)
        ctx.count = count
        return x * count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        _, before = ctx.saved_tensors
        ctx.count[:1].add_(gradient.sum() * before[:1])
        return gradient * ctx.count, None


def test_both_passes_write_to_an_argument() -> None:
    def program(x: Tensor, count: Tensor) -> Tensor:
        hidden: Tensor = _Counted.apply(x, count)
        return hidden.tanh()

    outcomes = []
    for function in (program, torch.compile(program, backend="hemstitch", fullgraph=True)):
        x, count = torch.linspace(-1, 1, 3, requires_grad=True), torch.ones(3)
        for _ in range(2):
            function(x, count).sum().backward()
        outcomes.append((count, x.grad))
    torch.testing.assert_close(outcomes[1], outcomes[0])


@pytest.mark.parametrize("axis", [0, 1])
def test_signs_of_small_gradients_of_softmax(axis: int) -> None:
    """Too small for the type, they are zeros with the signs that eager's have."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(axis), F.softmin(y, axis)

    torch.manual_seed(0)
    torch._dynamo.reset()
    x = torch.randn(6, 7).bfloat16()
    x[1, :3] = 100
    operands = [x.clone().requires_grad_() for _ in range(2)]
    directions = [torch.arange(42).cos().view(6, 7).bfloat16()] * 2
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    results = (torch.autograd.grad(f(*operands), operands, directions) for f in (compiled, program))
    for gradient, eager in zip(*results, strict=True):
        torch.testing.assert_close(gradient, eager)
        assert torch.equal(gradient.signbit(), eager.signbit())
