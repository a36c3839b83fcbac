"""Printer and parser of the graph IR: what is printed can be read back, and means the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemstitch.errors import InternalError
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import (
    Attention,
    Convolution,
    ConvolutionBackward,
    LibraryCall,
    Matmul,
    MatmulAxis,
    Operand,
    StructuredCall,
    Within,
)
from hemstitch.ir.dims import choice, quotient, remainder, symbol
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import Address, Graph, Op, Origin, Output, Range, operation_of, toposort
from hemstitch.ir.ops import is_call
from hemstitch.ir.parser import Opaque, parse
from hemstitch.ir.printer import show
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.ir.verifier import verify
from tests.graphs import RandomGraph


def everything() -> Graph:
    """A graph with each kind of attribute, symbolic sizes, mutation, effects, a library call."""
    builder = Builder()
    s0, s1 = symbol("s0"), symbol("s1")
    x = builder.input('a "b" # c', 1, (s0, 4), DType.F32, (4, 1))
    seed = builder.input("seed", 2, (), DType.I64, (), is_written=True)
    builder.origin = Origin("aten.add.Tensor", "model.py", 12, "y = x + 1")
    y = builder.make(Op.ADD, x, builder.constant(1e-5, DType.F32, x.shape))
    builder.origin = None
    noise = builder.philox(seed, (s0, 4))
    half = builder.slice(builder.make(Op.MUL, y, noise), [Range(0), Range(3, -2)], (s0, 2))
    wide = builder.pad(half, (0, 1), (s0, 4), builder.constant(float("-inf"), DType.F32))
    wide = builder.reduce(Op.MAX, builder.unfold(wide, 1, 1, 1), (2,))
    joined = builder.concat([wide, x], 0)
    row = builder.reduce(Op.SUM, joined, (0,))
    picked = builder.gather(
        row,
        [builder.make(Op.REMAINDER, *[builder.iota((s0, 4), 1)] * 2)],
        [Address(operand=1)],
        (s0, 4),
    )
    added = builder.scatter_add(
        picked, [builder.iota((s0, 4), 0)], [Address(operand=1), Address(axis=1)], (s1, 4)
    )
    call = LibraryCall(
        "aten.mm.default",
        None,
        (Operand(0), Operand(1), None, 2, -0.5, "text", (1, (s0 + 1, True))),
        (("dtype", Opaque("torch.float32")),),
        ((4, 1), None),
        ((TensorType((s0, s0), DType.F32), (s0, 1)), None),
        effects=True,
    )
    product, nothing = builder.call(call, [picked, builder.permute(x, (1, 0))])
    assert product is not None and nothing is None
    size = builder.size(quotient(s0 * 3 + s1, 2) + remainder(s1, s0) + choice("min", (s0, s1)))
    square = builder.dot(x, builder.permute(x, (1, 0)), Within(MatmulAxis.COLUMN, MatmulAxis.ROW))
    outputs = (
        Output(product, (s0, 1)),
        Output(square, (s0, 1)),
        Output(builder.make(Op.ADD, picked, x), (4, 1), mutates=x),
        Output(added, (4, 1)),
        Output(size, ()),
        Output(builder.constant(True, DType.BOOL, (2,)), (1,)),
    )
    effects = (product.inputs[0],)
    symbols = {"s0": (1, 0), "s1": (3, None)}
    return Graph((x, seed), outputs, effects, symbols, {"s0": 8}, builder.origins)


def structured() -> Graph:
    """Each structured call, with all of its attributes."""
    builder, f32 = Builder(), DType.F32
    shapes = {
        "a": (5, 4),
        "b": (4, 3),
        "c": (3,),
        "image": (2, 4, 9, 9),
        "weight": (6, 2, 3, 3),
        "bias": (6,),
        "sums": (25, 2, 6),
        "gradient": (2, 6, 4, 4),
        "q": (2, 2, 5, 8),
        "k": (2, 2, 7, 8),
        "mask": (5, 7),
    }
    inputs = {
        name: builder.input(name, place, shape, f32, contiguous_strides(shape))
        for place, (name, shape) in enumerate(shapes.items())
    }
    convolution = Convolution((2, 2), (0, 0), (1, 1), False, (0, 0), 2, True, True)
    within = Within(MatmulAxis.STEP, MatmulAxis.ROW, -3)
    backward = ConvolutionBackward(replace(convolution, has_weight_sums=False), (True, False, True))
    asked = [
        (Matmul(True, within), "c a b", [(5, 3)]),
        (convolution, "image weight bias sums", [shapes["gradient"]]),
        (backward, "gradient image weight", [shapes["image"], None, (6,)]),
        (Attention(True, 0.5, True), "q k k mask", [(2, 2, 5, 8), (2, 2, 5)]),
    ]
    outputs = []
    for operation, names, results in asked:
        operands = [inputs[name] for name in names.split()]
        strides = tuple(contiguous_strides(operand.shape) for operand in operands)
        types = [shape and (TensorType(shape, f32), contiguous_strides(shape)) for shape in results]
        values = builder.call(StructuredCall(operation, strides, tuple(types)), operands)
        outputs += [Output(v, contiguous_strides(v.shape)) for v in values if v is not None]
    return Graph(tuple(inputs.values()), tuple(outputs))


def test_structured_calls_are_printed_and_read_back(golden):
    graph = structured()
    verify(graph)
    golden(show(graph))
    copy = parse(show(graph), Builder())
    verify(copy)
    calls = [operation_of(node) for node in toposort(graph.roots) if is_call(node.op)]
    assert [operation_of(node) for node in toposort(copy.roots) if is_call(node.op)] == calls


def test_everything_is_printed(golden):
    graph = everything()
    verify(graph)
    golden(show(graph, origins=True))


def test_everything_is_read_back():
    graph = everything()
    copy = parse(show(graph, origins=True), Builder())
    verify(copy)
    assert show(copy) == show(graph)
    assert copy.symbols == graph.symbols and copy.hints == graph.hints
    (call,) = [node.attr for node in toposort(copy.roots) if node.op is Op.LIBRARY]
    (original,) = [node.attr for node in toposort(graph.roots) if node.op is Op.LIBRARY]
    for part in ("name", "arguments", "keywords", "operand_strides", "results", "effects"):
        assert getattr(call, part) == getattr(original, part)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_random_graphs_are_read_back(random):
    graph = RandomGraph(random, Builder()).graph
    verify(graph)
    copy = parse(show(graph), Builder())
    assert show(copy) == show(graph)
    before, after = toposort(graph.roots), toposort(copy.roots)
    assert [(node.op, node.type) for node in before] == [(node.op, node.type) for node in after]


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.0, 1e-30, 1e22, float("inf"), float("-inf"), float("nan"), 7, -7, True]
)
def test_constants_keep_type_and_sign(value):
    dtype = {bool: DType.BOOL, int: DType.I64, float: DType.F64}[type(value)]
    builder = Builder()
    constant = builder.constant(value, dtype)
    graph = Graph((), (Output(constant, ()),))
    assert parse(show(graph), builder).outputs[0].value is constant


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%0 = frobnicate f32[2]", "frobnicate"),
        ("%0 = neg f32[2] %7", "%7"),
        ("%0 = constant f32[2", "line 1"),
        ("%0 = constant f32[2] 1.0 2.0", "did not expect '2.0'"),
        ("%0 = constant f32[2] ~", "cannot read '~'"),
        ("surprise", "surprise"),
        ("%0 = add f32[]", "takes 2 operands"),
    ],
)
def test_what_cannot_be_read_is_named(line, message):
    with pytest.raises(InternalError) as caught:
        parse(line, Builder())
    assert message in str(caught.value) and "line 1" in str(caught.value)


def test_checks_and_their_failures_are_read_back():
    builder = Builder()
    failure = Failure("RuntimeError", 'what "eager" says')
    x, index = (builder.input(n, k, (3,), DType.I64, (1,)) for k, n in enumerate("xi"))
    zero = builder.constant(0, DType.I64, (3,))
    safe = builder.check(builder.make(Op.GE, index, zero), index, failure)
    picked = builder.gather(x, [safe], [Address(operand=1, failure=failure)], (3,))
    graph = Graph((x, index), (Output(picked, (1,)),))
    verify(graph)
    assert show(parse(show(graph), Builder())) == show(graph)
    assert show(graph).count('RuntimeError "what \\"eager\\" says"') == 2
