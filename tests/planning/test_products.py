"""Products of matrices inside kernels: what is fused with them, what refuses, what they compute."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph, Op, Output, toposort
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.kernel_ir.nodes import Contract, statements
from hemstitch.machine.record import Execution
from hemstitch.matmul.lowering.contraction_loops import expand_contractions
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep, LibraryStep
from hemstitch.planning.planner import make_plan
from hemstitch.runtime import interpreter as interpret
from hemstitch.stitching.group import Group, Tensor, Write, is_member
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.stitcher import stitch
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import assert_close, execute, plans_of, simulate

GPU = generic_gpu(4)
# A processor that multiplies matrices in its kernels: slow, and the same numbers.
CPU = replace(generic_cpu(2, 8), matrix_units=GPU.matrix_units, execution=Execution.SIMT)


def steps_of(function, *arguments, **options):
    ((graph, _),) = plans_of(function, arguments, generic_cpu(2, 8))
    return make_plan(graph, generic_gpu(), Options(**options)).steps


def kinds(steps):
    return [type(step) for step in steps]


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype)


# --- what is fused


def attention(q, k, v, mask):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125 + mask, -1) @ v


def heads(keys=128, queries=128):
    return (
        *(zeros(8, 12, length, 64) for length in (queries, keys, keys)),
        zeros(8, 1, queries, keys),
    )


def test_attention_over_short_rows_is_one_kernel():
    assert kinds(steps_of(attention, *heads())) == [KernelStep]


def test_two_products_of_one_tensor_and_their_gate_are_one_kernel():
    def swiglu(x, gate, up):
        return F.silu(x @ gate) * (x @ up)

    (step,) = steps_of(swiglu, zeros(4096, 512), zeros(512, 1024), zeros(512, 1024))
    found = [s for s in statements(step.stitched.kernel) if isinstance(s, Contract)]
    assert len(found) == 2


def gates(inputs, state, weight, bias, cut=(1, 1, 1)):
    """Of a GRU, but that those of the input are given."""
    parts = F.linear(state, weight, bias).split([k * state.shape[-1] for k in cut], -1)
    reset, update = torch.sigmoid(inputs[0] + parts[0]), torch.sigmoid(inputs[1] + parts[1])
    new = torch.tanh(inputs[2] + reset * parts[2])
    return (1 - update) * new + update * state


def of_gates(width=256):
    return (
        *(zeros(3, 64, width), zeros(64, width), zeros(3 * width, width)),
        zeros(3 * width),
    )


def test_slices_of_a_product_are_products_with_slices():
    (step,) = steps_of(gates, *of_gates())
    found = [s for s in statements(step.stitched.kernel) if isinstance(s, Contract)]
    assert len(found) == 3


def test_two_steps_of_a_cell_are_two_kernels():
    def twice(inputs, *arguments):
        return gates(inputs, gates(inputs, *arguments), *arguments[1:])

    assert kinds(steps_of(twice, *of_gates())) == [KernelStep, KernelStep]


def test_columns_that_two_slices_read_are_multiplied_once():
    def overlapping(x, weight):
        product = x @ weight
        return torch.relu(product[:, :160]) + torch.relu(product[:, 96:])

    assert LibraryStep in kinds(steps_of(overlapping, zeros(64, 256), zeros(256, 256)))


def test_an_epilogue_with_sums_over_rows_is_one_kernel():
    def linear(x, weight, bias):
        y = torch.relu(F.linear(x, weight, bias))
        return y, y.sum(0)

    assert kinds(steps_of(linear, zeros(4096, 256), zeros(256, 256), zeros(256))) == [KernelStep]


def test_a_product_alone_is_the_librarys():
    def linear(x, weight, bias):
        return F.linear(x, weight, bias)

    assert kinds(steps_of(linear, zeros(512, 512), zeros(512, 512), zeros(512))) == [LibraryStep]


def test_the_option_leaves_products_to_the_library():
    steps = steps_of(attention, *heads(), products=False)
    assert kinds(steps) == [LibraryStep, KernelStep, LibraryStep]


def test_a_large_sum_that_saves_little_is_the_librarys():
    def linear(x, weight):
        return torch.relu(x @ weight)

    assert kinds(steps_of(linear, zeros(4096, 256), zeros(256, 4096))) == [KernelStep]
    assert kinds(steps_of(linear, zeros(4096, 8192), zeros(8192, 4096))) == [
        LibraryStep,
        KernelStep,
    ]


def test_a_long_row_that_is_read_again_is_the_librarys():
    def norm(x, weight):
        return F.layer_norm(x @ weight, (weight.shape[1],))

    assert kinds(steps_of(norm, zeros(4096, 512), zeros(512, 256))) == [KernelStep]
    assert kinds(steps_of(norm, zeros(4096, 1024), zeros(1024, 1024))) == [LibraryStep, KernelStep]


def test_what_an_operand_is_made_of_is_not_made_again_in_every_tile():
    def second(x, weight):
        return torch.relu(torch.exp(x) @ weight)

    first, last = steps_of(second, zeros(4096, 256), zeros(256, 512))
    assert isinstance(first, KernelStep)
    assert not any(isinstance(s, Contract) for s in statements(first.stitched.kernel))
    assert any(isinstance(s, Contract) for s in statements(last.stitched.kernel))


# --- what refuses


def matrix(builder, name, position, *shape):
    return builder.input(name, position, shape, DType.F32, contiguous_strides(shape))


def softmaxed(builder, product):
    top = builder.broadcast(builder.reduce(Op.MAX, product, (1,), keep=True), product.shape)
    return builder.make(Op.SUB, product, top)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((64, 32, 2000), "matmul: rows of 2000, at most 256 stay in registers"),
        ((1, 32, 64), "matmul: a single row: a GEMV"),
        ((64, 1, 64), "matmul: N or K is not a single axis"),
    ],
)
def test_a_refusal_says_why(shape, why):
    m, k, n = shape
    builder = Builder()
    a, b = matrix(builder, "a", 0, m, k), matrix(builder, "b", 1, k, n)
    value = softmaxed(builder, builder.dot(a, b))
    members = tuple(node for node in toposort([value]) if is_member(node))
    write = Write(value, Tensor(value, contiguous_strides(value.shape)), (n, 1))
    reads = {node: Tensor(node, node.attr.strides) for node in (a, b)}
    with pytest.raises(Refused) as caught:
        stitch([Group(members, (write,), reads, {})], GPU, "kernel")
    assert str(caught.value) == why


# --- what they compute


class Around:
    """A random product of matrices and what stands around it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.builder = Builder()
        self.inputs = []
        size = self.random.choice
        self.batch = size([(), (), (2,), (2, 3)])
        self.m, self.k, self.n = size([2, 5, 33]), size([2, 7, 96]), size([2, 16, 50, 96])
        left = self._operand(self.m, self.k)
        value = self.builder.dot(left, self._operand(self.k, self.n))
        for _ in range(self.random.randint(1, 4)):
            value = self._changed(value)
        outputs = [value]
        if self.random.random() < 0.4:
            value = self.builder.dot(value, self._operand(self.n, size([3, 20])))
            outputs = [value]
        if self.random.random() < 0.3:
            outputs.append(self.builder.reduce(Op.SUM, value, (value.type.rank - 2,)))
        self.graph = Graph(
            tuple(self.inputs),
            tuple(Output(each, contiguous_strides(each.shape)) for each in outputs),
        )
        self.arguments = [torch.randn([*node.shape]) for node in self.inputs]

    def _input(self, *shape):
        name, place = f"x{len(self.inputs)}", len(self.inputs)
        node = self.builder.input(name, place, shape, DType.F32, contiguous_strides(shape))
        self.inputs.append(node)
        return node

    def _operand(self, rows, columns):
        """As it is, transposed, the same for all of the batch, or one row or column repeated."""
        rank = len(self.batch) + 2
        kind = self.random.randrange(6)
        if kind > 3:
            one = (*self.batch, 1, columns) if kind == 4 else (*self.batch, rows, 1)
            return self.builder.broadcast(self._input(*one), (*self.batch, rows, columns))
        if kind == 3:
            value = self._input(*self.batch, rows, columns)
            half = self.builder.constant(0.5, DType.F32, value.shape)
            return self.builder.make(Op.MUL, value, half)
        if kind == 0:
            return self._input(*self.batch, rows, columns)
        if kind == 1:
            order = (*range(rank - 2), rank - 1, rank - 2)
            return self.builder.permute(self._input(*self.batch, columns, rows), order)
        return self.builder.broadcast(self._input(rows, columns), (*self.batch, rows, columns))

    def _changed(self, value):
        builder, last = self.builder, value.type.rank - 1
        match self.random.randrange(5):
            case 0:
                return builder.make(Op.TANH, value)
            case 1:
                bias = self._input(value.shape[-1])
                return builder.make(Op.ADD, value, builder.broadcast(bias, value.shape))
            case 2:
                return builder.make(Op.MUL, value, self._input(*value.shape))
            case 3:
                total = builder.reduce(Op.SUM, value, (last,), keep=True)
                return builder.make(Op.SUB, value, builder.broadcast(total, value.shape))
            case _:
                top = builder.reduce(Op.MAX, value, (last,), keep=True)
                shifted = builder.make(Op.SUB, value, builder.broadcast(top, value.shape))
                return builder.make(Op.EXP, shifted)


SEEDS = st.integers(0, 1 << 40)


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_kernels_mean_what_the_graph_means(seed):
    program = Around(seed)
    found = simulate(program.graph, program.arguments, {}, GPU, order=(2, 0, 3, 1))
    expected = interpret.run(program.graph, program.arguments, precise=True)
    assert_close(found, expected, 1e-9)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_a_processor_adds_up_one_by_one(seed):
    """Off from the truth by no more than the library's order of adding up, twice."""
    program = Around(seed)
    found = execute(program.graph, program.arguments, CPU)
    eager = interpret.run(program.graph, program.arguments)
    exact = interpret.run(program.graph, program.arguments, precise=True)
    for ours, theirs, wanted in zip(found, eager, exact, strict=True):
        off, most = (float((each.double() - wanted).norm()) for each in (ours, theirs))
        assert off <= 2 * most + 1e-5 * max(1.0, float(wanted.norm()))


def test_a_kernel_without_products_is_not_touched():
    (step,) = steps_of(lambda x: torch.relu(x), zeros(64, 64))
    assert expand_contractions(step.stitched.kernel) is step.stitched.kernel
