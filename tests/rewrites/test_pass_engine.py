"""The rewriting engine: order, sharing, origins, and what it says of rules that misbehave."""

from __future__ import annotations

import pytest

from hemstitch.errors import InternalError
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import LibraryCall, Operand
from hemstitch.ir.graph import Op, Origin, toposort
from hemstitch.ir.types import DType, TensorType
from hemstitch.rewrites.engine import rewrite, rule
from tests.graphs import single


@rule(Op.NEG)
def negation_to_difference(builder, node):
    """-x -> 0 - x"""
    (x,) = node.inputs
    return builder.make(Op.SUB, builder.constant(0, x.type.dtype, x.shape), x)


@rule(Op.ABS)
def absolute_to_double_negation(builder, node):
    """|x| -> --x"""
    return builder.make(Op.NEG, builder.make(Op.NEG, node.inputs[0]))


@pytest.fixture
def builder():
    return Builder()


@pytest.fixture
def x(builder):
    return builder.input("x", 0, (2,), DType.F32, (1,))


def test_a_rule_has_name_and_text():
    assert negation_to_difference.name == "negation_to_difference"
    assert negation_to_difference.text == "-x -> 0 - x"


def test_what_a_rule_gives_is_rewritten_too(builder, x):
    graph = single(builder, builder.make(Op.ABS, x))
    found = rewrite(graph, (absolute_to_double_negation, negation_to_difference), builder)
    zero = builder.constant(0, DType.F32, (2,))
    twice = builder.make(Op.SUB, zero, builder.make(Op.SUB, zero, x))
    assert found.outputs[0].value is twice


def test_untouched_nodes_stay_the_same_objects(builder, x):
    kept = builder.make(Op.EXP, x)
    graph = single(builder, builder.make(Op.NEG, kept), kept)
    found = rewrite(graph, (negation_to_difference,), builder)
    assert found.outputs[1].value is kept
    assert found.outputs[0].value.inputs[1] is kept
    assert rewrite(found, (negation_to_difference,), builder) is found


def test_what_becomes_equal_becomes_one(builder, x):
    zero = builder.constant(0, DType.F32, (2,))
    both = builder.make(Op.ADD, builder.make(Op.NEG, x), builder.make(Op.SUB, zero, x))
    found = rewrite(single(builder, both), (negation_to_difference,), builder)
    first, second = found.outputs[0].value.inputs
    assert first is second


def test_origins_go_to_replacements_and_nothing_dead_keeps_one(builder, x):
    builder.origin = Origin("aten.abs.default", "model.py", 3)
    old = builder.make(Op.ABS, x)
    builder.origin = Origin("aten.exp.default", "model.py", 4)
    graph = single(builder, builder.make(Op.EXP, old))
    found = rewrite(graph, (absolute_to_double_negation,), builder)
    outer = found.outputs[0].value
    assert found.origins[outer].line == 4
    assert found.origins[outer.inputs[0]].line == 3
    assert found.origins[outer.inputs[0].inputs[0]].line == 3
    assert old not in found.origins and set(found.origins) <= set(toposort(found.roots))
    assert builder.origin == Origin("aten.exp.default", "model.py", 4)


def test_effects_and_mutations_are_followed(builder, x):
    call = LibraryCall("f", None, (Operand(0),), (), ((1,),), (), effects=True)
    effect = builder.make(
        Op.LIBRARY, builder.make(Op.NEG, x), attr=call, type=TensorType((), DType.OPAQUE)
    )
    graph = single(builder, builder.make(Op.NEG, x))
    outputs = (type(graph.outputs[0])(graph.outputs[0].value, (1,), mutates=x),)
    graph = type(graph)(graph.inputs, outputs, (effect,))
    found = rewrite(graph, (negation_to_difference,), builder)
    assert found.outputs[0].mutates is x and found.inputs == (x,)
    assert found.effects[0].attr is call
    assert found.effects[0].inputs[0].op is Op.SUB


def test_rules_that_go_in_a_circle_are_reported(builder, x):
    @rule(Op.SIN)
    def there(builder, node):
        """sin(x) -> cos(x)"""
        return builder.make(Op.COS, node.inputs[0])

    @rule(Op.COS)
    def back(builder, node):
        """cos(x) -> sin(x)"""
        return builder.make(Op.SIN, node.inputs[0])

    with pytest.raises(InternalError, match="circle"):
        rewrite(single(builder, builder.make(Op.SIN, x)), (there, back), builder)


def test_rules_that_never_end_are_reported(builder, x):
    @rule(Op.SIN)
    def grow(builder, node):
        """sin(x) -> sin(-x)"""
        return builder.make(Op.SIN, builder.make(Op.NEG, node.inputs[0]))

    with pytest.raises(InternalError, match="never come to an end"):
        rewrite(single(builder, builder.make(Op.SIN, x)), (grow,), builder)


def test_a_rule_that_changes_the_type_is_reported(builder, x):
    @rule(Op.SIN)
    def shrink(builder, node):
        """sin(x) -> 0"""
        return builder.constant(0, DType.F32)

    with pytest.raises(InternalError, match="shrink changed the type"):
        rewrite(single(builder, builder.make(Op.SIN, x)), (shrink,), builder)


def test_a_long_chain_is_swept_without_recursion(builder, x):
    node = x
    for _ in range(10_000):
        node = builder.make(Op.NEG, node)
    found = rewrite(single(builder, node), (negation_to_difference,), builder)
    order = toposort(found.roots)
    assert len(order) == 10_000 + 2
    assert all(node.op is not Op.NEG for node in order)
