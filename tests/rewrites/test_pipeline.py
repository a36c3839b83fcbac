"""The passes together: the meaning stays, work goes, text of typical programs, size."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemstitch.errors import InternalError
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import LibraryCall, Operand
from hemstitch.ir.dims import symbol
from hemstitch.ir.graph import Graph, Node, Op, Output, Range, toposort
from hemstitch.ir.printer import show
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.ir.verifier import verify
from hemstitch.rewrites.common_operands import merge_common_operands
from hemstitch.runtime.interpreter import run
from tests.graphs import SYMBOLS, RandomGraph, arguments_for, assert_same, single
from tests.lowered import optimize
from tests.rewrites.cases import Values


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_random_graphs_keep_their_meaning(random):
    builder = Builder()
    graph = RandomGraph(random, builder).graph
    found = optimize(graph, builder)
    assert found.inputs == graph.inputs and found.symbols == graph.symbols
    assert [output.strides for output in found.outputs] == [
        output.strides for output in graph.outputs
    ]
    sizes = {name: random.randint(2, 5) for name in SYMBOLS}
    arguments = arguments_for(graph, random, sizes)
    # Which of 0.0 and -0.0 a maximum gives depends on where the elements lie.
    assert_same(run(found, arguments), run(graph, arguments), zeros=False)
    assert optimize(found, builder) is found


def test_a_program_with_nothing_to_do_is_left_alone():
    v = Values()
    graph = single(v.builder, v.exp(v.add(v.x, v.y)), v.builder.reduce(Op.SUM, v.x, [1]))
    assert optimize(graph, v.builder) is graph


def test_operands_in_either_order_are_one_value():
    v = Values()
    both = v.sub(v.exp(v.add(v.x, v.y)), v.exp(v.add(v.y, v.x)))
    found = merge_common_operands(single(v.builder, both), v.builder)
    first, second = found.outputs[0].value.inputs
    assert first is second
    ordered = single(v.builder, v.sub(v.y, v.x))
    assert merge_common_operands(ordered, v.builder) is ordered


def test_what_becomes_one_value_is_simplified_again():
    v = Values()
    both = v.maximum(v.mul(v.x, v.y), v.mul(v.y, v.x))
    found = optimize(single(v.builder, both), v.builder)
    assert found.outputs[0].value is v.mul(v.x, v.y)


def test_library_calls_stay_apart_and_are_followed():
    v = Values(shape=(3, 3))
    type_ = TensorType((3, 3), DType.F32)

    def product(x: Node, y: Node) -> Node:
        call = LibraryCall(
            "f", None, (Operand(0), Operand(1)), (), ((3, 1), (3, 1)), ((type_, (3, 1)),)
        )
        (result,) = v.builder.call(call, [x, y])
        assert result is not None
        return result

    once, again = product(v.mul(v.x, 1), v.y), product(v.x, v.y)
    found = optimize(single(v.builder, v.add(once, again)), v.builder)
    calls = [node for node in toposort(found.roots) if node.op is Op.LIBRARY]
    assert len(calls) == 2 and all(call.inputs == (v.x, v.y) for call in calls)


def test_outputs_with_one_value_stay_two():
    v = Values()
    graph = single(v.builder, v.neg(v.x), v.neg(v.x))
    assert len(optimize(graph, v.builder).outputs) == 2


def test_a_mutated_input_stays_the_same_node():
    v = Values()
    outputs = (Output(v.mul(v.add(v.x, 2), 1), (11, 1), mutates=v.x),)
    found = optimize(Graph((v.x,), outputs), v.builder)
    assert found.outputs == (Output(v.add(v.x, 2), (11, 1), mutates=v.x),)


def test_check_finds_a_wrong_graph():
    v = Values()
    wrong = Node(Op.ADD, (v.x, v.i), v.x.type)
    with pytest.raises(InternalError, match="invalid graph"):
        optimize(single(v.builder, wrong), v.builder)


def normalise(v: Builder, x: Node, scale: Node) -> Node:
    """x / sqrt(mean(x * x) + eps) * scale, as a front end would write it out."""
    rows, columns = x.shape
    size = v.broadcast(v.make(Op.CAST, v.size(columns), type=TensorType((), DType.F32)), (rows,))
    mean = v.make(Op.DIV, v.reduce(Op.SUM, v.make(Op.MUL, x, x), [1]), size)
    padded = v.reshape(mean, (rows, 1))
    eps = v.broadcast(v.constant(1e-5, DType.F32), (rows, 1))
    root = v.make(Op.SQRT, v.make(Op.ADD, padded, eps))
    one = v.broadcast(v.constant(1.0, DType.F32), (rows, 1))
    inverse = v.broadcast(v.make(Op.DIV, one, root), x.shape)
    return v.make(Op.MUL, v.make(Op.MUL, x, inverse), v.broadcast(scale, x.shape))


def test_normalisation(golden):
    builder = Builder()
    rows = symbol("s0")
    x = builder.input("x", 0, (rows, 64), DType.F32, (64, 1))
    scale = builder.input("scale", 1, (64,), DType.F32, (1,))
    value = normalise(builder, x, scale)
    graph = Graph((x, scale), (Output(value, (64, 1)),), symbols={"s0": (0, 0)})
    golden(show(optimize(graph, builder)))


def test_gates_of_a_cell_become_loads_with_an_offset(golden):
    builder = Builder()
    shape = (8, 64)
    x = builder.input("x", 0, shape, DType.F32, (64, 1))
    h = builder.input("h", 1, shape, DType.F32, (64, 1))
    bias = builder.input("bias", 2, (64,), DType.F32, (1,))
    gates = builder.make(Op.ADD, builder.make(Op.ADD, x, h), builder.broadcast(bias, shape))
    parts = [builder.slice(gates, [Range(0), Range(16 * gate)], (8, 16)) for gate in range(4)]
    kept = builder.make(Op.MUL, builder.make(Op.SIGMOID, parts[0]), builder.make(Op.TANH, parts[1]))
    shown = builder.make(
        Op.MUL, builder.make(Op.SIGMOID, parts[2]), builder.make(Op.TANH, parts[3])
    )
    golden(show(optimize(single(builder, builder.make(Op.ADD, kept, shown)), builder)))


def test_a_causal_mask_is_made_once_for_all_heads(golden):
    builder = Builder()
    shape = (2, 4, 16, 16)
    scores = builder.input("scores", 0, shape, DType.F32, contiguous_strides(shape))
    query, key = builder.iota(shape, 2), builder.iota(shape, 3)
    mask = builder.make(Op.NOT, builder.make(Op.LE, key, query))
    fill = builder.constant(float("-inf"), DType.F32, shape)
    masked = builder.make(
        Op.WHERE, mask, fill, builder.make(Op.DIV, scores, builder.constant(8.0, DType.F32, shape))
    )
    golden(show(optimize(single(builder, masked), builder)))


def test_ten_thousand_nodes():
    """One long chain with something to do at each link; what is left is counted."""
    v = Values(shape=(4,))
    node, links = v.x, 1250
    for link in range(links):
        node = v.add(v.neg(v.neg(node)), v.mul(v.y, 1))
        node = v.to(v.to(v.mul(node, 1 + link % 2), DType.F64), DType.F32)
        node = v.builder.reshape(v.builder.reshape(node, (2, 2)), (4,))
    graph = single(v.builder, node)
    assert len(toposort(graph.roots)) > 8 * links - 10
    found = optimize(graph, v.builder)
    assert len(toposort(found.roots)) == links + links // 2 + 3
    arguments = arguments_for(graph, Random(0))
    assert_same(run(found, arguments), run(graph, arguments))
    verify(found)


def test_slices_of_a_long_chain_do_not_multiply_it():
    v = Values()
    node = v.x
    for _ in range(3000):
        node = v.add(node, v.y)
    parts = [v.builder.slice(node, [Range(0), Range(k)], (7, 1)) for k in range(10)]
    found = optimize(single(v.builder, *parts, node), v.builder)
    assert len(toposort(found.roots)) == 3000 + 2 + 10
