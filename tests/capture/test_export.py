"""Values of the graph IR that rewrites of the joint graph make, as ATen operations: what these give
is what the IR means."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from hemstitch.capture.export import ELEMENTWISE, FORMS, Exporter
from hemstitch.errors import UnsupportedError
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Matmul, StructuredCall
from hemstitch.ir.graph import Address, Graph, Node, Op, Output, Range
from hemstitch.ir.ops import OPS, ResultType
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.runtime.interpreter import run as interpret
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES

SHAPE = (3, 4, 5)
LOGICAL = (Op.AND, Op.OR, Op.XOR, Op.NOT)


def exported(node: Node, inputs: Sequence[Node], arguments: Sequence[Tensor]) -> GraphModule:
    """A traced graph that gives `node`."""
    gm = make_fx(lambda *tensors: tensors[:1], tracing_mode="fake")(*arguments)
    exporter = Exporter()
    placeholders = gm.graph.find_nodes(op="placeholder")
    exporter.traced.update(zip(inputs, placeholders))
    output = gm.graph.output_node()
    output.meta.setdefault("val", placeholders[0].meta["val"])
    output.args = ([exporter.traced_form(node, output)],)
    gm.graph.lint()
    gm.recompile()
    return gm


def check(node: Node, inputs: Sequence[Node], arguments: Sequence[Tensor]) -> None:
    [expected] = interpret(Graph(tuple(inputs), (Output(node, ()),)), arguments)
    [result] = exported(node, inputs, arguments)(*arguments)
    assert result.dtype == TORCH_DTYPES[node.type.dtype]
    torch.testing.assert_close(result, expected, equal_nan=True)


def operands(builder: Builder, count: int, dtype: DType) -> tuple[list[Node], list[Tensor]]:
    values = torch.rand(count, *SHAPE) + 0.1
    if dtype is DType.BOOL:
        tensors = [*(values > 0.5)]
    else:
        tensors = [*((values * 9).to(TORCH_DTYPES[dtype]) if not dtype.is_float else values)]
    strides = contiguous_strides(SHAPE)
    nodes = [builder.input(f"x{n}", n, SHAPE, dtype, strides) for n in range(count)]
    return nodes, tensors


@pytest.mark.parametrize("op", [*ELEMENTWISE, Op.NOT, Op.FMA], ids=lambda op: op.value)
def test_elementwise_operations(op: Op) -> None:
    builder = Builder()
    arity = OPS[op].arity
    assert arity is not None
    dtypes = [DType.BOOL, DType.I64] if op in LOGICAL else [DType.F32]
    for dtype in dtypes:
        nodes, arguments = operands(builder, arity, dtype)
        if op is Op.WHERE:
            nodes[0] = builder.input("condition", 0, SHAPE, DType.BOOL, contiguous_strides(SHAPE))
            arguments[0] = arguments[0] > 0.5
        given = OPS[op].result is ResultType.GIVEN
        node = builder.make(op, *nodes, type=nodes[-1].type if given else None)
        check(node, nodes, arguments)


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.BOOL], ids=str)
def test_reductions(dtype: DType) -> None:
    builder = Builder()
    nodes, arguments = operands(builder, 1, dtype)
    kinds = (Op.ANY, Op.ALL) if dtype is DType.BOOL else (Op.SUM, Op.MAX, Op.MIN)
    for op in kinds:
        check(builder.reduce(op, nodes[0], (0, 2)), nodes, arguments)


def test_views_and_sources() -> None:
    builder = Builder()
    nodes, arguments = operands(builder, 1, DType.F32)
    [x] = nodes
    one = builder.constant(1.5, DType.F32)
    part = builder.slice(x, [Range(1), Range(0, 2), Range(2)], (2, 2, 3))
    row = builder.slice(x, [Range(2), Range(0), Range(0)], (1, 4, 5))
    for node in (
        builder.reshape(x, (12, 5)),
        builder.permute(x, (2, 0, 1)),
        builder.broadcast(builder.reshape(row, (4, 5)), (2, 4, 5)),
        part,
        builder.pad(part, (0, 1, 2), (4, 3, 6), one),
        builder.concat([x, row], 0),
        builder.cast(x, DType.F64),
        builder.cast(builder.iota(SHAPE, 1), DType.F32),
        builder.constant(2, DType.I32, (2, 3)),
    ):
        check(node, nodes, arguments)


def test_a_gather_by_indices() -> None:
    builder = Builder()
    source = builder.input("source", 0, (7, 4), DType.F32, (4, 1))
    index = builder.input("index", 1, (3, 2), DType.I64, (2, 1))
    column = builder.input("column", 2, (3, 2), DType.I64, (2, 1))
    type_ = TensorType((3, 2), DType.F32)
    addresses = (Address(operand=1), Address(operand=2))
    node = builder.make(Op.GATHER, source, index, column, attr=addresses, type=type_)
    arguments = [torch.randn(7, 4), torch.randint(7, (3, 2)), torch.randint(4, (3, 2))]
    check(node, [source, index, column], arguments)


def test_a_structured_call() -> None:
    builder = Builder()
    left = builder.input("left", 0, (6, 4), DType.F32, (4, 1))
    right = builder.input("right", 1, (5, 4), DType.F32, (4, 1))
    result = (TensorType((6, 5), DType.F32), (5, 1))
    call = StructuredCall(Matmul(), ((4, 1), (1, 4)), (result,))
    [node] = builder.call(call, (left, builder.permute(right, (1, 0))))
    assert node is not None
    check(node, [left, right], [torch.randn(6, 4), torch.randn(5, 4)])


def test_every_form_is_of_an_operation_and_others_say_so() -> None:
    builder = Builder()
    nodes, arguments = operands(builder, 1, DType.F32)
    assert Op.CUMSUM not in FORMS
    with pytest.raises(UnsupportedError, match="cumsum is not exported"):
        exported(builder.scan(Op.CUMSUM, nodes[0], 1), nodes, arguments)
