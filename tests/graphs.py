"""Small random graphs over all kinds of ops, arguments for them, and what it means to be equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import torch

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim, evaluate, symbol
from hemstitch.ir.graph import Address, Graph, Node, Op, Output, Range
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES

SYMBOLS = ("s0", "s1")
DTYPES = (DType.F32, DType.F32, DType.BF16, DType.I64, DType.U8, DType.BOOL)
NASTY = (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, float("inf"), float("-inf"), float("nan"))
# Exact in any order and on any path of a library, so that results compare bit for bit.
FLOAT_UNARY = (Op.NEG, Op.ABS, Op.SIGN, Op.SQRT, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND)
FLOAT_BINARY = (Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM, Op.MINIMUM)
INT_BINARY = (*FLOAT_BINARY, Op.AND, Op.OR, Op.XOR, Op.FLOORDIV)
BOOL_BINARY = (Op.AND, Op.OR, Op.XOR)
COMPARISONS = (Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE)


def single(builder: Builder, *values: Node) -> Graph:
    """The graph of `values`, over those inputs that they read or that the builder knows."""
    inputs: dict[Node, None] = {}
    stack = list(values)
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
            if node.op is Op.INPUT:
                inputs[node] = None
    ordered = sorted(inputs, key=lambda node: node.attr.position)
    outputs = tuple(Output(value, contiguous_strides(value.shape)) for value in values)
    return Graph(tuple(ordered), outputs)


def arguments_for(
    graph: Graph, random: Random, sizes: Mapping[str, int] | None = None
) -> list[torch.Tensor | int]:
    """A value for each position, nasty ones among them; inputs not in the graph get a 0."""
    positions = max((node.attr.position for node in graph.inputs), default=-1)
    found: list[torch.Tensor | int] = [0] * (positions + 1)
    for node in graph.inputs:
        shape = [evaluate(size, sizes or {}) for size in node.shape]
        count = 1
        for size in shape:
            count *= size
        found[node.attr.position] = _elements(node.type.dtype, count, random).reshape(shape)
    return found


def _elements(dtype: DType, count: int, random: Random) -> torch.Tensor:
    if dtype.is_float:
        values: list[float] = [random.choice(NASTY) for _ in range(count)]
        return torch.tensor(values, dtype=torch.float64).to(TORCH_DTYPES[dtype])
    values = [random.randint(-3, 5) for _ in range(count)]
    return torch.tensor(values, dtype=torch.int64).to(TORCH_DTYPES[dtype])


def assert_same(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], *, zeros: bool = True
) -> None:
    """Bit for bit, save that a NaN is a NaN; with `zeros` the sign of a zero counts."""
    for new, old in zip(found, expected, strict=True):
        assert new.dtype == old.dtype and new.shape == old.shape
        assert torch.equal(new.isnan(), old.isnan()), (new, old)
        assert torch.equal(new.nan_to_num(), old.nan_to_num()), (new, old)
        if zeros and new.dtype.is_floating_point:
            is_number = ~new.isnan()
            assert torch.equal(new.signbit() & is_number, old.signbit() & is_number), (new, old)


class RandomGraph:
    """Grows a graph node by node; `random` may come from hypothesis, so that failures shrink."""

    def __init__(self, random: Random, builder: Builder, steps: int = 14) -> None:
        self.random, self.builder = random, builder
        shapes = [self._shape() for _ in range(2)]
        self.pool = [
            builder.input(f"x{k}", k, shape, dtype, contiguous_strides(shape))
            for k, (shape, dtype) in enumerate((s, d) for s in shapes for d in DTYPES[1:])
        ]
        carriers = [
            builder.input(name, len(self.pool) + k, (symbol(name),), DType.F32, (1,))
            for k, name in enumerate(SYMBOLS)
        ]
        self.pool += carriers
        inputs = tuple(self.pool)
        for _ in range(steps):
            node = random.choice(STEPS)(self, random.choice(self.pool))
            if node is not None:
                self.pool.append(node)
        values = [*self.pool[-3:], random.choice(self.pool)]
        self.graph = Graph(
            inputs,
            tuple(Output(value, contiguous_strides(value.shape)) for value in values),
            symbols={
                node.shape[0].terms[0][0][0].name: (node.attr.position, 0) for node in carriers
            },
        )

    def _shape(self) -> tuple[Dim, ...]:
        sizes: tuple[Dim, ...] = (1, 1, 2, 3, symbol("s0"), symbol("s1"))
        return tuple(self.random.choice(sizes) for _ in range(self.random.randint(0, 3)))

    # Each step: a new node from one of the pool, or None where it does not fit.

    def constant(self, x: Node) -> Node:
        values: tuple[int, ...] = (0, 1, -1, 2)
        return self.builder.constant(self.random.choice(values), x.type.dtype, x.shape)

    def partner(self, x: Node) -> Node:
        """Something of x's type: a constant, or a node of the pool broadcast to x's shape."""
        fitting = [
            node
            for node in self.pool
            if node.type.dtype is x.type.dtype
            and node.type.rank <= x.type.rank
            and all(a in (1, b) for a, b in zip(node.shape[::-1], x.shape[::-1]))
        ]
        if not fitting or self.random.random() < 0.3:
            return self.constant(x)
        return self.builder.broadcast(self.random.choice(fitting), x.shape)

    def unary(self, x: Node) -> Node | None:
        if x.type.dtype.is_float:
            return self.builder.make(self.random.choice(FLOAT_UNARY), x)
        if x.type.dtype is DType.BOOL:
            return self.builder.make(Op.NOT, x)
        return self.builder.make(self.random.choice((Op.NEG, Op.ABS, Op.NOT)), x)

    def binary(self, x: Node) -> Node:
        ops = BOOL_BINARY if x.type.dtype is DType.BOOL else INT_BINARY
        ops = FLOAT_BINARY if x.type.dtype.is_float else ops
        pair = [x, self.partner(x)]
        self.random.shuffle(pair)
        return self.builder.make(self.random.choice(ops), *pair)

    def compare(self, x: Node) -> Node:
        return self.builder.make(self.random.choice(COMPARISONS), x, self.partner(x))

    def where(self, x: Node) -> Node:
        flag = self.partner(self.builder.constant(True, DType.BOOL, x.shape))
        return self.builder.make(Op.WHERE, flag, x, self.partner(x))

    def cast(self, x: Node) -> Node | None:
        target = self.random.choice((*DTYPES, DType.F64, DType.I32))
        if x.type.dtype.is_float and target in (DType.I64, DType.I32, DType.U8):
            return None  # what the machine makes of a NaN is left open
        return self.builder.cast(x, target)

    def broadcast(self, x: Node) -> Node:
        grown = [self.random.choice((1, 2, symbol("s0"))) if s == 1 else s for s in x.shape]
        return self.builder.broadcast(x, [2] * (x.type.rank < 3) + grown)

    def reshape(self, x: Node) -> Node:
        kept = [size for size in x.shape if size != 1]
        forms = [kept, [x.type.size], [*kept, 1], [1, *kept]]
        return self.builder.reshape(x, self.random.choice(forms))

    def permute(self, x: Node) -> Node:
        order = list(range(x.type.rank))
        self.random.shuffle(order)
        return self.builder.permute(x, order)

    def slice(self, x: Node) -> Node:
        cuts = [self.random.choice(_CUTS)(size) for size in x.shape]
        return self.builder.slice(x, [part for part, _ in cuts], [length for _, length in cuts])

    def pad(self, x: Node) -> Node:
        low = [self.random.randint(0, 1) for _ in x.shape]
        shape = [size + before + self.random.randint(0, 1) for size, before in zip(x.shape, low)]
        fill = self.builder.constant(self.random.randint(0, 1), x.type.dtype)
        return self.builder.pad(x, low, shape, fill)

    def concat(self, x: Node) -> Node | None:
        if x.type.rank == 0:
            return None
        return self.builder.concat([x, self.partner(x)], self.random.randrange(x.type.rank))

    def reduce(self, x: Node) -> Node | None:
        axes = [axis for axis in range(x.type.rank) if self.random.random() < 0.5]
        ops = [Op.ANY, Op.ALL] if x.type.dtype is DType.BOOL else [Op.MAX, Op.MIN, Op.ARGMAX]
        ops += [] if x.type.dtype.is_float or x.type.dtype is DType.BOOL else [Op.SUM, Op.PROD]
        if any(x.shape[axis] == 0 for axis in axes):
            return None
        return self.builder.reduce(self.random.choice(ops), x, axes, self.random.random() < 0.5)

    def iota(self, x: Node) -> Node | None:
        if x.type.rank == 0:
            return None
        return self.builder.iota(x.shape, self.random.randrange(x.type.rank))

    def gather(self, x: Node) -> Node | None:
        sources = [node for node in self.pool if node.type.rank == 1 and node.shape != (0,)]
        if x.type.dtype is not DType.I64 or not sources:
            return None
        source = self.random.choice(sources)
        length = self.builder.broadcast(self.builder.size(source.shape[0]), x.shape)
        index = self.builder.make(Op.REMAINDER, x, length)
        return self.builder.gather(source, [index], [Address(operand=1)], x.shape)


def _whole(size: Dim) -> tuple[Range, Dim]:
    return Range(0), size


_CUTS: tuple[Callable[[Dim], tuple[Range, Dim]], ...] = (
    _whole,
    _whole,
    lambda size: (Range(size - 1, -1), size) if size != 0 else _whole(size),
    lambda size: (Range(1), size - 1) if size in (2, 3, *map(symbol, SYMBOLS)) else _whole(size),
    lambda size: (Range(0), 1) if size != 0 else _whole(size),
    lambda size: (Range(0, 2), 2) if isinstance(size, int) and size > 2 else _whole(size),
)
STEPS: tuple[Callable[[RandomGraph, Node], Node | None], ...] = (
    RandomGraph.constant,
    RandomGraph.unary,
    RandomGraph.binary,
    RandomGraph.binary,
    RandomGraph.compare,
    RandomGraph.where,
    RandomGraph.cast,
    RandomGraph.broadcast,
    RandomGraph.reshape,
    RandomGraph.permute,
    RandomGraph.slice,
    RandomGraph.slice,
    RandomGraph.pad,
    RandomGraph.concat,
    RandomGraph.reduce,
    RandomGraph.iota,
    RandomGraph.gather,
)
