"""The few greatest of each line as a kernel, on both targets: the values that the library gives,
and places where they are, though lines hold infinities and NaN."""

from __future__ import annotations

import math

import pytest
import torch

from hemstitch.report.explain import explain

pytest.importorskip("triton")


def routed(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return scores.topk(count, -1)


def lines(shape, dtype):
    count = math.prod(shape[:-1])
    order = torch.Generator().manual_seed(count)
    rows = [torch.randperm(shape[-1], generator=order) for _ in range(count)]
    x = torch.stack(rows).to(dtype)
    x[0, 3] = math.nan
    x[1] = -math.inf
    x[1, 5] = 0.0
    return x.reshape(shape)


@pytest.mark.parametrize("target", ["cpu", "interpret"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "count"), [((33, 64), 2), ((5, 7, 100), 4), ((3, 8), 8)])
def test_the_greatest_and_their_places(target, dtype, shape, count):
    x = lines(shape, dtype)
    torch._dynamo.reset()
    options = {"target": target, "strict": True, "check": True}
    values, places = torch.compile(routed, backend="hemstitch", options=options)(x, count)
    expected, _ = routed(x, count)
    torch.testing.assert_close(values, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(x.gather(-1, places), expected, rtol=0, atol=0, equal_nan=True)
    assert all(len(set(row.tolist())) == count for row in places.reshape(-1, count))


def test_a_router_is_one_kernel():
    def gate(scores):
        weights, experts = torch.softmax(scores, -1).topk(2, -1)
        return weights / weights.sum(-1, keepdim=True), experts

    report = explain(gate, torch.randn(128, 64), options={"target": "interpret"})
    assert (report.kernel_count, report.library_calls) == (1, [])


@pytest.mark.parametrize("program", [lambda x: x.topk(9), lambda x: x.topk(2, largest=False)])
def test_what_stays_with_the_library(program):
    report = explain(program, torch.randn(4, 16))
    assert report.library_calls == ["aten.topk.default"]
