"""Rows too long to be kept are walked once: what such kernels mean, and when there are any."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from hemstitch.capture.translation import capture
from hemstitch.kernel_ir.nodes import Running, statements
from hemstitch.kernel_ir.passes.scalarisation import scalarise
from hemstitch.kernel_ir.verifier import verify
from hemstitch.matmul.lowering.contraction_loops import expand_contractions
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import Simulation, execute, plan_for
from tests.effort import some
from tests.lowered import optimize

KEYS = 300  # more than stay in registers
INFINITE = float("-inf")


def operands(queries=20, keys=KEYS, width=24, batch=(1, 2), dtype=torch.float32):
    """Queries, keys and values."""
    generator = torch.Generator().manual_seed(keys + width)
    counts = (queries, keys, keys)
    return [torch.randn(*batch, n, width, generator=generator).to(dtype) for n in counts]


def scores(q, k):
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def attention(q, k, v):
    return torch.softmax(scores(q, k), -1) @ v


def masked(q, k, v, mask):
    return torch.softmax(scores(q, k) + mask, -1) @ v


def causal(q, k, v):
    rows, columns = (torch.arange(x.shape[-2], device=q.device) for x in (q, k))
    hidden = columns[None, :] > 10 * rows[:, None]
    return torch.softmax(scores(q, k).masked_fill(hidden, INFINITE), -1) @ v


def epilogue(q, k, v, residual, weight):
    """Two more loops over the columns of the result."""
    out = attention(q, k, v).transpose(1, 2)
    return F.layer_norm(out + residual, weight.shape, weight)


def gated(q, k, v, gate):
    """A factor that differs along the row stays inside, the others do not."""
    return 2 * ((torch.softmax(scores(q, k), -1) * gate / q.shape[-1]) @ v)


def safe(q, k, v, mask):
    """Rows without any key are zero."""
    s = scores(q, k) + mask
    weights = torch.softmax(s, -1).masked_fill((s == INFINITE).all(-1, keepdim=True), 0.0)
    return weights @ v


def relu(q, k, v):
    return torch.relu(scores(q, k)) @ v


def squares(q, k, v):
    """Divided by a sum of the row, but no exponential of it."""
    s = torch.relu(scores(q, k)).square()
    return (s / (s.sum(-1, keepdim=True) + 1e-6)) @ v


def of_scores(s, v):
    return torch.softmax(s, -1) @ v


def log_sums(x, weight):
    """No product over the lanes, only a sum that follows a maximum."""
    s = x @ weight
    greatest = s.amax(-1, keepdim=True)
    return greatest + (s - greatest).exp().sum(-1, keepdim=True).log()


def shared_keys(q, k, v):
    """Heads in groups, each with one set of keys."""
    return attention(q, *(x[:, :1].expand(-1, q.shape[1], -1, -1) for x in (k, v)))


def infinite_mask(queries=20, keys=KEYS):
    """Rows hide the first keys, the last ones, all but one, all, none."""
    mask = torch.zeros(queries, keys)
    mask[0, :200] = mask[1, 200:] = mask[2] = mask[3] = INFINITE
    mask[2, 77] = 0.0
    return mask


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


PROGRAMS = {
    "attention": (attention, operands()),
    "one of a batch": (attention, operands(batch=(1, 1), keys=1000, width=80)),
    "masked": (masked, [*operands(), infinite_mask()]),
    "causal": (causal, operands()),
    "epilogue": (epilogue, [*operands(), random(1, 20, 2, 24), random(24)]),
    "gated": (gated, [*operands(), random(20, KEYS)]),
    "safe": (safe, [*operands(), infinite_mask()]),
    "relu": (relu, operands()),
    "squares": (squares, operands()),
    "of scores": (of_scores, [random(3, 20, KEYS), random(3, KEYS, 24)]),
    "log sums": (log_sums, [random(40, 24), random(24, 500)]),
    "heads in groups": (shared_keys, operands()),
}
UNLIKE = ["causal", "epilogue", "safe", "log sums"]  # one another


def planned(function, arguments):
    """The graph of a program and its plan for a GPU."""
    captured = capture(make_fx(function, tracing_mode="fake")(*arguments), arguments)
    graph = optimize(captured.graph, captured.builder)
    return graph, plan_for(graph, generic_gpu())


@pytest.mark.parametrize(("function", "arguments"), PROGRAMS.values(), ids=PROGRAMS)
def test_long_rows_are_one_kernel(function, arguments):
    _, plan = planned(function, arguments)
    assert len(plan.steps) == 1, [str(refusal) for _, refusal in plan.refusals]


@pytest.mark.parametrize("lanes", some([37], [None]))
@pytest.mark.parametrize("name", some(UNLIKE, [n for n in PROGRAMS if n not in UNLIKE]))
def test_any_number_of_lanes_at_a_time(name, lanes):
    function, arguments = PROGRAMS[name]
    graph, plan = planned(function, arguments)
    (found,) = Simulation({}, 3, lanes=lanes).run(graph, plan, arguments)
    exact = function(*(x.double() for x in arguments))
    assert torch.allclose(found, exact, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(("function", "arguments"), PROGRAMS.values(), ids=PROGRAMS)
def test_one_lane_at_a_time_on_a_processor(function, arguments):
    """No plan for processors has such loops, but their printer can do without."""
    graph, plan = planned(function, arguments)
    for step in plan.kernels:
        verify(expand_contractions(scalarise(step.stitched.kernel)))
    (found,) = execute(graph, arguments, generic_gpu())
    exact = function(*(x.double() for x in arguments))
    assert torch.allclose(found.double(), exact, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_short_rows_stay():
    """They need no reassociation."""
    _, plan = planned(attention, operands(keys=200))
    (step,) = plan.kernels
    assert not any(isinstance(s, Running) for s in statements(step.stitched.kernel))


@pytest.mark.parametrize("dim", [-1, -2])
def test_rows_that_are_needed_again_are_not_one_kernel(dim):
    """The scores are a result, or another axis is normalised."""

    def function(q, k, v):
        weights = torch.softmax(scores(q, k), dim)
        return (weights, weights @ v) if dim == -1 else weights @ v

    _, plan = planned(function, operands(queries=KEYS))
    assert len(plan.steps) > 1
    assert any(refusal.check == "matmul" for _, refusal in plan.refusals), plan.refusals
