"""Identities that hold up to rounding: where a sum goes, and where it must stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hemstitch.ir.graph import Graph, InputAttr, Node, Op, toposort
from hemstitch.ir.types import DType
from hemstitch.runtime.interpreter import run
from tests.graphs import single
from tests.lowered import optimize
from tests.rewrites.cases import Values

ROWS, COLUMNS = 7, 11
Make = Callable[["Rows"], Node]


class Rows(Values):
    """Matrices `x`, `y`; a value `r` and a label `t` of each row; ways to make more of them."""

    def __init__(self, columns: int = COLUMNS) -> None:
        super().__init__((ROWS, columns))
        first = len("xyzijukbdhg")
        self.of_rows = self.input("r", first, (ROWS,))
        self.labels = self.input("t", first + 1, (ROWS,), DType.I64)
        self.r, self.t = self.wide(self.of_rows), self.wide(self.labels)

    def wide(self, x: Node) -> Node:
        return self.builder.broadcast(self.builder.reshape(x, (ROWS, 1)), self.shape)

    def one_hot(self, value: Node | float = 1.0) -> Node:
        value = self.like(value, self.x)
        counter = self.builder.iota(self.shape, 1)
        return self.where(self.eq(counter, self.t), value, self.like(0.0, self.x))

    def sum(self, x: Node, axis: int = 1) -> Node:
        return self.builder.reduce(Op.SUM, x, (axis,))

    def softmax(self, x: Node) -> Node:
        weights = self.exp(x)
        return self.mul(weights, self.wide(self.reciprocal(self.sum(weights))))

    def log_softmax(self, x: Node) -> Node:
        return self.sub(x, self.wide(self.log(self.sum(self.exp(x)))))


GOES: dict[str, Make] = {
    "one hot": lambda v: v.sum(v.one_hot()),
    "one hot, of a value": lambda v: v.sum(v.one_hot(v.r)),
    "one hot, other way round": lambda v: v.sum(
        v.where(v.ne(v.t, v.builder.iota(v.shape, 1)), v.like(0.0, v.x), v.r)
    ),
    "scaled": lambda v: v.sum(v.mul(v.one_hot(), v.r)),
    "scaled, other way round": lambda v: v.sum(v.mul(v.r, v.one_hot())),
    "scaled twice": lambda v: v.sum(v.mul(v.mul(v.one_hot(-1.0), v.r), 0.25)),
    "divided": lambda v: v.sum(v.div(v.one_hot(), v.r)),
    "divided by a number": lambda v: v.sum(v.div(v.one_hot(), 7.0)),
    "negated": lambda v: v.sum(v.neg(v.one_hot(v.r))),
    "plus": lambda v: v.sum(v.add(v.one_hot(), v.r)),
    "minus": lambda v: v.sum(v.sub(v.r, v.one_hot())),
    "of a row": lambda v: v.sum(v.r),
    "of a function of a row": lambda v: v.sum(v.exp(v.mul(v.r, v.r))),
    "of a constant": lambda v: v.sum(v.mul(v.r, 3.0)),
    "softmax": lambda v: v.softmax(v.x),
    "softmax of something": lambda v: v.softmax(v.add(v.x, v.y)),
    "softmax, divided": lambda v: v.div(v.exp(v.x), v.wide(v.sum(v.exp(v.x)))),
    "softmax of its logarithm": lambda v: v.exp(v.log_softmax(v.x)),
    "softmax, scaled": lambda v: v.mul(v.softmax(v.x), v.r),
    "softmax, scaled and negated": lambda v: v.neg(v.mul(v.r, v.softmax(v.x))),
    "smoothed": lambda v: v.add(v.mul(v.one_hot(), 0.9), v.mul(v.softmax(v.x), 0.1)),
    "softmax minus one hot": lambda v: v.sub(v.softmax(v.x), v.one_hot()),
    "cross entropy's": lambda v: v.mul(v.sub(v.softmax(v.x), v.one_hot()), v.div(v.r, 64.0)),
    "nested": lambda v: v.sub(v.add(v.one_hot(v.r), v.softmax(v.x)), v.neg(v.mul(v.r, 2.0))),
    "two labels": lambda v: v.add(v.one_hot(), v.mul(v.one_hot(v.r), v.r)),
    "counted along the other axis": lambda v: v.sum(
        v.where(v.eq(v.builder.iota(v.shape, 0), v.t), v.like(1.0, v.x), v.like(0.0, v.x))
    ),
    "divided by a power": lambda v: v.div(v.softmax(v.x), v.mul(v.r, v.r)),
}
STAYS: dict[str, Make] = {
    "any matrix": lambda v: v.sum(v.x),
    "scaled matrix": lambda v: v.sum(v.mul(v.x, v.r)),
    "one term of two": lambda v: v.sum(v.add(v.one_hot(), v.x)),
    "one hot of what varies": lambda v: v.sum(v.one_hot(v.x)),
    "not a one hot": lambda v: v.sum(
        v.where(v.eq(v.builder.iota(v.shape, 1), v.t), v.like(1.0, v.x), v.like(0.5, v.x))
    ),
    "a square": lambda v: v.sum(v.mul(v.softmax(v.x), v.softmax(v.x))),
    "divided the other way": lambda v: v.sum(v.div(v.r, v.one_hot())),
}


def arguments(graph: Graph, v: Rows) -> list[torch.Tensor | int]:
    """Labels are classes but for two: one before the first, one behind the last."""
    found: list[torch.Tensor | int] = [0] * 20
    for node in graph.inputs:
        assert isinstance(node.attr, InputAttr)
        values = torch.rand([int(size) for size in node.shape]) + 0.5  # type: ignore[arg-type]
        if node is v.labels:
            values = torch.randint(v.shape[1], (ROWS,))
            values[1], values[4] = -100, v.shape[1]
        found[node.attr.position] = values
    return found


def sums(graph: Graph) -> int:
    return sum(node.op is Op.SUM for node in toposort(graph.roots))


@pytest.mark.parametrize("name", GOES)
@pytest.mark.parametrize("columns", [COLUMNS, ROWS])
def test_a_known_sum_goes(name: str, columns: int) -> None:
    v = Rows(columns)
    value = GOES[name](v)
    graph = single(v.builder, value if value.op is Op.SUM else v.sum(value))
    found = optimize(graph, v.builder, is_exact=False)
    assert sums(optimize(graph, v.builder)) >= 1 and sums(found) == 0
    given = arguments(graph, v)
    torch.testing.assert_close(run(found, given), run(graph, given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STAYS)
def test_another_sum_stays(name: str) -> None:
    v = Rows()
    graph = single(v.builder, STAYS[name](v))
    found = optimize(graph, v.builder, is_exact=False)
    assert sums(found) == sums(optimize(graph, v.builder))
    given = arguments(graph, v)
    torch.testing.assert_close(
        run(found, given), run(graph, given), rtol=1e-5, atol=1e-6, equal_nan=True
    )


def test_a_sum_over_the_wrong_axis_of_a_square_is_no_softmax() -> None:
    v = Rows(ROWS)
    weights = v.exp(v.x)
    across = v.builder.broadcast(v.builder.reshape(v.sum(weights), (1, ROWS)), v.shape)
    graph = single(v.builder, v.sum(v.div(weights, across)))
    found = optimize(graph, v.builder, is_exact=False)
    given = arguments(graph, v)
    torch.testing.assert_close(run(found, given), run(graph, given))


def test_softmax_of_its_logarithm_has_one_exponential() -> None:
    v = Rows()
    graph = single(v.builder, v.exp(v.log_softmax(v.x)))
    found = optimize(graph, v.builder, is_exact=False)
    operations = [node.op for node in toposort(found.roots)]
    assert operations.count(Op.EXP) == 1 and Op.LOG not in operations
    given = arguments(graph, v)
    torch.testing.assert_close(run(found, given), run(graph, given))


@pytest.mark.parametrize(
    ("before", "multiplications"),
    [
        (lambda v: v.add(v.mul(v.x, v.z), v.mul(v.y, v.z)), 1),
        (lambda v: v.sub(v.mul(v.z, v.x), v.mul(v.y, v.z)), 1),
        (lambda v: v.mul(v.mul(v.x, 3.0), 5.0), 1),
        (lambda v: v.div(v.mul(v.x, 3.0), 7.0), 1),
        (lambda v: v.add(v.mul(v.x, v.x), v.mul(v.y, v.z)), 2),
    ],
)
def test_factors(before: Make, multiplications: int) -> None:
    v = Rows()
    graph = single(v.builder, before(v))
    found = optimize(graph, v.builder, is_exact=False)
    operations = [node.op for node in toposort(found.roots)]
    assert operations.count(Op.MUL) == multiplications and Op.DIV not in operations
    given = arguments(graph, v)
    torch.testing.assert_close(run(found, given), run(graph, given))


def test_a_product_that_others_read_is_not_taken_apart() -> None:
    v = Rows()
    first = v.mul(v.x, v.z)
    graph = single(v.builder, v.add(first, v.mul(v.y, v.z)), first)
    assert optimize(graph, v.builder, is_exact=False) is graph
