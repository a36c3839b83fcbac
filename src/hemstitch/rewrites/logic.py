"""Identities of comparisons, bools and WHERE.

A rule's docstring states the rule: `c` and `d` are constants, `i` is an integer, `b` a bool.
"""

from __future__ import annotations

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.types import DType, TypeKind
from hemstitch.rewrites.algebra import constant_value, is_constant
from hemstitch.rewrites.engine import Rule, rule

OPPOSITE = {Op.EQ: Op.NE, Op.NE: Op.EQ, Op.LT: Op.GE, Op.GE: Op.LT, Op.LE: Op.GT, Op.GT: Op.LE}


@rule(Op.NOT)
def double_not(builder: Builder, node: Node) -> Node | None:
    """not not x -> x"""
    (x,) = node.inputs
    return x.inputs[0] if x.op is Op.NOT else None


@rule(Op.NOT)
def not_comparison(builder: Builder, node: Node) -> Node | None:
    """not (x == y) -> x != y    and so for !=; <, <=, >, >= only of integers: a NaN has no order"""
    (x,) = node.inputs
    if x.op not in OPPOSITE:
        return None
    has_order = x.inputs[0].type.dtype.kind is not TypeKind.FLOAT
    if has_order or x.op in (Op.EQ, Op.NE):
        return builder.make(OPPOSITE[x.op], *x.inputs)
    return None


@rule(Op.XOR)
def xor_true(builder: Builder, node: Node) -> Node | None:
    """b xor true -> not b"""
    x, y = node.inputs
    return builder.make(Op.NOT, x) if y.attr is True and y.op is Op.CONSTANT else None


@rule(Op.EQ, Op.NE)
def compared_with_bool(builder: Builder, node: Node) -> Node | None:
    """b == true, b != false -> b,    b == false, b != true -> not b    b may be cast to a number"""
    x, y = node.inputs
    is_cast = x.op is Op.CAST and x.inputs[0].type.dtype is DType.BOOL
    flag = x.inputs[0] if is_cast else x
    value = constant_value(y)
    if flag.type.dtype is not DType.BOOL or value not in (0, 1):
        return None
    return flag if (value == 1) == (node.op is Op.EQ) else builder.make(Op.NOT, flag)


@rule(Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE)
def compared_with_itself(builder: Builder, node: Node) -> Node | None:
    """i == i, i <= i, i >= i -> true,    i != i, x < x, x > x -> false"""
    x, y = node.inputs
    holds = node.op in (Op.EQ, Op.LE, Op.GE)
    if x is not y or (x.type.dtype.is_float and node.op not in (Op.LT, Op.GT)):
        return None
    return builder.constant(holds, DType.BOOL, node.shape)


@rule(Op.ISNAN)
def never_nan(builder: Builder, node: Node) -> Node | None:
    """isnan(i), isnan(b) -> false"""
    is_float = node.inputs[0].type.dtype.is_float
    return None if is_float else builder.constant(False, DType.BOOL, node.shape)


@rule(Op.WHERE)
def known_choice(builder: Builder, node: Node) -> Node | None:
    """where(true, x, y) -> x,    where(false, x, y) -> y,    where(b, x, x) -> x"""
    condition, x, y = node.inputs
    if x is y or is_constant(condition, True):
        return x
    return y if is_constant(condition, False) else None


@rule(Op.WHERE)
def chosen_by_not(builder: Builder, node: Node) -> Node | None:
    """where(not b, x, y) -> where(b, y, x)"""
    condition, x, y = node.inputs
    if condition.op is Op.NOT:
        return builder.make(Op.WHERE, condition.inputs[0], y, x)
    return None


@rule(Op.WHERE)
def chosen_bool(builder: Builder, node: Node) -> Node | None:
    """where(b, true, false) -> b,    where(b, false, true) -> not b"""
    condition, x, y = node.inputs
    if node.type.dtype is not DType.BOOL:
        return None
    if is_constant(x, True) and is_constant(y, False):
        return condition
    if is_constant(x, False) and is_constant(y, True):
        return builder.make(Op.NOT, condition)
    return None


@rule(Op.WHERE)
def chosen_twice(builder: Builder, node: Node) -> Node | None:
    """where(b, where(b, x, y), z), where(b, x, where(b, y, z)) -> where(b, x, z)"""
    condition, x, y = node.inputs
    if x.op is Op.WHERE and x.inputs[0] is condition:
        return builder.make(Op.WHERE, condition, x.inputs[1], y)
    if y.op is Op.WHERE and y.inputs[0] is condition:
        return builder.make(Op.WHERE, condition, x, y.inputs[2])
    return None


LOGIC: tuple[Rule, ...] = (
    double_not,
    not_comparison,
    xor_true,
    compared_with_bool,
    compared_with_itself,
    never_nan,
    known_choice,
    chosen_by_not,
    chosen_bool,
    chosen_twice,
)
