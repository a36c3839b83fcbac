"""Products of matrices as Triton kernels, emulated: one kernel, and no less exact than eager."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.products import PRODUCTS
from hemstitch.errors import KernelBuildError
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import at
from hemstitch.kernel_ir.nodes import Buffer, Kernel, Load, Loop, Phase, Role, Store, walk
from hemstitch.report.explain import explain
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of
from tests.lowered import triton
from tests.test_kernel_counts import faked

pytest.importorskip("triton")
OPTIONS = {"target": "interpret", "strict": True, "check": True}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TYPED = [(case, dtype) for case in PRODUCTS for dtype in DTYPES]
NAMES = [f"{case.name}, {dtype}" for case, dtype in TYPED]


def many(results):
    return results if isinstance(results, tuple) else (results,)


def error(result, exact):
    return float((result.double() - exact).norm() / exact.norm())


def check(function, arguments):
    torch._dynamo.reset()
    results = torch.compile(function, backend="hemstitch", options=OPTIONS, dynamic=False)(
        *arguments
    )
    exact = function(*(argument.double() for argument in arguments))
    eager = function(*arguments)
    for new, old, true in zip(many(results), many(eager), many(exact), strict=True):
        assert new.dtype is old.dtype and new.shape == old.shape
        assert error(new, true) <= 2 * error(old, true) + 1e-7


@pytest.mark.parametrize(("case", "dtype"), TYPED, ids=NAMES)
def test_a_workload_is_one_kernel_and_right(case, dtype):
    for width in case.odd:
        arguments = [x.to(dtype) for x in case.arguments(37, width)]
        if arguments[0].dim() == 4:  # two heads of twelve
            arguments = [x[:, :2].contiguous() for x in arguments]
        report = explain(case.function, *faked(arguments), options=OPTIONS)
        assert (report.kernel_count, report.library_calls) == (1, [])
        check(case.function, arguments)


@pytest.mark.parametrize(("columns", "dtype"), zip((128, 64, 16), DTYPES), ids=str)
def test_rows_before_a_product_are_one_kernel_with_it(columns, dtype):
    """A left operand that costs something is made once: all columns are one block of lanes."""

    def weighted(scores, values):
        return torch.softmax(scores, -1).reshape(-1, *scores.shape[-2:]) @ values

    def unscaled(query, key, values):
        return torch.softmax(query @ key, -1) @ values

    def operands(*shapes):
        return [torch.randn(shape).to(dtype) for shape in shapes]

    programs = (
        (weighted, operands((2, 3, 20, 33), (6, 33, columns))),
        (unscaled, operands((6, 20, 16), (6, 16, 33), (6, 33, columns))),
    )
    for function, arguments in programs:
        report = explain(function, *faked(arguments), options=OPTIONS)
        assert (report.kernel_count, report.library_calls) == (1, [])
        check(function, arguments)


def test_wholly_masked_rows_are_nan_as_in_eager():
    attention = PRODUCTS[0].function
    q, k, v = (torch.randn(1, 2, 20, 16) for _ in range(3))
    mask = torch.zeros(1, 1, 20, 20)
    mask[..., 3, :] = -torch.inf
    mask[..., 5, 7:] = -torch.inf
    result = torch.compile(attention, backend="hemstitch", options=OPTIONS)(q, k, v, mask)
    expected = attention(q, k, v, mask)
    torch.testing.assert_close(result, expected, equal_nan=True)
    assert result[:, :, 3].isnan().all() and not result[:, :, 5].isnan().any()


def test_what_is_not_there_is_not_multiplied():
    """Lanes beyond a row of 17 would be infinite here, and infinity times zero is no zero."""

    def function(x, weight):
        return torch.relu((1 / (x - x)) * 0.0 + x @ weight)

    def scaled(x, weight, scale):
        return torch.tanh(x * scale @ weight)

    x, weight = torch.randn(5, 17), torch.randn(17, 30)
    check(scaled, [x, weight, torch.randn(17)])
    strided = torch.full((5, 64), torch.inf)[:, :17].copy_(x)
    check(scaled, [strided, weight, torch.randn(17)])
    assert torch.isnan(function(x, torch.randn(17, 17))).all()


def test_backward_of_attention_multiplies_too():
    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v

    def gradients(compiled, dtype):
        torch.manual_seed(0)
        inputs = [torch.randn(2, 3, 25, 16).to(dtype).requires_grad_() for _ in range(3)]
        (compiled(*inputs) ** 2).sum().backward()
        return [tensor.grad for tensor in inputs]

    torch._dynamo.reset()
    compiled = torch.compile(attention, backend="hemstitch", options=OPTIONS)
    exact = gradients(attention, torch.float64)
    for new, old, true in zip(
        gradients(compiled, torch.float32), gradients(attention, torch.float32), exact
    ):
        assert error(new, true) <= 2 * error(old, true) + 1e-7


def test_three_products_share_a_kernel():
    def mixed(x, a, b, c):
        return torch.relu(x @ a) * (x @ b) + x @ c

    arguments = [torch.randn(shape) for shape in ((40, 20), *[(20, 30)] * 3)]
    assert explain(mixed, *arguments, options=OPTIONS).kernel_count == 1
    check(mixed, arguments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gates_of_recurrent_cells_share_a_kernel(dtype):
    """Slices of one product, along its columns, in two steps that wait for each other."""

    def cell(state, weight, bias):
        reset, update, new = torch.nn.functional.linear(state, weight, bias).chunk(3, -1)
        mixed = torch.tanh(new) * torch.sigmoid(reset)
        return mixed + torch.sigmoid(update) * state

    def steps(state, weight, bias):
        return cell(cell(state, weight, bias), weight, bias)

    arguments = [torch.randn(shape).to(dtype) for shape in ((19, 32), (96, 32), (96,))]
    report = explain(steps, *arguments, options=OPTIONS)
    assert (report.kernel_count, report.library_calls) == (2, [])
    check(steps, arguments)


def test_sizes_may_change():
    function = PRODUCTS[1].function
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="hemstitch", options=OPTIONS, dynamic=True)
    for rows in (3, 50, 130):
        arguments = [torch.randn(shape) for shape in ((rows, 20), (40, 20), (40,), (rows, 40))]
        torch.testing.assert_close(compiled(*arguments), function(*arguments))


def test_a_row_that_must_keep_something_in_memory_is_no_kernel():
    """Matrix units take 16 rows at least, and a program has memory for one."""

    def function(x, weight):
        return (x @ weight).relu()

    tensors = [torch.zeros(4, 64, 32), torch.zeros(4, 32, 32)]
    [(_, plan)] = plans_of(function, tensors, generic_gpu())
    (step,) = plan.kernels
    (phase,) = step.stitched.kernel.phases
    (nest,) = phase.nests
    (loop,) = (statement for statement in nest.body if isinstance(statement, Loop))
    row = Buffer("row", DType.F32, Role.TASK, loop.axis.extent, "kept")
    back = at(loop.axis).scaled(-1).shifted(loop.axis.extent - 1)
    (store,) = (s for s in walk(loop.body) if isinstance(s, Store))
    storing = replace(loop, body=(*loop.body, Store(row, at(loop.axis), store.value)))
    loading = Loop(loop.axis, (Load("other", row, back), replace(store, value="other")), lanes=True)
    changed = Phase((replace(nest, body=(storing, loading)),))
    kernel = Kernel("k", (*step.stitched.kernel.buffers, row), (changed,))
    with pytest.raises(KernelBuildError, match=r"one has all of row \(kept\)"):
        triton(kernel, step.groups[0].hint, 528)
