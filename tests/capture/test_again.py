"""What is saved for a library call, and made again by a kernel that need not read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hemstitch.backend import compile_with
from hemstitch.driver.verified import difference
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep, LibraryStep

ROWS, COLUMNS, WIDE = 96, 40, 56


def read_in_backward(
    function: Callable[..., Tensor], arguments: Sequence[Tensor]
) -> tuple[set[str], set[str]]:
    """Names of saved values that library calls read, and that kernels read; gradients are checked
    on the way."""
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Any:
        options = Options(cache=False, strict=True, check=True)
        return compile_with(gm, inputs, options, lambda *each: seen.append(each))

    torch._dynamo.reset()
    weights = torch.randn_like(function(*arguments))
    found = torch.autograd.grad(
        torch.compile(function, backend=backend)(*arguments), arguments, weights
    )
    exact = [x.detach().double().requires_grad_() for x in arguments]
    for ours, wanted in zip(found, torch.autograd.grad(function(*exact), exact, weights.double())):
        assert difference(ours, wanted) < 1e-5
    [plan] = [each.plan for kind, each in seen if kind == "backward"]
    by_library: set[str] = set()
    by_kernels: set[str] = set()
    for step in plan.steps:
        if isinstance(step, LibraryStep):
            by_library |= {o.tensor.node.attr.name for o in step.operands if o.tensor.is_argument}
        elif isinstance(step, KernelStep):
            by_kernels |= {tensor.node.attr.name for tensor in step.reads if tensor.is_argument}
    return by_library, by_kernels


def learned(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


def test_a_mask_is_made_from_what_its_kernel_reads_anyway() -> None:
    def layers(x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
        return F.relu(x * scale) @ weight

    arguments = learned(ROWS, COLUMNS), learned(COLUMNS), learned(COLUMNS, WIDE)
    by_library, by_kernels = read_in_backward(layers, arguments)
    assert "t" in by_library and not by_kernels & {"relu", "t"}


def test_batch_norm_before_a_convolution() -> None:
    def layers(x: Tensor, first: Tensor, scale: Tensor, shift: Tensor, second: Tensor) -> Tensor:
        x = F.batch_norm(F.conv2d(x, first), None, None, scale, shift, training=True)
        return F.conv2d(F.relu(x), second)

    arguments = (
        *(learned(4, 3, 9, 9), learned(8, 3, 3, 3), learned(8), learned(8)),
        learned(5, 8, 3, 3),
    )
    by_library, by_kernels = read_in_backward(layers, arguments)
    assert "relu" in by_library and "relu" not in by_kernels


def test_what_would_have_to_be_loaded_for_it_is_not_made_again() -> None:
    """The kernel needs a mask alone: one tensor is read for it, whichever."""

    def layers(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return F.relu(x + y) @ weight

    arguments = learned(ROWS, COLUMNS), learned(ROWS, COLUMNS), learned(COLUMNS, WIDE)
    by_library, by_kernels = read_in_backward(layers, arguments)
    assert by_library & by_kernels == {"relu"}
