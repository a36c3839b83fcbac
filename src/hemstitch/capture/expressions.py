"""Tensor arithmetic on IR nodes: an `Expr` broadcasts and promotes as torch does, so that the rules
for ATen ops read as formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce as fold
from typing import Union

import torch

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim, SymbolicDim, product
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import Node, Op, Range
from hemstitch.ir.types import DType, TypeKind
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES, from_torch

Number = Union[bool, int, float, SymbolicDim]
Term = Union["Expr", bool, int, float, SymbolicDim]

_COMPARISONS = frozenset((Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE))
_ON_BOOL = {
    Op.ADD: Op.OR,
    Op.MUL: Op.AND,
    Op.MAXIMUM: Op.OR,
    Op.MINIMUM: Op.AND,
    Op.NE: Op.XOR,
    Op.MAX: Op.ANY,
    Op.MIN: Op.ALL,
}
_KIND_ORDER = {TypeKind.BOOL: 0, TypeKind.INT: 1, TypeKind.FLOAT: 2, TypeKind.OPAQUE: 3}


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """A node with arithmetic, done in the compute type: a half type becomes f32 on first use.

    `is_number`: stands for a Python number, which takes part in promotion as torch's numbers do.
    """

    builder: Builder
    node: Node
    is_number: bool = False

    @property
    def dtype(self) -> DType:
        return self.node.type.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.node.type.shape

    @property
    def rank(self) -> int:
        return self.node.type.rank

    def cast(self, dtype: DType) -> Expr:
        return self.of(self.builder.cast(self.node, dtype))

    def of(self, node: Node) -> Expr:
        return Expr(self.builder, node)

    def broadcast(self, shape: Sequence[Dim]) -> Expr:
        return self.of(_broadcast(self.builder, self.node, tuple(shape)))

    def reshape(self, shape: Sequence[Dim]) -> Expr:
        return self.of(_reshape(self.builder, self.node, tuple(shape)))

    def permute(self, order: Sequence[int]) -> Expr:
        return self.of(self.builder.permute(self.node, order))

    def slice(self, axis: int, start: Dim, length: Dim, step: int = 1) -> Expr:
        """Elements start, start + step, ... along one axis."""
        ranges = [Range(start, step) if a == axis else Range(0) for a in range(self.rank)]
        shape = [length if a == axis else size for a, size in enumerate(self.shape)]
        return self.of(self.builder.slice(self.node, ranges, shape))

    def unfold(self, axis: int, size: int, step: int) -> Expr:
        return self.of(self.builder.unfold(self.node, axis, size, step))

    def reduce(self, op: Op, axes: Sequence[int], keep: bool = False) -> Expr:
        if self.dtype is DType.BOOL:
            op = _ON_BOOL.get(op, op)
        return self.of(self.builder.reduce(op, self.node, tuple(axes), keep))

    def scan(self, op: Op, axis: int) -> Expr:
        return self.of(self.builder.scan(op, self.node, axis))

    def __neg__(self) -> Expr:
        return apply(Op.NEG, self)

    def __invert__(self) -> Expr:
        return apply(Op.NOT, self)

    def __add__(self, other: Term) -> Expr:
        return apply(Op.ADD, self, other)

    def __radd__(self, other: Term) -> Expr:
        return apply(Op.ADD, other, self)

    def __sub__(self, other: Term) -> Expr:
        return apply(Op.SUB, self, other)

    def __rsub__(self, other: Term) -> Expr:
        return apply(Op.SUB, other, self)

    def __mul__(self, other: Term) -> Expr:
        return apply(Op.MUL, self, other)

    def __rmul__(self, other: Term) -> Expr:
        return apply(Op.MUL, other, self)

    def __truediv__(self, other: Term) -> Expr:
        return apply(Op.DIV, self, other)

    def __rtruediv__(self, other: Term) -> Expr:
        return apply(Op.DIV, other, self)

    def __lt__(self, other: Term) -> Expr:
        return apply(Op.LT, self, other)

    def __le__(self, other: Term) -> Expr:
        return apply(Op.LE, self, other)

    def __gt__(self, other: Term) -> Expr:
        return apply(Op.GT, self, other)

    def __ge__(self, other: Term) -> Expr:
        return apply(Op.GE, self, other)

    def __and__(self, other: Term) -> Expr:
        return apply(Op.AND, self, other)

    def __or__(self, other: Term) -> Expr:
        return apply(Op.OR, self, other)


def apply(op: Op, *terms: Term) -> Expr:
    """An elementwise op on operands brought to one compute type and one shape."""
    values = [term for term in terms if isinstance(term, Expr)]
    builder = values[0].builder
    dtype = promote(*terms).compute
    if dtype is DType.BOOL:
        op = _ON_BOOL.get(op, op)
        if op in _COMPARISONS:
            dtype = DType.U8
    shape = broadcast_shape(*(value.shape for value in values))
    operands = (_operand(builder, term, dtype, shape) for term in terms)
    return Expr(builder, builder.make(op, *operands))


def where(condition: Expr, x: Term, y: Term) -> Expr:
    builder = condition.builder
    dtype = promote(x, y).compute
    values = [term for term in (condition, x, y) if isinstance(term, Expr)]
    shape = broadcast_shape(*(value.shape for value in values))
    mask = _operand(builder, condition, DType.BOOL, shape)
    operands = (_operand(builder, term, dtype, shape) for term in (x, y))
    return Expr(builder, builder.make(Op.WHERE, mask, *operands))


def check(condition: Expr, x: Expr, failure: Failure) -> Expr:
    """`x`; the call fails where `condition` does not hold. Both are brought to one shape."""
    shape = broadcast_shape(condition.shape, x.shape)
    operands = (condition.broadcast(shape).node, x.broadcast(shape).node)
    return x.of(x.builder.check(*operands, failure))


def promote(*terms: Term) -> DType:
    """torch.result_type: tensors with axes before those without before numbers."""
    levels: list[list[DType]] = [[], [], []]
    for term in terms:
        levels[_level(term)].append(_term_dtype(term))
    present = [fold(_promote_types, level) for level in levels if level]
    return fold(_combine, present)


def floating(*values: Expr) -> DType:
    """The compute type of an op that is defined on floats only."""
    dtype = promote(*values)
    return dtype.compute if dtype.is_float else from_torch(torch.get_default_dtype())


def broadcast_shape(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Sizes that look different were equal when traced: the first that is not 1 is taken."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded))


def constant(builder: Builder, value: Number, dtype: DType, shape: Sequence[Dim] = ()) -> Expr:
    if isinstance(value, SymbolicDim):
        return Expr(builder, builder.cast(builder.size(value), dtype)).broadcast(shape)
    return Expr(builder, builder.constant(value, dtype, shape))


def _level(term: Term) -> int:
    if not isinstance(term, Expr) or term.is_number:
        return 2
    return 0 if term.rank else 1


def _term_dtype(term: Term) -> DType:
    if isinstance(term, Expr) and not (term.is_number and term.dtype.is_float):
        return term.dtype
    if isinstance(term, (Expr, float)):
        return from_torch(torch.get_default_dtype())
    return DType.BOOL if isinstance(term, bool) else DType.I64


def _promote_types(a: DType, b: DType) -> DType:
    return a if a is b else from_torch(torch.promote_types(TORCH_DTYPES[a], TORCH_DTYPES[b]))


def _combine(higher: DType, lower: DType) -> DType:
    if _KIND_ORDER[higher.kind] >= _KIND_ORDER[lower.kind]:
        return higher
    return _promote_types(higher, lower)


def _operand(builder: Builder, term: Term, dtype: DType, shape: tuple[Dim, ...]) -> Node:
    if isinstance(term, Expr):
        return _broadcast(builder, builder.cast(term.node, dtype), shape)
    return constant(builder, term, dtype, shape).node


def _broadcast(builder: Builder, node: Node, shape: tuple[Dim, ...]) -> Node:
    if node.op is Op.CONSTANT:
        return builder.constant(node.attr, node.type.dtype, shape)  # type: ignore[arg-type]
    here = (1,) * (len(shape) - node.type.rank) + node.shape
    equal = tuple(1 if size == 1 else wanted for size, wanted in zip(here, shape))
    return builder.broadcast(assume(builder, builder.reshape(node, here), equal), shape)


def _reshape(builder: Builder, node: Node, shape: tuple[Dim, ...]) -> Node:
    if node.op is Op.CONSTANT:
        return builder.constant(node.attr, node.type.dtype, shape)  # type: ignore[arg-type]
    if product(node.shape) == product(shape):
        return builder.reshape(node, shape)
    flat = assume(builder, builder.reshape(node, (product(node.shape),)), (product(shape),))
    return builder.reshape(flat, shape)


def assume(builder: Builder, node: Node, shape: tuple[Dim, ...]) -> Node:
    """The same tensor under sizes that are equal though their formulas differ."""
    return builder.slice(node, [Range(0)] * len(shape), shape)


def _unary(op: Op) -> Callable[[Expr], Expr]:
    return lambda x: apply(op, x)


exp, expm1, log, log1p = map(_unary, (Op.EXP, Op.EXPM1, Op.LOG, Op.LOG1P))
sqrt, rsqrt, reciprocal = map(_unary, (Op.SQRT, Op.RSQRT, Op.RECIPROCAL))
tanh, sigmoid, erf = map(_unary, (Op.TANH, Op.SIGMOID, Op.ERF))
absolute, sign, trunc, isnan = map(_unary, (Op.ABS, Op.SIGN, Op.TRUNC, Op.ISNAN))


def maximum(x: Term, y: Term) -> Expr:
    return apply(Op.MAXIMUM, x, y)


def minimum(x: Term, y: Term) -> Expr:
    return apply(Op.MINIMUM, x, y)


def multiply_add(x: Term, y: Term, z: Term) -> Expr:
    """x * y + z; of floats rounded once."""
    if promote(x, y, z).is_float:
        return apply(Op.FMA, x, y, z)
    return apply(Op.ADD, apply(Op.MUL, x, y), z)


def equal(x: Term, y: Term) -> Expr:
    return ~apply(Op.NE, x, y) if promote(x, y) is DType.BOOL else apply(Op.EQ, x, y)
