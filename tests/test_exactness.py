"""The option `exact`: infinities and NaN spread as in eager, and each rule says what it keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hemstitch.exactness import EXACT, FINITE
from hemstitch.pipeline import (
    AFTER_AUTOGRAD,
    ARRANGE,
    BEFORE_AUTOGRAD,
    CPU,
    GPU,
    JOINT_REWRITES,
    SIMPLIFY,
)
from hemstitch.rewrites.reassociation import REASSOCIATE
from tests.capture.helpers import results

Program = Callable[..., Tensor]
NOT_EXACT = {
    *("interpolate axis by axis", "dead rows", "mask analysis", "merge added matmuls"),
    "reassociate",
}


def test_rules_keep_what_their_stages_say() -> None:
    assert all(rule.exactness is EXACT for rule in (*SIMPLIFY, *ARRANGE))
    assert all(rule.exactness is FINITE for rule in REASSOCIATE)
    stages = {*BEFORE_AUTOGRAD, *AFTER_AUTOGRAD, *JOINT_REWRITES, *CPU, *GPU}
    assert {stage.name for stage in stages if stage.exactness is not EXACT} == NOT_EXACT


def one_row(x: Tensor, weight: Tensor) -> Tensor:
    """A row that nobody reads is infinite: zero times infinity is in the weight's gradient."""
    return F.gelu(x @ weight)[:, 0]


def causal(scores: Tensor, values: Tensor) -> Tensor:
    """What the mask excludes is infinite: zero times infinity is in each row before."""
    rows = torch.arange(scores.shape[-1])
    weights = torch.softmax(scores.masked_fill(rows > rows[:, None], -torch.inf), -1)
    return weights @ values


def convolved(image: Tensor, weight: Tensor) -> Tensor:
    """An infinite element stays within the windows that have it."""
    return F.conv2d(image, weight, padding=1)


def inputs_of(program: Program) -> list[Tensor]:
    if program is one_row:
        x = torch.randn(4, 40, 64)
        x[:, 30] = torch.inf
        return [x, torch.randn(64, 96).requires_grad_()]
    if program is causal:
        values = torch.randn(2, 96, 64)
        values[:, 90] = torch.inf
        return [torch.randn(2, 96, 96), values]
    image = torch.randn(2, 64, 20, 20)
    image[0, 3, 10, 10] = torch.inf
    return [image.contiguous(memory_format=torch.channels_last), torch.randn(64, 64, 3, 3)]


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("program", [one_row, causal, convolved])
def test_what_is_not_finite_spreads_as_in_eager(program: Program) -> None:
    torch._dynamo.reset()
    arguments = inputs_of(program)
    compiled = torch.compile(program, backend="hemstitch", options={"exact": True})
    for ours, eager in zip(outputs(compiled, arguments), outputs(program, arguments), strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-4, atol=1e-3)


def outputs(program: Program, arguments: list[Tensor]) -> list[Tensor]:
    """With the gradients of those arguments that have one."""
    if any(argument.requires_grad for argument in arguments):
        return results(program, arguments)
    with torch.no_grad():
        return [program(*arguments)]
