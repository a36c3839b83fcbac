"""Extrema and their positions in one kernel with a product of matrices, which goes by in blocks of
rows: values that are compared and their positions lie alike."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.effort import some

pytestmark = pytest.mark.usefixtures("kernels_multiply")

REDUCTIONS = {
    "max": lambda x: x.max(-1),
    "min": lambda x: x.min(-1),
    "argmax": lambda x: (x.amin(-1), x.argmax(-1)),
    "both": lambda x: (x.max(-1)[0] - x.min(-1)[0], torch.stack([x.argmin(-1), x.argmax(-1)])),
}
FILLS = {
    "numbers": lambda x: x,
    "ties": lambda x: x.round(),
    "nan": lambda x: x.masked_fill(x > 1, math.nan),
    "nothing": lambda x: x.masked_fill(x[..., :1] > 0, -math.inf),
}


def beside(reduce):
    def program(scores, x, weight, bias):
        values, places = reduce(scores)
        return values.t() + F.linear(x, weight, bias), places.mT.contiguous()

    return program


def before(reduce):
    def program(scores, x, weight, bias):
        values, places = reduce(scores.view(2, 128, 4))
        return torch.tanh(values.nan_to_num(0.0, 0.0, 0.0)) @ weight, places

    return program


def behind(reduce):
    def program(scores, x, weight, bias):
        values, places = reduce(F.linear(x, weight, bias).view(2, 32, 4) + scores[:2, :1])
        return values, places

    return program


CASES = some(
    [(beside, "max", "numbers"), (beside, "both", "ties"), (before, "min", "nan")],
    [(f, name, fill) for f in (beside, before, behind) for name in REDUCTIONS for fill in FILLS],
)


@pytest.mark.parametrize(("program", "name", "fill"), CASES)
def test_positions_are_eagers(program, name, fill):
    torch.manual_seed(0)
    function = program(REDUCTIONS[name])
    scores = FILLS[fill](torch.randn(128, 2, 4))
    arguments = scores, torch.randn(2, 128), torch.randn(128, 128), torch.randn(128)
    torch._dynamo.reset()
    found = torch.compile(function, backend="hemstitch", options={"strict": True})(*arguments)
    eager = function(*arguments)
    exact = function(*(x.double() for x in arguments))
    assert torch.equal(found[1], eager[1])
    torch.testing.assert_close(found[0].double(), exact[0], rtol=1e-5, atol=2e-5, equal_nan=True)


def test_gradients_go_to_the_positions():
    torch.manual_seed(0)
    arguments = [torch.randn(128, 2, 4), torch.randn(2, 128), torch.randn(128, 128)]
    arguments = [each.requires_grad_() for each in arguments]

    def program(scores, x, weight):
        values, _ = scores.max(-1)
        return F.layer_norm(values.t() + F.linear(x, weight), (128,)).square().sum(0)

    torch._dynamo.reset()
    wide = [each.detach().double().requires_grad_() for each in arguments]
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    weights = torch.randn(128)
    found = torch.autograd.grad((compiled(*arguments) * weights).sum(), arguments)
    exact = torch.autograd.grad((program(*wide) * weights).sum(), wide)
    for new, old in zip(found, exact):
        torch.testing.assert_close(new.double(), old, rtol=1e-4, atol=1e-4)
