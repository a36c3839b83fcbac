"""Each identity of arithmetic: fires, keeps the meaning, stays away where it would change a bit."""

from __future__ import annotations

from random import Random

import pytest
import torch

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.rewrites import algebra
from hemstitch.rewrites.algebra import ALGEBRA, WIDER
from hemstitch.rewrites.engine import rewrite
from hemstitch.runtime.interpreter import run
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES
from tests.graphs import arguments_for, single
from tests.rewrites.cases import Values, check_fires, check_stays

INF = float("inf")


def chosen(v, x):
    """Of values of x and 0, rounded to BF16."""
    found = v.maximum(x, v.where(v.b, x, 0))
    return v.to(v.to(found, DType.BF16), DType.F32)


def truth(v):
    return v.to(v.b, DType.I64)


FIRES = [
    ("constant_last", lambda v: v.add(2, v.x), lambda v: v.add(v.x, 2)),
    ("constant_last", lambda v: v.eq(2, v.i), lambda v: v.eq(v.i, 2)),
    ("mirrored_comparison", lambda v: v.lt(2, v.x), lambda v: v.gt(v.x, 2)),
    ("mirrored_comparison", lambda v: v.ge(2, v.x), lambda v: v.le(v.x, 2)),
    ("neutral_element", lambda v: v.mul(v.x, 1), lambda v: v.x),
    ("neutral_element", lambda v: v.add(v.x, -0.0), lambda v: v.x),
    ("neutral_element", lambda v: v.sub(v.h, 0.0), lambda v: v.h),
    ("neutral_element", lambda v: v.add(v.i, 0), lambda v: v.i),
    ("neutral_element", lambda v: v.div(v.x, 1), lambda v: v.x),
    ("neutral_element", lambda v: v.pow(v.x, 1), lambda v: v.x),
    ("neutral_element", lambda v: v.and_(v.b, True), lambda v: v.b),
    ("neutral_element", lambda v: v.and_(v.u, 255), lambda v: v.u),
    ("neutral_element", lambda v: v.or_(v.b, False), lambda v: v.b),
    ("neutral_element", lambda v: v.maximum(v.x, -INF), lambda v: v.x),
    ("neutral_element", lambda v: v.minimum(v.x, INF), lambda v: v.x),
    ("neutral_element", lambda v: v.shl(v.i, 0), lambda v: v.i),
    ("absorbing_element", lambda v: v.mul(v.i, 0), lambda v: v.like(0, v.i)),
    ("absorbing_element", lambda v: v.and_(v.b, False), lambda v: v.like(False, v.b)),
    ("absorbing_element", lambda v: v.or_(v.b, True), lambda v: v.like(True, v.b)),
    ("absorbing_element", lambda v: v.or_(v.u, 255), lambda v: v.like(255, v.u)),
    ("idempotent", lambda v: v.maximum(v.x, v.x), lambda v: v.x),
    ("idempotent", lambda v: v.and_(v.i, v.i), lambda v: v.i),
    ("cancels", lambda v: v.sub(v.i, v.i), lambda v: v.like(0, v.i)),
    ("cancels", lambda v: v.xor(v.b, v.b), lambda v: v.like(False, v.b)),
    (
        "constants_together",
        lambda v: v.add(v.add(v.i, 2), 3),
        lambda v: v.add(v.i, v.add(v.like(2, v.i), 3)),
    ),
    (
        "constants_together",
        lambda v: v.maximum(v.maximum(v.x, 1), 2),
        lambda v: v.maximum(v.x, v.maximum(v.like(1, v.x), 2)),
    ),
    ("zero_for_bool", lambda v: v.truncdiv(truth(v), -2), lambda v: v.like(0, v.i)),
    ("zero_for_bool", lambda v: v.floordiv(truth(v), 3), lambda v: v.like(0, v.i)),
    ("zero_for_bool", lambda v: v.shr(truth(v), 1), lambda v: v.like(0, v.i)),
    ("zero_for_bool", lambda v: v.and_(truth(v), 6), lambda v: v.like(0, v.i)),
    ("double_negation", lambda v: v.neg(v.neg(v.x)), lambda v: v.x),
    ("absolute_of_signed", lambda v: v.abs(v.neg(v.x)), lambda v: v.abs(v.x)),
    ("absolute_of_signed", lambda v: v.abs(v.abs(v.i)), lambda v: v.abs(v.i)),
    ("plus_negative", lambda v: v.add(v.x, v.neg(v.y)), lambda v: v.sub(v.x, v.y)),
    ("plus_negative", lambda v: v.add(v.neg(v.x), v.y), lambda v: v.sub(v.y, v.x)),
    ("minus_negative", lambda v: v.sub(v.x, v.neg(v.y)), lambda v: v.add(v.x, v.y)),
    ("minus_integer", lambda v: v.sub(v.i, 3), lambda v: v.add(v.i, v.neg(v.like(3, v.i)))),
    ("minus_integer", lambda v: v.sub(v.u, 3), lambda v: v.add(v.u, v.neg(v.like(3, v.u)))),
    ("signs_cancel", lambda v: v.mul(v.neg(v.x), v.neg(v.y)), lambda v: v.mul(v.x, v.y)),
    ("signs_cancel", lambda v: v.div(v.neg(v.x), v.neg(v.y)), lambda v: v.div(v.x, v.y)),
    ("times_minus_one", lambda v: v.mul(v.x, -1), lambda v: v.neg(v.x)),
    ("small_power", lambda v: v.pow(v.x, 2), lambda v: v.mul(v.x, v.x)),
    ("small_power", lambda v: v.pow(v.x, 0), lambda v: v.like(1, v.x)),
    ("small_power", lambda v: v.pow(v.x, -1), lambda v: v.reciprocal(v.x)),
    ("small_power", lambda v: v.pow(v.i, 3), lambda v: v.mul(v.mul(v.i, v.i), v.i)),
    ("divided_by_power_of_two", lambda v: v.div(v.x, 8), lambda v: v.mul(v.x, 0.125)),
    ("divided_by_power_of_two", lambda v: v.div(v.g, -0.5), lambda v: v.mul(v.g, -2)),
    ("one_divided", lambda v: v.div(1, v.x), lambda v: v.reciprocal(v.x)),
    ("rounded_twice", lambda v: v.floor(v.ceil(v.x)), lambda v: v.ceil(v.x)),
    ("cast_to_same", lambda v: v.to(v.x, DType.F32), lambda v: v.x),
    ("cast_chain", lambda v: v.to(v.to(v.h, DType.F32), DType.BF16), lambda v: v.h),
    ("cast_chain", lambda v: v.to(v.to(v.i, DType.I32), DType.I16), lambda v: v.to(v.i, DType.I16)),
    ("cast_chain", lambda v: v.to(v.to(v.b, DType.F32), DType.I64), lambda v: v.to(v.b, DType.I64)),
    (
        "cast_of_chosen",
        lambda v: chosen(v, v.to(v.h, DType.F32)),
        lambda v: v.maximum(v.to(v.h, DType.F32), v.where(v.b, v.to(v.h, DType.F32), 0)),
    ),
    (
        "reduced_twice",
        lambda v: v.builder.reduce(Op.MAX, v.builder.reduce(Op.MAX, v.x, [0]), [0]),
        lambda v: v.builder.reduce(Op.MAX, v.x, [0, 1]),
    ),
    (
        "reduced_twice",
        lambda v: v.builder.reduce(Op.SUM, v.builder.reduce(Op.SUM, v.i, [1]), [0]),
        lambda v: v.builder.reduce(Op.SUM, v.i, [0, 1]),
    ),
]
STAYS = [
    ("constant_last", lambda v: v.sub(2, v.x)),
    ("constant_last", lambda v: v.add(v.x, 2)),
    ("mirrored_comparison", lambda v: v.lt(v.x, 2)),
    ("neutral_element", lambda v: v.add(v.x, 0.0)),
    ("neutral_element", lambda v: v.sub(v.x, -0.0)),
    ("neutral_element", lambda v: v.floordiv(v.x, 1)),
    ("neutral_element", lambda v: v.mul(v.x, -1)),
    ("neutral_element", lambda v: v.maximum(v.x, 0)),
    ("neutral_element", lambda v: v.add(v.x, float("nan"))),
    ("absorbing_element", lambda v: v.mul(v.x, 0)),
    ("absorbing_element", lambda v: v.or_(v.i, 1)),
    ("idempotent", lambda v: v.maximum(v.x, v.y)),
    ("cancels", lambda v: v.sub(v.x, v.x)),
    ("constants_together", lambda v: v.add(v.add(v.x, 2), 3)),
    ("constants_together", lambda v: v.maximum(v.maximum(v.x, 0.0), -0.0)),
    ("double_negation", lambda v: v.neg(v.abs(v.x))),
    ("absolute_of_signed", lambda v: v.abs(v.floor(v.x))),
    ("absolute_of_signed", lambda v: v.abs(v.neg(v.u))),
    ("plus_negative", lambda v: v.add(v.x, v.y)),
    ("minus_negative", lambda v: v.sub(v.neg(v.x), v.y)),
    ("minus_integer", lambda v: v.sub(v.x, 3)),
    ("signs_cancel", lambda v: v.mul(v.neg(v.x), v.y)),
    ("times_minus_one", lambda v: v.mul(v.u, 255)),
    ("small_power", lambda v: v.pow(v.x, 0.5)),
    ("small_power", lambda v: v.pow(v.x, 3)),
    ("divided_by_power_of_two", lambda v: v.div(v.x, 3)),
    ("divided_by_power_of_two", lambda v: v.div(v.x, INF)),
    ("divided_by_power_of_two", lambda v: v.div(v.x, 0)),
    ("divided_by_power_of_two", lambda v: v.div(v.g, 2.0**15)),
    ("one_divided", lambda v: v.div(2, v.x)),
    ("reciprocal_of_root", lambda v: v.reciprocal(v.x)),
    ("zero_for_bool", lambda v: v.truncdiv(truth(v), -1)),
    ("zero_for_bool", lambda v: v.floordiv(truth(v), -2)),
    ("zero_for_bool", lambda v: v.shr(truth(v), 0)),
    ("zero_for_bool", lambda v: v.and_(truth(v), 3)),
    ("zero_for_bool", lambda v: v.truncdiv(v.i, 2)),
    ("rounded_twice", lambda v: v.floor(v.neg(v.x))),
    ("cast_to_same", lambda v: v.to(v.x, DType.F64)),
    ("cast_chain", lambda v: v.to(v.to(v.x, DType.BF16), DType.F32)),
    ("cast_chain", lambda v: v.to(v.to(v.i, DType.F64), DType.F32)),
    ("cast_chain", lambda v: v.to(v.to(v.i, DType.U8), DType.I64)),
    ("cast_chain", lambda v: v.to(v.to(v.i, DType.BOOL), DType.I64)),
    ("cast_of_chosen", lambda v: chosen(v, v.x)),
    ("cast_of_chosen", lambda v: v.to(v.to(v.neg(v.to(v.h, DType.F32)), DType.BF16), DType.F32)),
    ("reduces_nothing", lambda v: v.builder.reduce(Op.SUM, v.x, [0])),
    ("reduced_twice", lambda v: v.builder.reduce(Op.SUM, v.builder.reduce(Op.SUM, v.x, [1]), [0])),
]
# These change a result by rounding at most, and have tests of their own.
APART = {"reciprocal_of_root", "reduces_nothing"}


@pytest.mark.parametrize(("name", "before", "after"), FIRES)
def test_fires(name, before, after):
    check_fires(getattr(algebra, name), before, after)


@pytest.mark.parametrize(("name", "before"), STAYS)
def test_stays_away(name, before):
    check_stays(getattr(algebra, name), before)


def test_every_rule_is_tried_both_ways():
    names = {rule.name for rule in ALGEBRA}
    assert names == {name for name, *_ in FIRES} | APART == {name for name, _ in STAYS}
    assert all(rule.text for rule in ALGEBRA)


def test_reciprocal_of_root():
    v = Values()
    graph = single(v.builder, v.reciprocal(v.sqrt(v.x)))
    found = rewrite(graph, (algebra.reciprocal_of_root,), v.builder)
    assert found.outputs[0].value is v.rsqrt(v.x)
    arguments = arguments_for(graph, Random(1))
    torch.testing.assert_close(run(found, arguments), run(graph, arguments), equal_nan=True)


@pytest.mark.parametrize("op", algebra.REDUCTIONS)
def test_reductions_over_size_one(op):
    v = Values(shape=(3, 1, 5, 1))
    x = v.b if op in (Op.ANY, Op.ALL) else v.x
    for axes in ([1], [1, 3], [1, 2], [2, 3], []):
        graph = single(v.builder, v.builder.reduce(op, x, axes))
        found = rewrite(graph, (algebra.reduces_nothing,), v.builder)
        assert all(x.shape[axis] != 1 for axis in _reduced_axes(found.outputs[0].value))
        arguments = arguments_for(graph, Random(2))
        torch.testing.assert_close(run(found, arguments), run(graph, arguments), equal_nan=True)


def _reduced_axes(node):
    """Of the operand as it was: sizes 3 and 5 tell the axes apart."""
    if node.op not in algebra.REDUCTIONS:
        return ()
    return [{3: 0, 5: 2}[node.inputs[0].shape[axis]] for axis in node.attr]


@pytest.mark.parametrize(
    ("narrow", "wide"), [(narrow, wide) for narrow in WIDER for wide in WIDER[narrow]]
)
def test_wider_types_hold_every_value(narrow, wide):
    source = TORCH_DTYPES[narrow]
    if narrow.is_float:
        info = torch.finfo(source)
        values = [info.max, info.min, info.tiny, info.smallest_normal, info.eps, 1 + info.eps]
    elif narrow is DType.BOOL:
        values = [False, True]
    else:
        info = torch.iinfo(source)
        values = [info.min, info.min + 1, -1 if info.min else 0, 0, 1, info.max - 1, info.max]
    x = torch.tensor(values, dtype=source)
    assert torch.equal(x.to(TORCH_DTYPES[wide]).to(source), x)
