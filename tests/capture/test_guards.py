"""A graph is compiled for as many sizes as PyTorch's own trace allows: no stage adds a guard. Sizes
that PyTorch does not compare, but a program needs equal, are one."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.effort import some

OURS = (
    *("hemstitch/before_autograd", "hemstitch/capture", "hemstitch/joint", "hemstitch/calls"),
    *("hemstitch/fallback", "hemstitch/rewrites", "hemstitch/planning", "hemstitch/runtime"),
    *("hemstitch/driver", "hemstitch/measure"),
)
Program = Callable[..., Tensor]
ROWS = (32, 64, 128)  # 64: as wide as the operands, which is chance


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Those that come while a line of ours is under way."""
    seen: list[str] = []
    usual = ShapeEnv._log_guard

    def noted(self: ShapeEnv, prefix: str, guard: Any, forcing: bool) -> None:
        lines = [
            line for line in traceback.extract_stack() if any(o in line.filename for o in OURS)
        ]
        if lines:
            seen.append(f"{guard} at {lines[-1].filename}:{lines[-1].lineno}")
        usual(self, prefix, guard, forcing)

    monkeypatch.setattr(ShapeEnv, "_log_guard", noted)
    yield seen
    torch._dynamo.reset()


def graphs(backend: str, program: Program, calls: Sequence[tuple[Tensor, ...]]) -> list[int]:
    """How many there are after each call. Results, and gradients, are eager's."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    options = {"strict": True} if backend == "hemstitch" else None
    compiled, counts = torch.compile(program, backend=backend, options=options), []
    for arguments in calls:
        leaves = [x for x in arguments if x.requires_grad]
        found, expected = (function(*arguments) for function in (compiled, program))
        torch.testing.assert_close(found, expected)
        if leaves:
            weights = torch.linspace(0.5, 1, expected.numel()).view_as(expected)
            both = (torch.autograd.grad(x, leaves, weights) for x in (found, expected))
            torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return counts


def rows(requires_grad: bool) -> list[tuple[Tensor]]:
    return [(torch.randn(n, 64, requires_grad=requires_grad),) for n in ROWS]


class Masked(nn.Module):
    """Causal attention, its mask made in the program."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 192)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.dense(x).view(x.shape[0], 8, -1, 3).unbind(-1)
        scores = q @ k.mT + torch.full((8, 8), float("-inf")).triu(1)
        return (scores.softmax(-1) @ v).flatten(1)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "a row of ones": lambda: lambda x: x * torch.ones(64),
    "a norm": lambda: nn.LayerNorm(64),
    "a norm of columns": lambda: nn.BatchNorm1d(64),
    "attention": Masked,
    "a sum over itself": lambda: lambda x: (x[:, None] + x[None]).sum(1).softmax(0),
    "an embedding": lambda: lambda x: F.embedding(x.argmax(1) % 8, x[:8]) * x,
    "written to": lambda: lambda x: x.clone().add_(1).t().contiguous().mul(2),
    "images": lambda: lambda x: F.avg_pool2d(x.view(-1, 4, 4, 4).relu(), 2).flatten(1),
    "interpolated": lambda: lambda x: F.interpolate(x[None, None], scale_factor=2.0)[0, 0],
    "added along": lambda: lambda x: torch.zeros_like(x).index_add(0, x.argmax(1) % 16, x),
}
CHOSEN = ["a row of ones", "a norm"]


@pytest.mark.parametrize("name", some(CHOSEN, [name for name in PROGRAMS if name not in CHOSEN]))
@pytest.mark.parametrize("training", some([True], [False]))
def test_as_many_graphs_as_pytorch_makes(name: str, training: bool, guards: list[str]) -> None:
    torch.manual_seed(0)
    program = PROGRAMS[name]()
    counts = [graphs(b, program, rows(training)) for b in ("aot_eager", "hemstitch")]
    assert counts[0] == counts[1]
    assert guards == []


@pytest.mark.usefixtures("kernels_multiply")
def test_two_caches_that_grow() -> None:
    """Keys and values have two symbols, and attention that is written out one length."""

    def program(q: Tensor, past_k: Tensor, past_v: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        return F.scaled_dot_product_attention(q, keys, value=values)

    def call(length: int) -> tuple[Tensor, ...]:
        sizes = (1, length, length, 1, 1)
        return tuple(torch.randn(2, 4, size, 16) for size in sizes)

    counts = [graphs(b, program, [*map(call, (7, 8, 30))]) for b in ("aot_eager", "hemstitch")]
    assert counts[0] == counts[1]


@pytest.mark.usefixtures("kernels_multiply")
def test_more_values_than_keys_are_the_librarys() -> None:
    """What PyTorch makes of them is not looked at: it reads keys and values as if they were as
    many."""
    torch._dynamo.reset()
    compiled = torch.compile(
        F.scaled_dot_product_attention, backend="hemstitch", options={"strict": True}, dynamic=True
    )
    q, k, v = (torch.randn(1, 2, size, 16) for size in (1, 7, 9))
    assert compiled(q, k, v).shape == q.shape


def _attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x.sin(), x, x.cos(), is_causal=True)


def _noise(x: Tensor) -> Tensor:
    return torch.sin(x * torch.rand_like(x)) + torch.normal(x.detach(), 0.1) * x


@pytest.mark.parametrize("block", [_attention, _noise])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_checkpoint_compiles(block: Program, depth: int) -> None:
    """Attention draws no random numbers, though PyTorch says that it may; what does has its state
    saved, and draws them again."""

    def program(x: Tensor) -> Tensor:
        for _ in range(depth):
            x = checkpoint(block, x, use_reentrant=False)
        return x * 2

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    x = torch.randn(2, 4, 8, 16, requires_grad=True)
    results = []
    for function in (program, compiled):
        torch.manual_seed(1)
        result = function(x)
        results.append((result, *torch.autograd.grad(result.cos().sum(), x)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
