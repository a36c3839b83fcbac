"""The verifier of the graph IR names what is wrong with a graph, and lets a right one pass."""

from __future__ import annotations

import pytest

from hemstitch.errors import InternalError
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Call
from hemstitch.ir.graph import Graph, Node, Op, Output
from hemstitch.ir.ops import is_call
from hemstitch.ir.parser import parse
from hemstitch.ir.verifier import _ROWS, verify

INPUTS = """\
%0 = input f32[2, 3] "x" position 0 strides (3, 1)
%1 = input i64[2, 3] "i" position 1 strides (3, 1)
%2 = input bool[2, 3] "b" position 2 strides (3, 1)
%3 = input f32[3] "v" position 3 strides (1)
%4 = input opaque[2] "z" position 4 strides (1)
%5 = input i64[] "seed" position 5 strides ()
%6 = constant f32[] 0.0
%8 = permute f32[3, 2] %0 (1, 0)
"""
CALL = (
    '%7 = library opaque[] %0 "f" arguments ($0) keywords () operands ((3, 1)) '
    "results (f32[2] strides (1))"
)

RIGHT = [
    "neg f32[2, 3] %0",
    "add i64[2, 3] %1, %1",
    "lt bool[2, 3] %0, %0",
    "where f32[2, 3] %2, %0, %0",
    "cast bf16[2, 3] %1",
    "reshape f32[1, 6] %0",
    "slice f32[1, 2] %0 (1::1, 2::-2)",
    "slice f32[0, 3] %0 (2::1, 0::1)",
    "pad f32[3, 5] %0, %6 (1, 0)",
    "concat f32[4, 3] %0, %0 0",
    "unfold f32[1, 3, 2] %0 axis 0 size 2 step 1",
    "unfold f32[2, 2, 1] %0 axis 1 size 1 step 2",
    "gather f32[2, 3] %3, %1 (operand 1)",
    "gather f32[2, 3] %0 (axis 0, axis 1)",
    "scatter_add f32[9, 3] %0, %1 (operand 1, axis 1)",
    "sum f32[2] %0 (1)",
    "argmax i64[] %0 (0, 1)",
    "philox f32[8] %5",
    "iota i64[4, 2] 1",
    "constant u8[2] 255",
    "max f32[2, 3] %0 ()",
    "dot f32[2, 2] %0, %8 step within row plus 1",
    "matmul opaque[] %0, %8 operands ((3, 1), (1, 3)) results (f32[2, 2] strides (2, 1))",
]
IMAGE = "stride (1) padding (0) dilation (1) transposed false output_padding (0) groups"
WRONG = [
    ("neg bool[2, 3] %2", "element types"),
    ("neg f32[2, 3] %3", "broadcasts are explicit"),
    ("neg f64[2, 3] %0", "gives f32"),
    ("add f32[2, 3] %0, %1", "casts are explicit"),
    ("add i64[2, 3] %0, %1", "casts are explicit"),
    ("lt f32[2, 3] %0, %0", "gives bool"),
    ("shl f32[2, 3] %0, %0", "element types"),
    ("div i64[2, 3] %1, %1", "element types"),
    ("where f32[2, 3] %0, %0, %0", "condition is not bool"),
    ("where f32[2, 3] %2, %1, %0", "branches differ"),
    ("where f32[2, 3] %2, %0, %3", "broadcasts are explicit"),
    ("cast opaque[2, 3] %0", "casts to opaque"),
    ("dot f32[2, 2] %0, %8 row within row", "rows are not within themselves"),
    (
        "matmul opaque[] %0, %0 operands ((3, 1), (3, 1)) results (f32[2, 2] strides (2, 1))",
        "steps",
    ),
    ("matmul opaque[] %0 operands ((3, 1)) results (f32[2, 2] strides (2, 1))", "1 operands"),
    ("matmul opaque[] %0, %1 operands ((3, 1), (3, 1)) results ()", "f32, i64"),
    ("matmul opaque[] %0, %8 operands ((3, 1), (1, 3)) results (f32[2, 3] strides (3, 1))", "not"),
    ("matmul opaque[] %0, %8 operands ((3, 1)) results (f32[2, 2] strides (2, 1))", "1 operands"),
    (f"convolution opaque[] %0, %8 {IMAGE} 1 operands (none, none) results ()", "along 1 axes"),
    ("attention opaque[] %0, %0, %0 operands (none, none, none) results ()", "attends"),
    ("neg opaque[2] %4", "element types"),
    ("broadcast f32[4, 3] %0", "only axes of size 1 grow"),
    ("broadcast f32[2, 3] %3", "number of axes"),
    ("reshape f32[5] %0", "number of elements"),
    ("reshape f64[6] %0", "changes the element type"),
    ("permute f32[2, 3] %0 (1, 0)", "does not follow"),
    ("permute f32[2, 2] %0 (0, 0)", "no order"),
    ("slice f32[2, 3] %0 (1::1, 0::1)", "leaves its operand along axis 0"),
    ("slice f32[2, 3] %0 (0::1, 2::-2)", "leaves its operand along axis 1"),
    ("slice f32[2, 2] %0 (0::1, 0::0)", "steps by 0"),
    ("slice f32[2] %0 (0::1)", "1 ranges for 2 axes"),
    ("pad f32[2, 3] %0, %6 (1, 0)", "less than nothing"),
    ("pad f32[3, 3] %0, %5 (1, 0)", "fills with i64[]"),
    ("concat f32[2, 5] %0, %0 1", "parts have 6"),
    ("concat f32[3, 3] %0, %0 0", "parts have 4"),
    ("concat f32[5, 3] %0, %3 0", "joins f32[3]"),
    ("concat f32[4, 3] 0", "joins nothing"),
    ("concat f32[4, 3] %0, %0 2", "there is no axis 2"),
    ("unfold f32[2, 2, 2] %0 axis 1 size 2 step 2", "leaves its operand along axis 1"),
    ("unfold f32[2, 2, 3] %0 axis 1 size 2 step 1", "last axis"),
    ("unfold f32[2, 2] %0 axis 1 size 2 step 1", "last axis"),
    ("unfold f32[3, 2, 2] %0 axis 1 size 2 step 1", "other axes"),
    ("unfold f32[2, 2, 2] %0 axis 1 size 2 step 0", "do not move on"),
    ("unfold f32[2, 2, 2] %0 axis 2 size 2 step 1", "there is no axis 2"),
    ("unfold f64[2, 2, 2] %0 axis 1 size 2 step 1", "changes the element type"),
    ("gather f32[4, 2] %3 (axis 0)", "longer than what is addressed"),
    ("gather f32[2, 3] %3, %1 (operand 2)", "no index operand 2"),
    ("gather f32[2, 3] %3, %0 (operand 1)", "an index operand is f32"),
    ("gather f32[2, 3] %3, %1 (operand 1, axis 0)", "2 addresses for 1 axes"),
    ("scatter_add f32[9, 2] %0, %1 (operand 1, axis 1)", "longer than what is addressed"),
    ("scatter_add f32[2, 2] %0 (axis 0, axis 0)", "two of the result"),
    ("scatter_add f32[9] %0, %0 (operand 1)", "an index operand is f32"),
    ("scatter_add f64[9, 3] %0, %1 (operand 1, axis 1)", "element type"),
    ("scatter_add bool[9, 3] %2, %1 (operand 1, axis 1)", "element types"),
    ("sum f32[2] %0 (2)", "no sorted axes"),
    ("sum f32[] %0 (1, 0)", "no sorted axes"),
    ("sum f32[3] %0 (1)", "lacks other axes"),
    ("sum bool[2] %2 (1)", "element types"),
    ("any f32[2] %0 (1)", "element types"),
    ("argmin f32[2] %0 (1)", "gives i64"),
    ("philox f64[8] %5", "gives f32"),
    ("philox f32[8] %1", "seed"),
    ("iota i64[4, 2] 2", "there is no axis 2"),
    ("iota f32[4] 0", "an i64"),
    ("constant f32[2] 1", "value is a int"),
    ("constant u8[2] 256", "does not fit"),
    ("size i64[] s9", "no argument gives s9"),
    ("size i32[] 3", "i64 scalar"),
    ("neg f32[-1] %0", "negative size"),
    ("result f32[2] %0 0", "no call"),
    ('input f32[2] "w" position 9 strides (1, 1)', "2 strides for 1 axes"),
    ('input f32[2] "w" position 0 strides (1)', "another input has this position"),
]


def graph_of(line: str) -> Graph:
    builder = Builder()
    graph = parse(f"{INPUTS}%9 = {line}\n", builder)
    copy = parse(f"%0 = {line}\n", builder) if line.startswith("input") else None
    if copy is not None:
        return graph
    nodes = list(builder._interned.values())
    last = nodes[-1]
    if is_call(last.op) and isinstance(last.attr, Call):
        last = next((value for value in builder.call(last.attr, last.inputs) if value), last)
    return Graph(graph.inputs, (Output(last, (1,) * last.type.rank),))


@pytest.mark.parametrize("line", RIGHT)
def test_right_nodes_pass(line):
    verify(graph_of(line))


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_wrong_nodes_are_named(line, message):
    with pytest.raises(InternalError, match="invalid graph") as caught:
        verify(graph_of(line))
    assert message in str(caught.value)


def test_every_op_has_a_row():
    assert set(_ROWS) == set(Op)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("output %0 strides (1)", "1 strides for 2 axes"),
        ("output %7 strides ()", "a call is no value"),
        ("output %0 strides (3, 1) into %6", "not an input"),
        ("output %0 strides (3, 1) into %3", "mutates an input of type f32[3]"),
        ("output %0 strides (3, 1) into %0\noutput %0 strides (3, 1) into %0", "another output"),
        ("effect %0", "has none"),
        ("effect %7", "has none"),
    ],
)
def test_wrong_outputs_are_named(lines, message):
    with pytest.raises(InternalError) as caught:
        verify(parse(f"{INPUTS}{CALL}\n{lines}", Builder()))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (CALL.replace("$0", "$1"), "there is no operand 1"),
        (CALL.replace("($0)", "((1, ($3, 2)))"), "there is no operand 3"),
        (CALL.replace("operands ((3, 1))", "operands ()"), "strides of 0 operands for 1"),
        (CALL.replace("(f32[2] strides (1))", "(f32[2] strides ())"), "0 strides for 1 axes"),
        (CALL.replace("f32[2]", "f32[4]"), "result 0 of the call is f32[4]"),
        (CALL.replace("(f32[2] strides (1))", "()"), "the call has 0 results"),
    ],
)
def test_wrong_calls_are_named(call, message):
    text = f"{INPUTS}{call}\n%8 = result f32[2] %7 0\noutput %8 strides (1)"
    with pytest.raises(InternalError) as caught:
        verify(parse(text, Builder()))
    assert message in str(caught.value)


def test_a_sparse_tensor_has_no_strides():
    call = CALL.replace("f32[2] strides (1)", "opaque[2, 2] strides ()")
    lines = "%8 = result opaque[2, 2] %7 0\noutput %8 strides ()"
    verify(parse(f"{INPUTS}{call}\n{lines}", Builder()))


def test_an_input_the_graph_does_not_list_is_named():
    graph = parse(f"{INPUTS}output %0 strides (3, 1)", Builder())
    with pytest.raises(InternalError, match="not among the graph's inputs"):
        verify(Graph(graph.inputs[1:], graph.outputs))


def test_operand_counts_are_checked():
    x = parse(f"{INPUTS}output %0 strides (3, 1)", Builder()).outputs[0].value
    odd = Node(Op.ADD, (x,), x.type)
    with pytest.raises(InternalError, match="takes 2 operands, has 1"):
        verify(Graph((x,), (Output(odd, (3, 1)),)))


def test_attribute_types_are_checked():
    x = parse(f"{INPUTS}output %0 strides (3, 1)", Builder()).outputs[0].value
    odd = Node(Op.NEG, (x,), x.type, 3)
    with pytest.raises(InternalError, match="attribute of type int"):
        verify(Graph((x,), (Output(odd, (3, 1)),)))


def test_a_cycle_is_found():
    x = parse(f"{INPUTS}output %0 strides (3, 1)", Builder()).outputs[0].value
    first = Node(Op.NEG, (x,), x.type)
    second = Node(Op.ABS, (first,), x.type)
    object.__setattr__(first, "inputs", (second,))
    with pytest.raises(InternalError, match="needs its own value"):
        verify(Graph((x,), (Output(second, (3, 1)),)))
