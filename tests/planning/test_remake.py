"""What every kernel makes again rather than load: what it moves, and where it stays away."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hemstitch.errors import InternalError
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import LibraryCall, Operand
from hemstitch.ir.graph import Graph, Op, Output
from hemstitch.ir.types import DType
from hemstitch.planning import clusters as cluster
from hemstitch.planning.verifier import verify_plan
from hemstitch.report.explain import explain
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plan_for

OPTIONS = {"strict": True, "check": True}
ROWS, WIDTH = 256, 128
SIZE = ROWS * WIDTH
HALF, SINGLE = 2 * SIZE, 4 * SIZE  # bytes
SHAPE, STRIDES = (ROWS, WIDTH), (WIDTH, 1)


def moved(function, *arguments):
    """Bytes that each kernel reads and writes."""
    report = explain(function, *arguments, options=OPTIONS)
    return [(kernel.bytes_read, kernel.bytes_written) for kernel in report.kernels]


def check(function, *arguments):
    torch._dynamo.reset()
    expected = function(*(x.clone() for x in arguments))
    given = [x.clone() for x in arguments]
    found = torch.compile(function, backend="hemstitch", options=OPTIONS)(*given)
    torch.testing.assert_close(found, expected)


def half(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def around_a_product(x, weight):
    wide = x.float()
    return wide.tanh().bfloat16() @ weight + wide


def test_a_widened_tensor_is_read_as_it_is():
    arguments = half(ROWS, WIDTH), half(WIDTH, WIDTH)
    assert moved(around_a_product, *arguments) == [(HALF, HALF), (2 * HALF, SINGLE)]
    check(around_a_product, *arguments)


def test_also_under_autocast():
    def program(x, weight):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = x @ weight
            scores = hidden.softmax(-1)
            return scores + (hidden @ weight).float(), hidden.float().sum(0)

    arguments = half(ROWS, WIDTH).float(), half(WIDTH, WIDTH).float()
    assert all(kernel[0] <= 3 * HALF for kernel in moved(program, *arguments)[1:])


def test_a_result_is_stored_and_loaded():
    """It is in memory anyway."""

    def program(x, weight):
        wide = x.float()
        return wide, around_a_product(x, weight)

    arguments = half(ROWS, WIDTH), half(WIDTH, WIDTH)
    first, last = moved(program, *arguments)
    assert first == (HALF, HALF + SINGLE) and last == (SINGLE + HALF, SINGLE)
    check(program, *arguments)


def test_what_a_replaced_argument_gave_is_stored():
    """Made again it would be made from the new contents."""

    def program(x, weight):
        wide = x.float()
        product = wide.tanh().bfloat16() @ weight
        x.copy_(product)
        return x @ weight + wide

    arguments = half(ROWS, WIDTH), half(WIDTH, WIDTH)
    assert (HALF, HALF + SINGLE) in moved(program, *arguments)
    check(program, *arguments)


# --- graphs with a library call in between


def around_a_call(make, dtype=DType.F32):
    """A call reads exp(value), and its result meets `value` again, made from one tensor."""
    builder = Builder()
    x = builder.input("x", 0, SHAPE, dtype, STRIDES)
    value = make(builder, x)
    result = called(builder, builder.make(Op.EXP, builder.cast(value, DType.F32)))
    has_grid_barrier = builder.make(Op.ADD, result, builder.cast(value, DType.F32))
    return Graph((x,), (Output(has_grid_barrier, STRIDES),)), value


def called(builder, operand):
    strides = (operand.shape[1], 1)
    call = LibraryCall("f", None, (Operand(0),), (), (strides,), ((operand.type, strides),))
    (result,) = builder.call(call, [operand])
    return result


def rematerialised(graph, machine=None):
    plan = plan_for(graph, machine or generic_cpu(2, 8))
    groups = [group for step in plan.kernels for group in step.groups]
    return frozenset().union(*(group.rematerialised for group in groups)), plan


def relu(builder, x):
    return builder.make(Op.MAXIMUM, x, builder.constant(0.0, x.type.dtype, x.shape))


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (relu, DType.F32),
        (lambda build, x: build.make(Op.MUL, x, x), DType.F32),
        (lambda build, x: relu(build, build.make(Op.NEG, build.make(Op.ABS, x))), DType.F32),
        (lambda build, x: build.cast(x, DType.F32), DType.BOOL),
        (lambda build, x: build.cast(x, DType.F32), DType.U8),
    ],
)
def test_cheap_functions_of_one_tensor_are_made_again(make, dtype):
    graph, value = around_a_call(make, dtype)
    found, plan = rematerialised(graph)
    assert value in found
    assert all(node in (graph.inputs[0],) or node.op is Op.RESULT for node in loaded(plan))


def centred(builder, x):
    total = builder.reduce(Op.SUM, x, (1,), keep=True)
    return builder.make(Op.SUB, x, builder.broadcast(total, x.shape))


def loaded(plan):
    return [node for step in plan.kernels for group in step.groups for node in group.reads]


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda build, x: build.make(Op.TANH, x), DType.F32),  # costs more than a load
        (lambda build, x: build.cast(build.make(Op.TANH, x), DType.BF16), DType.F32),
        (centred, DType.F32),  # of two tensors
    ],
)
def test_others_are_stored(make, dtype):
    graph, value = around_a_call(make, dtype)
    found, plan = rematerialised(graph)
    assert value not in found and value in loaded(plan)


def test_rounded_to_half_and_widened_is_stored_as_half():
    def rounded(builder, x):
        return builder.cast(builder.cast(builder.make(Op.TANH, x), DType.BF16), DType.F32)

    graph, value = around_a_call(rounded)
    found, plan = rematerialised(graph)
    assert found == {value} and value.inputs[0] in loaded(plan)


def test_a_small_tensor_is_not_widened_for_every_row():
    """Nothing is saved that would pay for it."""
    builder = Builder()
    x = builder.input("x", 0, SHAPE, DType.F32, STRIDES)
    bias = builder.input("bias", 1, (1, WIDTH), DType.BF16, STRIDES)
    wide = builder.broadcast(builder.cast(bias, DType.F32), SHAPE)
    result = called(builder, builder.make(Op.MUL, x, wide))
    graph = Graph((x, bias), (Output(builder.make(Op.ADD, result, wide), STRIDES),))
    assert not rematerialised(graph)[0]


def test_it_is_read_along_two_axes_at_once():
    """As what is in memory may be: y + y.T, where y has no loops of its own."""
    builder = Builder()
    x = builder.input("x", 0, (64, 64), DType.BF16, (64, 1))
    wide = builder.cast(x, DType.F32)
    both = builder.make(Op.ADD, wide, builder.permute(wide, (1, 0)))
    result = called(builder, builder.make(Op.EXP, wide))
    graph = Graph((x,), (Output(builder.make(Op.ADD, result, both), (64, 1)),))
    found, plan = rematerialised(graph)
    assert found == {wide} and len(plan.kernels) == 2


def test_what_no_reader_can_make_is_stored(monkeypatch):
    monkeypatch.setattr(
        cluster.Clustering, "refused_rematerialisation", lambda self: self.work.rematerialised
    )
    graph, value = around_a_call(relu)
    found, plan = rematerialised(graph)
    assert not found and value in loaded(plan)


def with_groups(plan, **changes):
    groups = [(replace(step.groups[0], **changes),) for step in plan.kernels]
    steps = [replace(step, groups=each) for step, each in zip(plan.kernels, groups)]
    return replace(plan, steps=(steps[0], plan.steps[1], steps[1]))


def test_a_mistake_is_found():
    graph, _ = around_a_call(relu)
    _, plan = rematerialised(graph)
    verify_plan(plan)
    with pytest.raises(InternalError, match="is computed by several groups"):
        verify_plan(with_groups(plan, rematerialised=frozenset()))
