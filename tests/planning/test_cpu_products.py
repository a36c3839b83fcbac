"""Products of matrices inside kernels of a processor: which, in what blocks, and their values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings

from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import (
    Accumulate,
    AccumulateInto,
    Contract,
    Load,
    Loop,
    statements,
)
from hemstitch.kernel_ir.passes.index_set_splitting import split_rows
from hemstitch.kernel_ir.printer import show
from hemstitch.kernel_ir.verifier import verify
from hemstitch.machine.cpu_numbers import CPU as NUMBERS
from hemstitch.matmul.lowering import blocking as panels_of_blocks
from hemstitch.matmul.lowering import panels
from hemstitch.matmul.lowering.blocking import block_matmuls
from hemstitch.matmul.lowering.tile_matmul import TileMatmul
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep, LibraryStep
from hemstitch.planning.planner import make_plan
from hemstitch.runtime import interpreter as interpret
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import Simulation, assert_close, execute, plan_for, plans_of
from tests.planning.test_products import SEEDS, Around

CPU = generic_cpu(2, 8)
ALWAYS = replace(CPU, launch_seconds=1.0)  # whatever it costs


def steps_of(function, *arguments, machine=CPU, **options):
    ((graph, _),) = plans_of(function, arguments, CPU)
    return make_plan(graph, machine, Options(**options)).steps


def kinds(steps):
    return [type(step) for step in steps]


def products(steps):
    found = (s for step in steps if isinstance(step, KernelStep) for s in _all(step))
    return sum(isinstance(statement, Contract) for statement in found)


def _all(step):
    return statements(step.stitched.kernel)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def attention(q, k, v, mask):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125 + mask, -1) @ v


def heads(queries, keys, depth=64, dtype=torch.float32):
    torch.manual_seed(0)
    made = (torch.randn(3, 4, length, depth, dtype=dtype) for length in (queries, keys, keys))
    return (*made, torch.randn(3, 1, queries, keys, dtype=dtype))


def softmax_then_product(scores, value):
    return torch.softmax(scores, -1).reshape(96, 32, 32) @ value


# --- what is fused


def test_a_softmax_and_the_product_behind_it_are_one_kernel():
    (step,) = steps_of(softmax_then_product, zeros(8, 12, 32, 32), zeros(96, 32, 64))
    names = [buffer.size for buffer in step.stitched.kernel.parameters]
    assert names == [8 * 12 * 32 * 32, 96 * 32 * 64, 96 * 32 * 64]  # no probabilities among them


def test_the_switch_leaves_the_product_to_the_library():
    arguments = zeros(8, 12, 32, 32), zeros(96, 32, 64)
    steps = steps_of(softmax_then_product, *arguments, products=False)
    assert kinds(steps) == [KernelStep, LibraryStep]


def test_dropout_between_a_softmax_and_a_product_is_in_their_kernel():
    def dropped(scores, value):
        return F.dropout(torch.softmax(scores, -1), 0.1) @ value

    steps = steps_of(dropped, zeros(96, 32, 32), zeros(96, 32, 64))
    assert [step for step in steps if isinstance(step, KernelStep)] == list(steps[-1:])
    assert products(steps) == 1


@pytest.mark.parametrize("keys", [32, 128, 1000], ids=str)
def test_attention_is_one_kernel_whatever_the_length_of_its_rows(keys):
    assert kinds(steps_of(attention, *heads(32, keys))) == [KernelStep]


def test_a_small_linear_layer_is_one_kernel_and_a_large_one_the_librarys():
    def linear(x, weight, bias):
        return F.gelu(F.linear(x, weight, bias))

    assert kinds(steps_of(linear, zeros(16, 64), zeros(256, 64), zeros(256))) == [KernelStep]
    large = zeros(512, 768), zeros(3072, 768), zeros(3072)
    assert kinds(steps_of(linear, *large)) == [LibraryStep, KernelStep]


def test_half_types_are_the_librarys_where_its_calls_are_long():
    def linear(x, weight):
        return torch.relu(x @ weight)

    half = {"dtype": torch.bfloat16}
    assert kinds(steps_of(linear, zeros(16, 64, **half), zeros(64, 256, **half))) == [KernelStep]
    large = zeros(512, 256, **half), zeros(256, 256, **half)
    assert kinds(steps_of(linear, *large)) == [LibraryStep, KernelStep]


def test_a_left_operand_that_is_the_same_in_all_steps():
    """It was to be copied before the row had it."""

    def spread(column, matrix):
        return column[:, None].expand(-1, 64) @ matrix

    (step,) = steps_of(spread, zeros(40), zeros(64, 48), machine=ALWAYS)
    verify(block_matmuls(step.stitched.kernel, CPU.threads))
    given_ = torch.randn(40), torch.randn(64, 48)
    ((graph, _),) = plans_of(spread, given_, CPU)
    assert_close(execute(graph, given_, ALWAYS), interpret.run(graph, given_), 1e-5)


def test_pieces_of_rows_have_memory_of_their_own():
    """Rows of a concatenation are nests apart, with the same product in each."""

    def joined(x, y, matrix):
        return torch.tanh(torch.cat((x, y))) @ matrix

    (step,) = steps_of(joined, zeros(64, 48), zeros(40, 48), zeros(48, 40), machine=ALWAYS)
    pieces = split_rows(step.stitched.kernel)
    assert len(pieces.phases[-1].nests) == 2
    verify(block_matmuls(pieces, CPU.threads))


def lstm(sequence, weight, recurrent):
    hidden = state = torch.zeros_like(sequence[0])
    found = []
    for x in sequence.unbind():
        gates = F.linear(x, weight) + F.linear(hidden, recurrent)
        enter, forget, new, leave = gates.chunk(4, 1)
        state = forget.sigmoid() * state + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * state.tanh()
        found.append(hidden)
    return torch.stack(found)


def test_what_is_no_kernel_falls_apart_where_it_ceased_to_be_one():
    """All steps together are none: each of them remains, and not the vertices they are made of."""
    length = 4
    steps = steps_of(lstm, zeros(length, 4, 16), zeros(64, 16), zeros(64, 16))
    assert kinds(steps) == [KernelStep] * len(steps)
    assert len(steps) <= 2 * length


def test_sums_of_a_transposed_operand_walk_it_as_it_lies():
    """The gradients of a layer's weights and bias: columns are added up along rows."""

    def gradients(grad, x):
        return grad.t() @ x, grad.sum(0)

    (step,) = steps_of(gradients, zeros(400, 64), zeros(400, 48), machine=ALWAYS)
    added = [s for s in _all(step) if isinstance(s, Accumulate | AccumulateInto)]
    loops = [s for s in _all(step) if isinstance(s, Loop) and s.lanes]
    reads = [(s, loop) for loop in loops for s in loop.body if isinstance(s, Load)]
    assert added
    assert all(load.index.coefficient(loop.axis) in (0, 1) for load, loop in reads)
    assert products((step,)) == 1


# --- blocks


def test_attention_as_blocks(golden):
    (step,) = steps_of(attention, *(zeros(8, 12, 100, 64) for _ in range(3)), zeros(100, 100))
    kernel = block_matmuls(step.stitched.kernel, 2)
    verify(kernel)
    golden(show(kernel) + "\n")


def test_a_kernel_without_products_is_not_touched():
    (step,) = steps_of(torch.relu, zeros(64, 64))
    assert block_matmuls(step.stitched.kernel, 2) is step.stitched.kernel


def plan_in_blocks(graph):
    """With all kernels in blocks, checked."""
    plan = plan_for(graph, ALWAYS)
    steps = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            kernel = block_matmuls(step.stitched.kernel, 2)
            verify(kernel)
            step = replace(step, stitched=replace(step.stitched, kernel=kernel))
        steps.append(step)
    return replace(plan, steps=tuple(steps))


@pytest.fixture(params=[0, NUMBERS.near_elements], ids=["packed", "near"])
def nearness(request, monkeypatch):
    """With and without panels: the matrices of these programs are small."""
    monkeypatch.setattr(panels_of_blocks, "CPU", replace(NUMBERS, near_elements=request.param))


RANDOM = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@RANDOM
@given(SEEDS)
def test_blocks_mean_what_the_graph_means(nearness, seed):
    program = Around(seed)
    found = Simulation({}, CPU.threads, order=(1, 0)).run(
        program.graph, plan_in_blocks(program.graph), program.arguments
    )
    assert_close(found, interpret.run(program.graph, program.arguments, precise=True), 1e-9)


@RANDOM
@given(SEEDS)
def test_random_programs_compute_the_same_as_machine_code(nearness, seed):
    program = Around(seed)
    found = execute(program.graph, program.arguments, ALWAYS)
    assert_close(found, interpret.run(program.graph, program.arguments), 1e-4)


# --- values

pytestmark = pytest.mark.usefixtures("kernels_multiply")


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="hemstitch", options={"strict": True, "check": True})


def assert_as_exact(function, *arguments):
    """At most twice as far from float64 as eager."""
    found, eager = compiled(function)(*arguments), function(*arguments)
    exact = function(*(argument.double() for argument in arguments))
    assert found.dtype is eager.dtype and found.shape == eager.shape
    assert torch.equal(found.isnan(), eager.isnan())
    least = torch.finfo(eager.dtype).eps * exact.nan_to_num().abs().max()
    error = float((eager.double() - exact).nan_to_num().abs().max())
    assert float((found.double() - exact).nan_to_num().abs().max()) <= 2 * max(error, least)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("queries", "keys", "depth"),
    [(32, 32, 64), (1, 7, 5), (5, 1, 64), (33, 50, 40), (100, 100, 17), (64, 300, 64)],
)
def test_attention_of_any_size(queries, keys, depth, dtype):
    assert_as_exact(attention, *heads(queries, keys, depth, dtype))


def test_operands_that_lie_in_any_order():
    torch.manual_seed(0)
    x, y = torch.randn(6, 24, 40), torch.randn(6, 40, 24)
    assert_as_exact(lambda a, b: torch.relu(a @ b), x, y)
    assert_as_exact(lambda a, b: torch.relu(a.mT @ b.mT), x, y)
    assert_as_exact(lambda a, b: torch.relu(a @ b), x[:, ::2], y[..., 3:17])
    assert_as_exact(lambda a, b: torch.relu(a[1] @ b[0]), x, y)


@pytest.mark.parametrize("rows", [31, 37, 59, 97, 150])
def test_transposed_operands_whose_last_block_is_smaller(rows):
    a, b = torch.randn(301, rows), torch.randn(301, 70)
    found = compiled(lambda a, b: (a.t() @ b).relu())(a, b)
    exact = (a.double().t() @ b.double()).relu()
    assert float((found - exact).norm() / exact.norm()) < 1e-6


@pytest.mark.parametrize("is_summed", [False, True])
def test_a_repeated_row_times_a_repeated_column(is_summed):
    """Nothing that is read tells rows of the result from its columns."""

    def repeated(x):
        found = torch.bmm(x.expand(5, 3, 4), x.expand(5, 6, 4).transpose(1, 2))
        return found.tanh().sum() if is_summed else found

    x = torch.randn(5, 1, 4)
    assert_close([compiled(repeated)(x)], [repeated(x.double())], 1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_lines_of_a_product_backwards(axis):
    assert_as_exact(lambda a: torch.bmm(a, a.mT).flip(axis) + 1, torch.randn(4, 17, 5))


def test_matrices_of_one_number():
    """As the gradient of a sum is."""
    torch.manual_seed(0)
    x = torch.randn(20, 24)
    assert_as_exact(lambda a: torch.relu(a @ a.new_full((24, 40), 0.5)), x)
    assert_as_exact(lambda a: torch.relu(a.new_full((40, 20), 0.5) @ a), x)


@pytest.mark.parametrize(
    ("left", "right"),
    [((0, 8, 4), (0, 4, 6)), ((3, 8, 0), (3, 0, 6)), ((0, 5), (5, 7)), ((5, 0), (0, 7))],
)
def test_nothing_to_multiply(left, right):
    def function(a, b):
        return torch.relu(a @ b) + 1

    x, y = torch.randn(left), torch.randn(right)
    torch.testing.assert_close(compiled(function)(x, y), function(x, y))


def test_infinities_and_nans_are_eagers():
    x, y = torch.randn(4, 20, 16), torch.randn(4, 16, 19)
    x[0, 1, 2], x[1, 3, 4], y[2, 5, 18] = float("inf"), float("nan"), -float("inf")
    found, eager = compiled(lambda a, b: (a @ b) * 2)(x, y), (x @ y) * 2
    torch.testing.assert_close(found, eager, equal_nan=True)


def test_sizes_that_are_symbols():
    function = torch.compile(attention, backend="hemstitch", dynamic=True, options={"strict": True})
    for queries, keys in ((32, 48), (37, 51), (5, 129)):
        arguments = heads(queries, keys)
        torch.testing.assert_close(function(*arguments), attention(*arguments))


def test_pairs_of_steps_of_which_calls_know_how_many():
    def even(x):
        y = torch.cat([x, x * 2], -1)
        z = torch.bmm(y.mT, y)
        return torch.bmm(z, z.mT) * 0.1

    function = torch.compile(even, backend="hemstitch", dynamic=True, options={"strict": True})
    for batch, rows, columns in ((3, 20, 24), (5, 17, 9)):
        x = torch.randn(batch, rows, columns).bfloat16()
        torch.testing.assert_close(function(x), even(x))


def test_the_order_of_adding_up_is_always_the_same():
    function, arguments = compiled(attention), heads(50, 60)
    assert torch.equal(function(*arguments), function(*arguments))


def test_gradients_through_a_product():
    def loss(x, weight):
        return torch.tanh(x @ weight).square().sum()

    torch.manual_seed(0)
    given = [torch.randn(20, 24, requires_grad=True), torch.randn(24, 40, requires_grad=True)]
    expected = torch.autograd.grad(loss(*given), given)
    found = torch.autograd.grad(compiled(loss)(*given), given)
    torch.testing.assert_close(found, expected)


def test_every_product_of_a_block_is_one_of_tiles():
    (step,) = steps_of(attention, *heads(64, 64))
    kernel = block_matmuls(step.stitched.kernel, 2)
    loops = [s for s in statements(kernel) if isinstance(s, Loop)]
    assert sum(TileMatmul.of(loop) is not None for loop in loops) == 2


@pytest.mark.parametrize("width", [32, 48, 64])
def test_strips_are_whole_vectors_of_the_widest(width):
    """They are loaded without a mask."""
    widths = {panels.ColumnPanels.of(Axis("c", columns), width).width for columns in range(1, 100)}
    assert widths == {16, width}
