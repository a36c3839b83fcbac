"""Sums by index: one kernel with what is before them, and right, whoever adds in what order."""

from __future__ import annotations

import pytest
import torch

import hemstitch
from hemstitch.kernel_ir.printer import show
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of

STRICT = {"strict": True}


def lines(x, index, rows=40):
    """What a graph network gathers from its edges."""
    return x.new_zeros(rows, x.shape[-1]).index_add(0, index, torch.relu(x) * 2)


def pairs(count, width, rows=40, dtype=torch.float32):
    x = torch.randn(count, width).mul(10).to(dtype)
    return x, torch.randint(0, rows, (count,))


ONE_KERNEL = {
    "lines": lines,
    "lines of each": lambda x, i: x.new_zeros(3, 40, x.shape[1]).index_put(
        (torch.arange(3)[:, None], i), x.exp(), accumulate=True
    ),
    "by expanded index": lambda x, i: x.new_zeros(40, x.shape[1]).scatter_add(
        0, i[:, None].expand_as(x), x.tanh()
    ),
    "of normalised rows": lambda x, i: lines(torch.softmax(x, -1), i),
    "two": lambda x, i: (lines(x, i), lines(x.cos(), i, 50)),
    "beside its sums": lambda x, i: (lines(x, i), x.sum(0)),
    "counted": lambda x, i: lines(torch.ones_like(x), i),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_is_one_kernel_and_as_exact_as_eager(name):
    function, (x, index) = ONE_KERNEL[name], pairs(500, 131)
    report = hemstitch.explain(function, x, index, options=STRICT)
    assert (report.kernel_count, report.library_calls) == (1, [])
    torch._dynamo.reset()
    found = torch.compile(function, backend="hemstitch", options=STRICT)(x, index)
    for new, exact, eager in zip(
        *map(listed, (found, function(x.double(), index), function(x, index)))
    ):
        error, theirs = ((y.double() - exact).norm() for y in (new, eager))
        assert error <= 2 * theirs + 1e-6 * exact.norm()


def listed(found):
    return found if isinstance(found, tuple) else [found]


@pytest.mark.parametrize(
    ("x", "index"),
    [
        pairs(0, 7),
        pairs(9, 0),
        pairs(1, 2),
        pairs(77, 33, dtype=torch.float64),
        pairs(77, 33, dtype=torch.int32),
        pairs(77, 33, dtype=torch.int64),
        pairs(60, 20, dtype=torch.bfloat16),
        (torch.tensor([[1.0, float("inf")], [float("nan"), -float("inf")]]), torch.tensor([3, 3])),
        (torch.rand(20, 60).t(), torch.arange(120)[::2] % 40),
        (torch.rand(60, 1).expand(60, 20), torch.tensor(7).expand(60)),
        (torch.rand(60, 20), torch.randint(0, 40, (60,), dtype=torch.int32)),
    ],
    ids=lambda x: f"{str(x.dtype)[6:]}{list(x.shape)}",
)
def test_any_argument(x, index):
    torch._dynamo.reset()
    found = torch.compile(lines, backend="hemstitch", options=STRICT)(x, index)
    wanted = lines(x.double(), index) if x.dtype is torch.bfloat16 else lines(x, index)
    rounding = {"rtol": 1e-2, "atol": 1e-2} if x.dtype is torch.bfloat16 else {}
    torch.testing.assert_close(found, wanted.to(x.dtype), equal_nan=True, **rounding)


def test_any_number_of_lines_with_one_program():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(lines, backend="hemstitch", options=STRICT, dynamic=True)
        for count in (50, 3, 1000):
            x, index = pairs(count, 24)
            torch.testing.assert_close(compiled(x, index), lines(x, index))


@pytest.mark.parametrize("outside", [-1, 40])
def test_an_index_outside_is_an_error(outside):
    x, index = pairs(50, 24)
    torch._dynamo.reset()
    compiled = torch.compile(lines, backend="hemstitch", options=STRICT)
    compiled(x, index)
    index[17] = outside
    with pytest.raises(RuntimeError, match="index is out of bounds for dimension 0"):
        compiled(x, index)


def test_gradient_of_an_embedding_is_one_kernel_with_what_is_before_it():
    words = torch.randn(90, 64, requires_grad=True)
    index = torch.randint(0, 90, (8, 31))

    def function(words, index):
        x = torch.nn.functional.embedding(index, words, padding_idx=5)
        return torch.nn.functional.layer_norm(x, (64,)).sin().sum()

    report = hemstitch.explain(function, words, index, backward=True, options=STRICT)
    assert report.library_calls == []
    assert [kernel.graph for kernel in report.kernels].count("backward") == 1
    compiled = torch.compile(function, backend="hemstitch", options=STRICT)
    (found,) = torch.autograd.grad(compiled(words, index), words)
    exact = words.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(function(exact, index), exact)
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()
    assert not found[5].any()


def test_on_a_gpu_tasks_add_at_once_behind_a_phase_of_zeros():
    ((_, plan),) = plans_of(lines, pairs(9000, 64), generic_gpu())
    (step,) = plan.kernels
    assert len(step.stitched.kernel.phases) == 2
    assert show(step.stitched.kernel).count("atomic") == 1


def test_on_a_processor_no_two_tasks_add_to_the_same_line():
    """In the order of eager's loop, so that every run gives the same."""
    ((_, plan),) = plans_of(lines, pairs(9000, 64), generic_cpu(4, 8))
    (step,) = plan.kernels
    assert len(step.stitched.kernel.phases) == 1
    assert "atomic" not in show(step.stitched.kernel)
    x, index = pairs(9000, 64)
    torch._dynamo.reset()
    compiled = torch.compile(lines, backend="hemstitch", options=STRICT)
    assert torch.equal(compiled(x, index), compiled(x, index))
    assert torch.equal(compiled(x, index), lines(x, index))
