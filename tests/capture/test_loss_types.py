"""Losses of operands whose types differ: the result has eager's type, or eager's error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.effort import some

Loss = Callable[[Tensor, Tensor], Tensor]
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
INT, BOOL = torch.int64, torch.bool
LOSSES: dict[str, Loss] = {
    "huber": lambda x, y: F.huber_loss(x, y, delta=0.5),
    "huber of each": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "soft margin": lambda x, y: F.soft_margin_loss(x, y, reduction="none"),
    "cross entropy of two": lambda x, y: F.binary_cross_entropy(x, x.detach(), y),
    "with logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "squares": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "absolute": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "smooth": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "divergence": lambda x, y: F.kl_div(x, y, reduction="none"),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y),
    "gaussian": lambda x, y: F.gaussian_nll_loss(x, y, y + 0.1),
}
PAIRS = some([(F32, F64), (F16, F32)], [(F64, F32), (BF16, F16), (F32, BF16), (F64, F16)])


@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_types_of_losses(types: tuple[torch.dtype, torch.dtype]) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return [loss(x, y) for loss in LOSSES.values()]

    torch.manual_seed(0)
    torch._dynamo.reset()
    x, y = (torch.rand(3, 5).mul(0.8).add(0.1).to(dtype) for dtype in types)
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    narrowest = max(types, key=lambda dtype: torch.finfo(dtype).eps)
    unit = torch.finfo(narrowest).eps
    for name, result, expected in zip(LOSSES, compiled(x, y), program(x, y)):
        assert result.dtype is expected.dtype, name
        torch.testing.assert_close(result, expected, rtol=8 * unit, atol=8 * unit)


REFUSED: list[tuple[str, Loss, torch.dtype, torch.dtype]] = [
    *(("huber of each", LOSSES["huber of each"], *types) for types in ((INT, F32), (INT, INT))),
    ("squares", LOSSES["squares"], INT, BOOL),
    ("smooth", LOSSES["smooth"], INT, INT),
    ("with logits", LOSSES["with logits"], F32, INT),
    ("soft margin", LOSSES["soft margin"], INT, F32),
    ("cross entropy", F.binary_cross_entropy, F32, F64),
    ("cross entropy", F.binary_cross_entropy, F32, BOOL),
]


@pytest.mark.parametrize(("name", "loss", "first", "second"), REFUSED)
def test_what_eager_refuses(name: str, loss: Loss, first: torch.dtype, second: torch.dtype) -> None:
    torch._dynamo.reset()
    x, y = (torch.ones(3, 4).to(dtype) for dtype in (first, second))
    for call in (loss, torch.compile(loss, backend="hemstitch")):
        with pytest.raises((RuntimeError, NotImplementedError), match=r"dtype|type|implemented"):
            call(x, y)


@pytest.mark.filterwarnings("ignore:H008")
def test_a_loss_of_two_types_that_nothing_differentiates() -> None:
    """Eager refuses its gradient, which AOTAutograd computes all the same; the zeros that come in
    have another type than it traced, so that backward may run through the library."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(1), F.huber_loss(x, y)

    torch._dynamo.reset()
    x, y = torch.rand(3, 4, requires_grad=True), torch.rand(3, 4, dtype=F64)
    compiled = torch.compile(program, backend="hemstitch")
    direction = torch.arange(12.0).view(3, 4)
    gradients = [torch.autograd.grad(call(x, y)[0], x, direction) for call in (compiled, program)]
    torch.testing.assert_close(*gradients)
