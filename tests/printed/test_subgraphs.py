"""Typical programs as Triton kernels, emulated with all checks: as many kernels as on a CPU, and
the numbers of float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hemstitch.report.explain import explain
from tests.test_kernel_counts import (
    TOLERANCE,
    adamw,
    assert_near,
    block_end,
    copied,
    faked,
    layer_norm,
    learned,
    leaves,
    random,
    rows_then_columns,
    softmax,
    wide,
)

pytest.importorskip("triton")
OPTIONS = {"target": "interpret", "strict": True, "check": True}


def cross_entropy(logits, labels):
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def batch_norm(x, weight, bias):
    return F.batch_norm(x, None, None, weight, bias, training=True)


def group_norm_silu(x, weight, bias):
    return F.silu(F.group_norm(x, 4, weight, bias))


def lstm_cell(gates, cell):
    enter, forget, candidate, leave = gates.chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
    return torch.sigmoid(leave) * torch.tanh(cell)


def rms_norm_rotary(x, residual, weight, cosine, sine):
    hidden = x + residual
    heads = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6) * weight
    heads = heads.view(*heads.shape[:-1], -1, cosine.shape[-1]).transpose(1, 2)
    left, right = heads.chunk(2, -1)
    return heads * cosine + torch.cat((-right, left), -1) * sine


def pool_permute_norm(x, weight, bias):
    pooled = F.avg_pool2d(x, 2).permute(0, 2, 3, 1)
    return F.layer_norm(pooled, pooled.shape[-1:], weight, bias)


def embedding_norm(table, indices, weight):
    return F.layer_norm(F.embedding(indices, table), weight.shape, weight)


def quantise_rows(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8), scale


def sums(x):
    return x.sum(1), x.sum(0), x.sum()


def norms(count):
    return learned(count), learned(count, seed=1)


PROGRAMS = {
    "softmax": (softmax, (learned(4, 3, 9, 33), random(4, 1, 1, 33)), True),
    "layer norm": (layer_norm, (learned(37, 100), *norms(100)), True),
    "layer norm of long rows": (layer_norm, (learned(2, 5000), *norms(5000)), True),
    "end of a block": (
        lambda *inputs: block_end(*inputs, p=0.0),
        (learned(9, 1024), learned(1024), learned(9, 1024, seed=1), *norms(1024)),
        True,
    ),
    "cross entropy": (cross_entropy, (learned(31, 70), torch.arange(31) % 70), True),
    "batch norm": (batch_norm, (learned(5, 6, 7, 7), *norms(6)), True),
    "batch norm, images together": (batch_norm, (learned(64, 48, 2, 2), *norms(48)), True),
    "group norm": (group_norm_silu, (learned(3, 8, 5, 6), *norms(8)), True),
    "LSTM cell": (lstm_cell, (learned(13, 80), learned(13, 20)), True),
    "rotary": (
        rms_norm_rotary,
        (learned(2, 5, 48), random(2, 5, 48), learned(48), random(5, 16), random(5, 16, seed=1)),
        True,
    ),
    "pooling": (pool_permute_norm, (learned(2, 12, 8, 8), *norms(12)), True),
    "embedding": (embedding_norm, (learned(20, 24), torch.arange(7) % 20, learned(24)), False),
    "rows, columns": (rows_then_columns, (learned(33, 65),), True),
    "few long rows": (lambda x: torch.softmax(x, -1), (learned(2, 5000),), True),
    "many short rows": (lambda x: torch.softmax(x, -1), (learned(300, 5),), True),
    "transposed": (lambda x: torch.softmax(x.t() * 2, -1), (learned(20, 30),), True),
    "sums": (sums, (random(60, 50),), False),
    "quantise": (quantise_rows, (random(17, 40),), False),
    "argmax": (lambda x: (x.argmax(1), x.argmin(0), x.argmax()), (random(17, 40),), False),
    "one element": (lambda x: torch.tanh(x).sum(), (learned(1),), True),
    "no columns": (lambda x: x.sum(1) + 1, (torch.zeros(4, 0),), False),
    "AdamW": (
        adamw,
        (
            *([random(5, 7, seed=k), random(9, seed=k)] for k in range(3)),
            [torch.rand(5, 7), torch.rand(9)],
            3,
        ),
        False,
    ),
}


def differentiate(results):
    sum(x.sum() for x in torch.utils._pytree.tree_leaves(results)).backward()


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers(name):
    function, arguments, backward = PROGRAMS[name]
    inputs, exact = copied(arguments), wide(arguments)
    torch._dynamo.reset()
    results = torch.compile(function, backend="hemstitch", options=OPTIONS)(*inputs)
    expected = function(*exact)
    assert_near(results, expected)
    if backward:
        differentiate(results)
        differentiate(expected)
        graded = [(a, b) for a, b in zip(leaves_of(inputs), leaves_of(exact)) if b.grad is not None]
        assert graded
        assert_near([a.grad for a, _ in graded], [b.grad for _, b in graded])
    assert_near(inputs, exact)


def leaves_of(value):
    tree_leaves = torch.utils._pytree.tree_leaves(value)
    return [x for x in tree_leaves if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_many_kernels_as_on_a_cpu(name):
    function, arguments, backward = PROGRAMS[name]
    unreal = faked(arguments)
    counts = [
        len(explain(function, *unreal, backward=backward, options={"target": target}).kernels)
        for target in ("cpu", "interpret")
    ]
    assert counts[0] == counts[1]


HALVES = {
    torch.bfloat16: 2e-2,
    torch.float16: 3e-3,
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["softmax", "layer norm", "LSTM cell", "rotary", "rows, columns"])
def test_half_types(name, dtype):
    function, arguments, _ = PROGRAMS[name]
    inputs = [x.detach().to(dtype) for x in arguments]
    torch._dynamo.reset()
    results = torch.compile(function, backend="hemstitch", options=OPTIONS)(*inputs)
    expected = function(*(x.double() for x in inputs))
    for new, old in zip(leaves(results), leaves(expected), strict=True):
        assert new.dtype is dtype
        assert float((new.double() - old).norm()) <= HALVES[dtype] * float(old.norm())


def test_dropout_is_the_same_in_both_passes_and_on_both_targets():
    x = learned(20, 64)
    results = []
    for target in ("cpu", "interpret"):
        torch._dynamo.reset()
        torch.manual_seed(3)
        input_ = copied(x)
        compiled = torch.compile(
            lambda x: F.dropout(x, 0.3), backend="hemstitch", options=OPTIONS | {"target": target}
        )
        y = compiled(input_)
        y.sum().backward()
        assert torch.equal(input_.grad != 0, y != 0)
        results.append(y.detach())
    assert torch.equal(*results)
    assert 0.2 < float((results[0] == 0).float().mean()) < 0.4


def test_an_index_out_of_range_is_an_error():
    compiled = torch.compile(F.embedding, backend="hemstitch", options=OPTIONS)
    with pytest.raises(IndexError, match="index out of range in self"):
        compiled(torch.tensor([3, 99]), random(20, 8))


def test_nan_and_infinity():
    x = torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), 0.0, -float("inf")]])

    def extremes(x):
        return x.amax(1), x.amin(1), x.argmax(1), torch.maximum(x, x.flip(1)), torch.sigmoid(x)

    torch._dynamo.reset()
    results = torch.compile(extremes, backend="hemstitch", options=OPTIONS)(x)
    for new, old in zip(results, extremes(x), strict=True):
        torch.testing.assert_close(new, old, equal_nan=True, rtol=TOLERANCE, atol=TOLERANCE)
