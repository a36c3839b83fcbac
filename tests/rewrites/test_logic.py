"""Each identity of comparisons and choices: fires, keeps the meaning, stays away."""

from __future__ import annotations

import pytest

from hemstitch.ir.types import DType
from hemstitch.rewrites import logic
from hemstitch.rewrites.logic import LOGIC
from tests.rewrites.cases import check_fires, check_stays

FIRES = [
    ("double_not", lambda v: v.not_(v.not_(v.b)), lambda v: v.b),
    ("double_not", lambda v: v.not_(v.not_(v.i)), lambda v: v.i),
    ("not_comparison", lambda v: v.not_(v.eq(v.x, v.y)), lambda v: v.ne(v.x, v.y)),
    ("not_comparison", lambda v: v.not_(v.lt(v.i, v.j)), lambda v: v.ge(v.i, v.j)),
    ("xor_true", lambda v: v.xor(v.b, True), lambda v: v.not_(v.b)),
    ("compared_with_bool", lambda v: v.eq(v.b, True), lambda v: v.b),
    ("compared_with_bool", lambda v: v.ne(v.b, False), lambda v: v.b),
    ("compared_with_bool", lambda v: v.eq(v.b, False), lambda v: v.not_(v.b)),
    ("compared_with_bool", lambda v: v.ne(v.to(v.b, DType.F32), 0), lambda v: v.b),
    ("compared_with_bool", lambda v: v.ne(v.to(v.b, DType.I64), 1), lambda v: v.not_(v.b)),
    ("compared_with_itself", lambda v: v.le(v.i, v.i), lambda v: v.like(True, v.b)),
    ("compared_with_itself", lambda v: v.lt(v.x, v.x), lambda v: v.like(False, v.b)),
    ("compared_with_itself", lambda v: v.ne(v.i, v.i), lambda v: v.like(False, v.b)),
    ("never_nan", lambda v: v.isnan(v.i), lambda v: v.like(False, v.b)),
    ("known_choice", lambda v: v.where(v.like(True, v.b), v.x, v.y), lambda v: v.x),
    ("known_choice", lambda v: v.where(v.like(False, v.b), v.x, v.y), lambda v: v.y),
    ("known_choice", lambda v: v.where(v.b, v.x, v.x), lambda v: v.x),
    ("chosen_by_not", lambda v: v.where(v.not_(v.b), v.x, v.y), lambda v: v.where(v.b, v.y, v.x)),
    ("chosen_bool", lambda v: v.where(v.b, v.like(True, v.b), v.like(False, v.b)), lambda v: v.b),
    (
        "chosen_bool",
        lambda v: v.where(v.b, v.like(False, v.b), v.like(True, v.b)),
        lambda v: v.not_(v.b),
    ),
    (
        "chosen_twice",
        lambda v: v.where(v.b, v.where(v.b, v.x, v.y), v.z),
        lambda v: v.where(v.b, v.x, v.z),
    ),
    (
        "chosen_twice",
        lambda v: v.where(v.b, v.x, v.where(v.b, v.y, v.z)),
        lambda v: v.where(v.b, v.x, v.z),
    ),
]
STAYS = [
    ("double_not", lambda v: v.not_(v.b)),
    ("not_comparison", lambda v: v.not_(v.lt(v.x, v.y))),
    ("xor_true", lambda v: v.xor(v.b, False)),
    ("xor_true", lambda v: v.xor(v.i, 1)),
    ("compared_with_bool", lambda v: v.eq(v.i, 1)),
    ("compared_with_bool", lambda v: v.eq(v.to(v.b, DType.I64), 2)),
    ("compared_with_itself", lambda v: v.eq(v.x, v.x)),
    ("compared_with_itself", lambda v: v.ge(v.x, v.x)),
    ("never_nan", lambda v: v.isnan(v.x)),
    ("known_choice", lambda v: v.where(v.b, v.x, v.y)),
    ("chosen_by_not", lambda v: v.where(v.b, v.x, v.y)),
    ("chosen_bool", lambda v: v.where(v.b, v.like(1, v.i), v.like(0, v.i))),
    ("chosen_twice", lambda v: v.where(v.b, v.where(v.d, v.x, v.y), v.z)),
]


@pytest.mark.parametrize(("name", "before", "after"), FIRES)
def test_fires(name, before, after):
    check_fires(getattr(logic, name), before, after)


@pytest.mark.parametrize(("name", "before"), STAYS)
def test_stays_away(name, before):
    check_stays(getattr(logic, name), before)


def test_every_rule_is_tried_both_ways():
    names = {rule.name for rule in LOGIC}
    assert names == {name for name, *_ in FIRES} == {name for name, _ in STAYS}
    assert all(rule.text for rule in LOGIC)
