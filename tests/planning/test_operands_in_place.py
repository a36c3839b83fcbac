"""Operands of products on processors that are read where they lie, and products that are turned for
it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from hemstitch.kernel_ir.interpreter import _shares
from hemstitch.kernel_ir.nodes import Contract, Load, Role, Store, statements
from hemstitch.kernel_ir.verifier import verify
from hemstitch.machine.cpu_numbers import CPU as NUMBERS
from hemstitch.matmul.lowering.blocking import block_matmuls
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep
from hemstitch.planning.planner import make_plan
from hemstitch.targets.cpu.description import Target, generic_cpu
from tests.compiled import plans_of
from tests.lowered import llvm

CPU = generic_cpu(2, 16)
FAST = {dtype: replace(units, share=100.0) for dtype, units in CPU.matrix_units.items()}
ALWAYS = replace(CPU, matrix_units=FAST)  # products are opened whatever it costs


def steps_of(function, *arguments):
    ((graph, _),) = plans_of(function, arguments, CPU)
    return make_plan(graph, ALWAYS, Options()).steps


def kernel_of(function, *arguments):
    (step,) = steps_of(function, *arguments)
    kernel = block_matmuls(step.stitched.kernel, CPU.threads)
    verify(kernel)
    return kernel


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def copies(kernel):
    return [b.why for b in kernel.buffers if b.why in ("strips of an operand", "a tile of rows")]


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="hemstitch", options={"strict": True, "check": True})


def apart(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


# --- where they lie


def gradient_of_weights(grad, x):
    return grad.t() @ x


@pytest.mark.parametrize("sizes", [(5000, 96, 64), (1000, 349, 640), (600, 64, 1000)], ids=str)
def test_neither_operand_of_a_gradient_of_weights_is_copied(sizes):
    steps, rows, columns = sizes
    kernel = kernel_of(gradient_of_weights, zeros(steps, rows), zeros(steps, columns))
    assert len(kernel.phases) == 1
    assert not copies(kernel)


def gradient_of_differences(grad, other, x):
    return (grad - other).t() @ x


@pytest.mark.parametrize("sizes", [(5000, 96, 64), (1000, 349, 640), (600, 64, 1000)], ids=str)
def test_what_is_made_of_columns_is_filled_in_by_columns(sizes):
    """And then read like an operand that lies so: the right one is not packed."""
    steps, rows, columns = sizes
    given = zeros(steps, rows), zeros(steps, rows), zeros(steps, columns)
    kernel = kernel_of(gradient_of_differences, *given)
    assert len(kernel.phases) == 1
    assert not copies(kernel)
    (fill,) = (b for b in kernel.buffers if b.why == "a tile of columns")
    loads = [s for s in statements(kernel) if isinstance(s, Load) and s.buffer is fill]
    stores = [s for s in statements(kernel) if isinstance(s, Store) and s.buffer is fill]
    assert len(loads) == len(stores) == 1
    (product,) = (s for s in statements(kernel) if isinstance(s, Contract))
    assert loads[0].index.coefficient(product.axis) > 1


def gradient_of_scores(scores, labels, scale, x):
    """What is multiplied reads a task's own value, one of each step and the row's number."""
    marked = labels[:, None] == torch.arange(scores.shape[1])
    return torch.where(marked, scores - 1, scores * scale).t() @ x


@pytest.mark.parametrize("sizes", [(5000, 96, 64), (1000, 349, 640)], ids=str)
def test_what_is_made_of_columns_and_of_other_things_too(sizes):
    steps, rows, columns = sizes
    labels = torch.zeros(steps, dtype=torch.int64)
    given = zeros(steps, rows), labels, zeros(), zeros(steps, columns)
    kernel = kernel_of(gradient_of_scores, *given)
    assert [b.why for b in kernel.buffers if "tile" in b.why] == ["a tile of columns"]
    assert not copies(kernel)


def gradients_of_scores_and_bias(scores, labels, scale, factors, x):
    marked = labels[:, None] == torch.arange(scores.shape[1])
    gradient = torch.where(marked, scores - 1, scores * scale)
    return gradient.t() @ x, (gradient * factors).sum(0)


def test_a_sum_beside_a_product_of_columns_has_a_nest_of_its_own():
    """Also where it reads one element for each row: it does not make the product follow rows."""
    labels = torch.zeros(5000, dtype=torch.int64)
    given = zeros(5000, 96), labels, zeros(), zeros(5000, 1), zeros(5000, 64)
    kernel = kernel_of(gradients_of_scores_and_bias, *given)
    assert [b.why for b in kernel.buffers if "tile" in b.why] == ["a tile of columns"]


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("sizes", [(5000, 96, 64), (1000, 349, 37), (7, 3, 20)], ids=str)
def test_gradients_of_scores_are_right(sizes):
    steps, rows, columns = sizes
    labels = torch.randint(rows, (steps,))
    given = [torch.randn(steps, rows), labels, torch.randn(()), torch.randn(steps, 1)]
    given.append(torch.randn(steps, columns))
    exact = gradients_of_scores_and_bias(
        *(each.double() if each.is_floating_point() else each for each in given)
    )
    found = compiled(gradients_of_scores_and_bias)(*given)
    eager = gradients_of_scores_and_bias(*given)
    for mine, theirs, true in zip(found, eager, exact, strict=True):
        assert apart(mine, true) < 2 * apart(theirs, true) + 1e-7


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("sizes", [(5000, 96, 64), (1000, 349, 37), (7, 3, 20)], ids=str)
def test_gradients_of_differences_are_right(sizes):
    steps, rows, columns = sizes
    given = [torch.randn(steps, n) for n in (rows, rows, columns)]
    exact = gradient_of_differences(*(x.double() for x in given))
    mine = apart(compiled(gradient_of_differences)(*given), exact)
    assert mine < 2 * apart(gradient_of_differences(*given), exact)


def test_of_half_precision_both_are_packed_in_pairs():
    half = {"dtype": torch.bfloat16}
    kernel = kernel_of(gradient_of_weights, zeros(5000, 96, **half), zeros(5000, 64, **half))
    assert len(copies(kernel)) >= 2


@pytest.mark.parametrize(
    ("rows", "columns", "is_packed"),
    [
        (512, 768, False),
        (16, 768, True),
        (8192, 768, True),
        (512, NUMBERS.unpacked_elements // 256, True),
    ],
    ids=str,
)
def test_an_operand_is_packed_for_many_rows_and_where_it_is_far(rows, columns, is_packed):
    kernel = kernel_of(lambda x, y: torch.relu(x @ y), zeros(rows, 512), zeros(512, columns))
    assert ("strips of an operand" in copies(kernel)) is is_packed


def test_each_thread_has_equally_many_blocks():
    for rows in (96, 349, 1536, 2000):
        kernel = kernel_of(gradient_of_weights, zeros(5000, rows), zeros(5000, 512))
        (nest,) = kernel.phases[0].nests
        assert nest.rows[-1].extent % CPU.threads == 0


def test_nests_that_come_out_even_are_dealt_out_one_by_one():
    """Two large blocks of a product beside many rows of a sum: each task has one of them."""

    def gradients(grad, x):
        return grad.t() @ x, grad.sum(0)

    kernel = kernel_of(gradients, zeros(4000, 96), zeros(4000, 64))
    phase = kernel.phases[0]
    rows = [nest.rows[-1].extent for nest in phase.nests]
    assert rows == [2, 4000]
    two, three = (SimpleNamespace(dim=int, threads=threads) for threads in (2, 3))
    assert _shares(two, phase, 0) == [(0, 1), (0, 2000)]
    assert _shares(two, phase, 1) == [(1, 2), (2000, 4000)]
    shares = [_shares(three, phase, task) for task in range(3)]
    for number, count in enumerate(rows):
        ends = [share[number] for share in shares]
        assert (ends[0][0], ends[-1][1]) == (0, count)
        assert all(before[1] == after[0] for before, after in pairwise(ends))


def prefetches(function, *arguments):
    """How many instructions, where a nest multiplies, ask for what will be multiplied later."""
    (step,) = steps_of(function, *arguments)
    text = llvm(step.stitched.kernel, Target(16, 2, False)).text
    add = "= call <16 x float> @llvm.fmuladd"
    multiplying = [each for each in text.split("\ndefine ") if add in each]
    assert multiplying
    return sum(each.count("call void @llvm.prefetch") for each in multiplying)


def test_the_next_block_of_steps_is_asked_for():
    def of_gradient(steps, columns):
        return prefetches(gradient_of_weights, zeros(steps, 96), zeros(steps, columns))

    assert of_gradient(5000, 64) == 2 * 1  # both operands, in one kind of tile
    assert of_gradient(150, 64) == 0  # one block


def test_the_next_strip_of_columns_is_asked_for():
    """Of an operand that lies as it came, where each strip is multiplied with all rows at once."""

    def of_product(rows, steps, columns):
        return prefetches(lambda x, y: torch.relu(x @ y), zeros(rows, steps), zeros(steps, columns))

    kinds = 2  # of tiles: blocks of 64 rows are no whole number of the larger
    assert of_product(1024, 384, 768) == 2 * kinds  # a strip is two vectors
    assert of_product(1024, 384, 16) == 0  # it stays in L2
    assert of_product(8192, 384, 768) == 0  # it was packed
    assert prefetches(gradient_of_weights, zeros(500, 96), zeros(500, 1000)) > 0


def test_partial_results_of_separate_rows_are_taken_up_after_many_blocks():
    """A gradient of weights that is added up over a batch: each row of a block has its own sums."""

    def gradient(grad, x):
        return (grad @ x).sum(0)

    kernel = kernel_of(gradient, zeros(64, 32, 125), zeros(64, 125, 608))
    (nest,) = kernel.phases[0].nests
    assert nest.epilogue


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize(
    "sizes",
    [(1000, 96, 64), (1000, 37, 33), (193, 5, 7), (385, 200, 17), (2, 3, 1000), (7, 40, 48)],
    ids=str,
)
def test_gradients_of_weights_are_right(sizes):
    steps, rows, columns = sizes
    grad, x = torch.randn(steps, rows), torch.randn(steps, columns)

    def gradients(grad, x):
        return torch.relu(grad.t() @ x), grad.sum(0)

    product, total = compiled(gradients)(grad, x)
    exact, exact_total = gradients(grad.double(), x.double())
    assert apart(product, exact) < 1e-6
    assert apart(total, exact_total) < 1e-6


@pytest.mark.usefixtures("kernels_multiply")
def test_gradients_of_weights_for_symbolic_sizes():
    function = torch.compile(
        gradient_of_weights, backend="hemstitch", dynamic=True, options={"strict": True}
    )
    for steps, rows, columns in ((900, 40, 50), (31, 70, 80), (400, 12, 33)):
        grad, x = torch.randn(steps, rows), torch.randn(steps, columns)
        assert apart(function(grad, x), grad.double().t() @ x.double()) < 1e-6


@pytest.mark.usefixtures("kernels_multiply")
def test_sums_over_a_batch_are_right():
    grad, x = torch.randn(70, 33, 125), torch.randn(70, 125, 608)
    found = compiled(lambda g, x: (g @ x).sum(0))(grad, x)
    assert apart(found, (grad.double() @ x.double()).sum(0)) < 1e-6


# --- turned


def linear(x, weight, bias):
    return torch.relu(torch.nn.functional.linear(x, weight, bias))


def factors(function, *arguments):
    """Buffers of inputs that products multiply with, left and right."""
    found = []
    for step in steps_of(function, *arguments):
        assert isinstance(step, KernelStep)
        kernel = step.stitched.kernel
        sizes = {b: b.size for b in kernel.buffers if b.role is Role.INPUT}
        for contract in (s for s in statements(kernel) if isinstance(s, Contract)):
            loads = {s.name: s.buffer for s in contract.body if isinstance(s, Load)}
            found.append(tuple(sizes.get(loads.get(n)) for n in (contract.left, contract.right)))
    return found


def test_few_rows_and_a_large_weight_change_places():
    arguments = zeros(64, 1024), zeros(4096, 1024), zeros(4096)
    assert factors(linear, *arguments) == [(4096 * 1024, 64 * 1024)]
    (step,) = steps_of(linear, *arguments)
    wide = [b for b in block_matmuls(step.stitched.kernel, 2).buffers if b.role is Role.SHARED]
    assert [buffer.size for buffer in wide] == [64 * 1024]  # the weight is not packed


@pytest.mark.parametrize("sizes", [(512, 1024, 4096), (64, 128, 4096), (64, 1024, 512)], ids=str)
def test_others_stay_as_they_are(sizes):
    rows, steps, columns = sizes
    arguments = zeros(rows, steps), zeros(columns, steps), zeros(columns)
    assert factors(linear, *arguments) == [(rows * steps, columns * steps)]


def test_what_several_products_share_is_packed_once_for_them():
    def twice(x, y, weight):
        return torch.relu(x @ weight), torch.relu(y @ weight)

    arguments = zeros(32, 1024), zeros(32, 1024), zeros(1024, 1024)
    assert set(factors(twice, *arguments)) == {(32 * 1024, 1024 * 1024)}


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [(64, 1024, 1024), (33, 1031, 1025), (1, 1100, 1100)], ids=str)
def test_turned_products_are_right(sizes, dtype):
    rows, steps, columns = sizes
    made = torch.randn(rows, steps), torch.randn(columns, steps), torch.randn(columns)
    arguments = [each.to(dtype) for each in made]
    exact = linear(*(each.double() for each in arguments))
    eager = apart(linear(*arguments), exact)
    assert apart(compiled(linear)(*arguments), exact) < max(2 * eager, 1e-6)


@pytest.mark.usefixtures("kernels_multiply")
def test_gradients_through_a_turned_product():
    x, weight = torch.randn(48, 1024), torch.randn(1200, 1024)
    arguments = [x.requires_grad_(), weight.requires_grad_(), torch.randn(1200)]

    def loss(x, weight, bias):
        return torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(x, weight / 32, bias), torch.arange(48)
        )

    found = torch.autograd.grad(compiled(loss)(*arguments), arguments[:2])
    exact = [each.detach().double().requires_grad_() for each in arguments]
    wanted = torch.autograd.grad(loss(*exact), exact[:2])
    assert all(apart(a, b) < 1e-5 for a, b in zip(found, wanted))
