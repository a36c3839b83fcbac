"""The plan verifier finds each kind of mistake in plans that were tampered with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hemstitch.errors import InternalError
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import LibraryCall, Operand
from hemstitch.ir.graph import Graph, Op, Output
from hemstitch.ir.types import DType, TensorType
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep
from hemstitch.planning.planner import make_plan
from hemstitch.planning.verifier import verify_plan
from hemstitch.stitching.group import Tensor
from hemstitch.targets.cpu.description import generic_cpu

SHAPE, STRIDES = (8, 16), (16, 1)


def example():
    """kernel: y = exp(x); library: z = f(y); kernel: z + y, and x is replaced by tanh(y)."""
    builder = Builder()
    x = builder.input("x", 0, SHAPE, DType.F32, STRIDES)
    y = builder.make(Op.EXP, x)
    type_ = TensorType(SHAPE, DType.F32)
    call = LibraryCall("f", None, (Operand(0),), (), (STRIDES,), ((type_, STRIDES),))
    (z,) = builder.call(call, [y])
    outputs = (
        Output(builder.make(Op.ADD, z, y), STRIDES),
        Output(builder.make(Op.TANH, z), STRIDES, mutates=x),
    )
    graph = Graph((x,), outputs)
    return make_plan(graph, generic_cpu(2, 8), Options())


def test_a_good_plan_passes():
    plan = example()
    verify_plan(plan)
    assert len(plan.steps) == 3 and len(plan.kernels) == 2


def steps(plan, *order):
    return replace(plan, steps=tuple(plan.steps[k] for k in order))


def without_member(plan):
    step = plan.steps[0]
    group = replace(step.groups[0], members=())
    return replace(plan, steps=(replace(step, groups=(group,)), *plan.steps[1:]))


def with_foreign_output(plan):
    alias = plan.outputs[0]
    tensor = Tensor(alias.tensor.node, alias.strides)
    return replace(plan, outputs=(replace(alias, tensor=tensor), plan.outputs[1]))


def with_other_shape(plan):
    alias = replace(plan.outputs[0], shape=(16, 8))
    return replace(plan, outputs=(alias, plan.outputs[1]))


def with_outputs_exchanged(plan):
    return replace(plan, outputs=(plan.outputs[0], plan.outputs[0]))


def with_group_unstitched(plan):
    first, last = plan.kernels
    step = KernelStep(last.groups, first.stitched)
    return replace(plan, steps=(*plan.steps[:2], step))


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda plan: steps(plan, 1, 0, 2), "step 0: exp .* is read before it is written"),
        (lambda plan: steps(plan, 0, 2, 1), "step 1: result .* is read before it is written"),
        (lambda plan: steps(plan, 0, 1, 2, 2), "is not written once"),
        (lambda plan: steps(plan, 0, 1, 2, 0), "step 3: input .* is read after it was replaced"),
        (lambda plan: steps(plan, 0, 1, 1, 2), "the library calls are not those of the graph"),
        (lambda plan: steps(plan, 0, 1), "the output add .* is never written"),
        (without_member, "is neither computed nor in memory"),
        (with_foreign_output, "is never written"),
        (with_other_shape, "is of another shape"),
        (with_outputs_exchanged, "the output tanh .* is elsewhere"),
        (with_group_unstitched, "the kernel writes something else"),
        (lambda plan: replace(plan, outputs=()), "another number of outputs"),
    ],
)
def test_a_mistake_is_found(tamper, message):
    plan = example()
    with pytest.raises(InternalError, match=message):
        verify_plan(tamper(plan))


# --- calls that replace an argument where it lies


def cache_example():
    """library: new = f(cache, x) in place of `cache`; library: y = g(new); kernel: exp(y) + new."""
    builder = Builder()
    cache, x = (builder.input(n, k, SHAPE, DType.F32, STRIDES) for k, n in enumerate("cx"))
    type_ = TensorType(SHAPE, DType.F32)
    result = ((type_, STRIDES),)
    operands = (Operand(0), Operand(1))
    call = LibraryCall("f", None, operands, (), (STRIDES, STRIDES), result, in_place=len)
    (new,) = builder.call(call, [cache, x])
    (y,) = builder.call(LibraryCall("g", None, (Operand(0),), (), (STRIDES,), result), [new])
    total = builder.make(Op.ADD, builder.make(Op.EXP, y), new)
    graph = Graph((cache, x), (Output(total, STRIDES), Output(new, STRIDES, mutates=cache)))
    return make_plan(graph, generic_cpu(2, 8), Options())


def test_what_is_in_place_is_read_behind_the_call():
    plan = cache_example()
    verify_plan(plan)
    (result,) = plan.steps[0].results
    assert result.is_argument and len(plan.steps) == 3
    with pytest.raises(InternalError, match="is read before it is in place"):
        verify_plan(steps(plan, 1, 0, 2))
    old = plan.graph.inputs[0]
    step = plan.steps[2]
    reads = {old if t.is_argument else n: t for n, t in step.groups[0].reads.items()}
    changed = replace(step, groups=(replace(step.groups[0], reads=reads),))
    with pytest.raises(InternalError, match=r"is read after it was replaced|neither computed"):
        verify_plan(replace(plan, steps=(*plan.steps[:2], changed)))
