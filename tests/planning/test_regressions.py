"""Programs that once went wrong."""

from __future__ import annotations

import pytest
import torch

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import LibraryCall, Operand
from hemstitch.ir.graph import Graph, Op, Output, Range
from hemstitch.ir.parser import parse
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.runtime import interpreter as interpret
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import assert_close, execute, plan_for, plans_of, simulate
from tests.effort import some

OPTIONS = {"strict": True, "check": True}


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="hemstitch", options=OPTIONS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.bool])
@pytest.mark.parametrize("size", [1, 5, 17, 33])
def test_nothing_is_written_beyond_the_end(dtype, size):
    """A masked store of one lane after a truncation wrote all the bits there had been."""

    def fill(target, x):
        target.copy_(x * 2)

    memory = torch.ones(64, dtype=dtype)
    x = torch.arange(size, dtype=torch.int32 if dtype is torch.uint8 else torch.float32)
    compiled(fill)(memory[8 : 8 + size], x)
    assert torch.equal(memory[8 : 8 + size], (x * 2).to(dtype))
    assert bool((memory[:8] == 1).all()) and bool((memory[8 + size :] == 1).all())


@pytest.mark.parametrize("size", [32, 40])
def test_a_masked_load_of_all_lanes(size):
    """LLVM aborted the process where it could tell that a mask is true everywhere."""

    def program(x, y):
        return torch.nn.functional.pad(x, (2, 0), value=1.0), torch.maximum(y, x)

    x, y = torch.randn(size), torch.randn(size)
    for found, expected in zip(compiled(program)(x, y), program(x, y)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64], ids=str)
def test_a_masked_load_half_of_which_is_wanted(dtype, target):
    """LLVM aborted the process, where elements of 64 bits fill two registers."""

    def program(x, y):
        return torch.block_diag(x[:7, None] * 2, y[None, :5] + 1, x.view(2, -1))

    x, y = torch.arange(8, dtype=dtype), torch.arange(9, dtype=dtype)
    assert torch.equal(compiled(program)(x, y), program(x, y))


def graph_of(builder, x, *values):
    return Graph((x,), tuple(Output(v, contiguous_strides(v.shape)) for v in values))


def check(graph, threads=8):
    (x,) = graph.inputs
    arguments = [torch.randn(x.shape)]
    found = simulate(graph, arguments, {}, generic_cpu(threads, 8))
    assert_close(found, interpret.run(graph, arguments, precise=True), 1e-9)


def less_its_maximum(builder, x, axes):
    most = builder.reduce(Op.MAX, x, axes, keep=True)
    return builder.make(Op.EXP, builder.make(Op.SUB, x, builder.broadcast(most, x.shape)))


@pytest.mark.parametrize("shape", [(2, 12, 32), (3, 64, 64), (2, 8, 500)])
def test_a_result_read_in_its_row_and_behind_a_barrier(shape):
    builder = Builder()
    x = builder.input("x", 0, shape, DType.F32, contiguous_strides(shape))
    first = less_its_maximum(builder, x, [0])
    values = less_its_maximum(builder, first, [0, 1]), less_its_maximum(builder, first, [0])
    check(graph_of(builder, x, *values))


@pytest.mark.parametrize("shape", [(300, 40), (64, 257)])
def test_partial_results_read_beside_something_else(shape):
    """Parts of a concatenation are read at places that only exist under its condition."""
    builder = Builder()
    x = builder.input("x", 0, shape, DType.F32, contiguous_strides(shape))
    sums = builder.reduce(Op.SUM, x, [0])
    ones = builder.constant(1.0, DType.F32, (2,))
    joined = builder.concat([ones, sums], 0)
    cut = builder.slice(joined, [Range(0)], (shape[1],))
    check(graph_of(builder, x, joined, builder.make(Op.SUB, x, builder.broadcast(cut, shape))))


def reshaped_view(x):
    return x.t().reshape(4, 9).exp() + 1


def reshaped_argument(x):
    return x.reshape(4, 9).exp(), x.reshape(4, 9).clone(), x[1:4].reshape(2, 9).sum(0)


def reshaped_result(x):
    y = x.exp()
    return y, y.reshape(4, 9) + 1


def reshaped_operand(x):
    y = x.exp()
    return torch.cumsum(y, 0), torch.cumsum(y.reshape(4, 9) * 2, 0)


@pytest.mark.parametrize(
    "function", [reshaped_view, reshaped_argument, reshaped_result, reshaped_operand]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_an_uneven_reshape(function, transposed):
    x = torch.randn(6, 6)
    x = x.t() if transposed else x
    torch.testing.assert_close(compiled(function)(x), function(x))


def rotated(a, b):
    """Halves beside pairs, as a rotary embedding has them whose angles are tiled."""
    pairs = torch.stack((-a[:, 1::2], a[:, ::2]), -1).flatten(1)
    return a * b[:, :5].sin().repeat(1, 2) + pairs * b[:, :5].cos().repeat(1, 2)


def two_ways(a, b):
    return (a.view(-1, 5, 2) * 2).exp().view(-1, 10) + (b.view(-1, 2, 5) * 3).sin().view(-1, 10)


def sums_two_ways(a, b):
    return a.view(-1, 5, 2).sum(2).repeat(1, 2) * b.view(-1, 2, 5).sum(2).repeat(1, 5)[:, :10]


def turned_two_ways(a, b):
    a, b = a.view(-1, 5, 2).mT.reshape(-1, 10), b.view(-1, 2, 5).mT.reshape(-1, 10)
    return a.softmax(1) * b.cumsum(1)


@pytest.mark.parametrize("function", [rotated, two_ways, sums_two_ways, turned_two_ways])
@pytest.mark.parametrize("dynamic", some([False], [True]))
def test_axes_of_memory_cut_in_two_ways(function, dynamic):
    """Loops go along those of one operand at most; the others are read where they lie."""
    torch._dynamo.reset()
    fast = torch.compile(function, backend="hemstitch", options=OPTIONS, dynamic=dynamic)
    for rows in (7, 3) if dynamic else (7,):
        tensors = [torch.randn(rows, 10, requires_grad=True) for _ in range(2)]
        found, expected = fast(*tensors), function(*tensors)
        torch.testing.assert_close(found, expected)
        seed = torch.randn_like(expected)
        gradients = (torch.autograd.grad(y, tensors, seed) for y in (found, expected))
        torch.testing.assert_close(next(gradients), next(gradients))


def test_a_slice_of_reshaped_memory_with_gaps():
    def function(x):
        y = x.reshape(448)
        return torch.cat([-y[224:], y[:224]])

    x = torch.randn(64, 8)[:, :7]
    torch.testing.assert_close(compiled(function)(x), function(x))


def test_a_padded_value_in_another_shape():
    def function(x):
        return torch.nn.functional.pad(x, (1, 0, 2, 0, 3, 0), value=1.0).reshape(2, 50, -1, 4)

    torch._dynamo.reset()
    fast = torch.compile(function, backend="hemstitch", options=OPTIONS, dynamic=True)
    for size in (3, 5):
        x = torch.randn(97, size, 3)
        torch.testing.assert_close(fast(x), function(x))


ONE_ELEMENT = """\
symbol s0 = argument 0 axis 0 hint 4
%0 = input f32[s0] "x" position 0 strides (0)
%1 = exp f32[s0] %0
%2 = sum f32[] %1 (0)
output %1 strides (1)
output %2 strides ()
"""


def test_one_element_under_no_index():
    """An empty tensor has no address, so that not even an element at stride 0 may be loaded."""
    graph = parse(ONE_ELEMENT, Builder())
    for size in (4, 0):
        x = torch.randn(1).expand(size)
        assert_close(execute(graph, [x]), [x.exp(), x.exp().sum()], 1e-6)


def test_an_argument_in_a_layout_that_the_library_was_not_traced_with():
    def function(x):
        return torch.cumsum(x.contiguous(), 0) * 2, x.exp()

    x = torch.randn(5, 7).t()
    torch.testing.assert_close(compiled(function)(x), function(x))


def test_what_a_library_call_reads_transposed_is_stored_once():
    """It was also stored as it is, for nobody."""
    builder = Builder()
    x = builder.input("x", 0, (8, 16), DType.F32, (16, 1))
    flipped = builder.permute(builder.make(Op.EXP, x), (1, 0))
    call = LibraryCall("f", None, (Operand(0),), (), ((8, 1),), ((flipped.type, (8, 1)),))
    (result,) = builder.call(call, [flipped])
    plan = plan_for(Graph((x,), (Output(result, (8, 1)),)), generic_cpu(2, 8))
    [step] = plan.kernels
    assert [tensor.node for tensor in step.writes] == [flipped]


@pytest.mark.parametrize("rows", [256, 257, 300])
def test_blocks_of_rows_are_turned_though_the_last_is_shorter(target, rows):
    """Its length was taken for a constant when the loops were printed."""
    builder = Builder()
    x = builder.input("x", 0, (rows, 8), DType.F32, (16, 2))
    graph = graph_of(builder, x, builder.make(Op.NEG, builder.reduce(Op.SUM, x, (1,))))
    arguments = [torch.randn(rows, 16)[:, ::2]]
    found = execute(graph, arguments, generic_cpu(target.threads, target.lanes))
    assert_close(found, interpret.run(graph, arguments), 1e-4)


def test_what_is_kept_for_backward_has_the_strides_that_it_was_traced_with():
    """One row of each sequence: far apart in memory, and nothing else of it is kept."""

    def function(x, scale, shift, weight, bias):
        first = torch.nn.functional.layer_norm(x, (32,), scale, shift)[:, 0]
        return torch.nn.functional.linear(first, weight, bias).sin()

    shapes = ((8, 17, 32), (32,), (32,), (10, 32), (10,))
    arguments = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    graph, plan = plans_of(function, arguments, generic_cpu(2, 8), backward=True)[0]
    kept = [(o, a) for o, a in zip(graph.outputs, plan.outputs) if o.may_share]
    assert any(output.strides == (17 * 32, 1) for output, _ in kept)
    assert all(alias.strides == output.strides for output, alias in kept)


def test_a_small_value_that_many_read_does_not_take_them_from_what_they_pass_most_to():
    """Two layers' weights follow from one mask; each belongs into the kernel that reads it."""
    builder = Builder()
    x, y = (builder.input(n, k, (64, 64), DType.F32, (64, 1)) for k, n in enumerate("xy"))
    row = builder.input("m", 2, (64,), DType.F32, (1,))
    mask = builder.broadcast(builder.reshape(builder.make(Op.EXP, row), (1, 64)), (64, 64))
    first, second = (builder.make(Op.MUL, builder.make(Op.TANH, each), mask) for each in (x, y))
    call = LibraryCall("f", None, (Operand(0),), (), ((64, 1),), ((first.type, (64, 1)),))
    (between,) = builder.call(call, [builder.make(Op.NEG, first)])
    plan = plan_for(graph_of(builder, x, builder.make(Op.ADD, between, second)), generic_cpu(2, 8))
    assert len(plan.kernels) == 2
    sizes = [tensor.bytes for step in plan.kernels for tensor in step.writes]
    assert sizes.count(64 * 64 * 4) == 2


@pytest.mark.parametrize("rows", [600, 6000])
@pytest.mark.parametrize("planner", ["auto", "beam"])
def test_halves_that_change_places_read_sums_of_other_blocks(rows, planner):
    """They were read in the block that only makes its own, before the others were there."""

    def function(x, u, v):
        y = x - x.sum(2, keepdim=True) * 0.7
        half = len(x) // 2
        z = torch.cat((-y[half:], y[:half]))
        return z, torch.where(u > 0.3, z, 0.0).bfloat16(), torch.where(v > 0.3, x, 0.0)

    torch._dynamo.reset()
    options = {**OPTIONS, "planner": planner}
    arguments = [torch.rand(rows, 2, 2) for _ in range(3)]
    found = torch.compile(function, backend="hemstitch", options=options)(*arguments)
    for ours, theirs in zip(found, function(*arguments)):
        torch.testing.assert_close(ours, theirs)


def test_positions_that_are_in_memory_are_not_read_from_there_to_be_written():
    """No loop looks through this reshape, so that what is below it gets memory."""
    builder = Builder()
    x = builder.input("x", 0, (4, 6), DType.F32, (6, 1))
    places = builder.reshape(builder.iota((6, 4), 0), (4, 6))
    graph = graph_of(builder, x, builder.make(Op.ADD, x, builder.cast(places, DType.F32)))
    check(graph)


@pytest.mark.parametrize("width", [40, 24])
def test_a_row_of_each_sequence_for_the_library(width):
    """With symbolic sizes they were as far apart as in the whole, and had no room for that."""

    def first_rows(x):
        return torch.fft.rfft((x.relu() + 1)[:, 0]).abs()

    x = torch.randn(3, 24, width)
    torch._dynamo.mark_dynamic(x, 2)
    assert_close([compiled(first_rows)(x)], [first_rows(x.double())], 1e-5)


def test_a_product_of_a_transposed_sum_beside_gradients_by_index():
    """What is added up are heads and features of the sum, which no loop walks as one: XLNet's."""

    def program(w, a, x, y, tokens):
        both = (x + y).view(24, 2, 4, 16, 1).permute(0, 1, 4, 2, 3)
        product = torch.bmm(both.reshape(1, 48, 64), w).view(24, 2, 64)
        return torch.ops.aten.embedding_dense_backward(a + product, tokens, 256, -1, False)

    heads = [torch.randn(2, 4, 24, 16).permute(2, 0, 1, 3) for _ in range(2)]
    tokens = torch.randint(0, 256, (24, 2))
    arguments = torch.randn(1, 64, 64).mT, torch.randn(24, 2, 64), *heads, tokens
    torch.testing.assert_close(compiled(program)(*arguments), program(*arguments))
