"""How the tests of rules are written: values to build with, and the three checks of one rule."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.ir.verifier import verify
from hemstitch.rewrites.engine import Rule, rewrite
from hemstitch.runtime.interpreter import run
from tests.graphs import arguments_for, assert_same, single

SHAPE = (7, 11)


class Values:
    """Inputs of each element type, by a letter, and a short way to write nodes."""

    def __init__(self, shape: tuple[int, ...] = SHAPE) -> None:
        self.builder = Builder()
        self.shape = shape
        types = {
            **dict.fromkeys("xyz", DType.F32),
            **dict.fromkeys("ij", DType.I64),
            "u": DType.U8,
            "k": DType.I32,
            **dict.fromkeys("bd", DType.BOOL),
            "h": DType.BF16,
            "g": DType.F16,
        }
        for position, (letter, dtype) in enumerate(types.items()):
            setattr(self, letter, self.input(letter, position, shape, dtype))

    def input(
        self, name: str, position: int, shape: tuple[int, ...], dtype: DType = DType.F32
    ) -> Node:
        return self.builder.input(name, position, shape, dtype, contiguous_strides(shape))

    def __getattr__(self, name: str) -> Callable[..., Node]:
        """`v.add(x, y)`: an elementwise node; a number stands for a constant of x's type."""
        op = Op[name.upper().rstrip("_")]

        def make(*operands: Node | float) -> Node:
            like = next(operand for operand in reversed(operands) if isinstance(operand, Node))
            return self.builder.make(op, *(self.like(operand, like) for operand in operands))

        return make

    def like(self, operand: Node | float, like: Node) -> Node:
        if isinstance(operand, Node):
            return operand
        return self.builder.constant(operand, like.type.dtype, like.shape)

    def to(self, x: Node, dtype: DType) -> Node:
        return self.builder.make(Op.CAST, x, type=TensorType(x.shape, dtype))


Make = Callable[[Values], Node]


def check_fires(
    rule: Rule, before: Make, after: Make, *, seed: int = 0, zeros: bool = True
) -> None:
    """The rule makes `after` of `before`, and both mean the same for nasty values.

    `zeros`: the sign of a zero counts.
    """
    values = Values()
    graph = single(values.builder, before(values))
    verify(graph)
    found = rewrite(graph, (rule,), values.builder)
    verify(found)
    assert found.outputs[0].value is after(values)
    arguments = arguments_for(graph, Random(seed))
    assert_same(run(found, arguments), run(graph, arguments), zeros=zeros)


def check_stays(rule: Rule, before: Make) -> None:
    values = Values()
    graph = single(values.builder, before(values))
    verify(graph)
    assert rewrite(graph, (rule,), values.builder) is graph
