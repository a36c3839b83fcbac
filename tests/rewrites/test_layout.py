"""Views merge and vanish, slices go in, broadcasts come out; the meaning stays."""

from __future__ import annotations

from random import Random

import pytest

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import symbol
from hemstitch.ir.graph import Op, Range, toposort
from hemstitch.ir.types import DType, TensorType
from hemstitch.ir.verifier import verify
from hemstitch.rewrites import view_propagation as layout
from hemstitch.rewrites.engine import rewrite
from hemstitch.rewrites.view_propagation import LAYOUT, slicing
from hemstitch.runtime.interpreter import run
from tests.graphs import arguments_for, assert_same, single
from tests.rewrites.cases import Values, check_fires, check_stays

WHOLE = Range(0)
# x is f32[7, 11]; cut(x) is its rows 2, 4 and columns 10, 9, 8.
CUT = ([Range(2, 2), Range(10, -1)], (2, 3))


def row(v):
    """f32[1, 11], an input."""
    return v.input("row", 20, (1, 11))


def column(v):
    """f32[7, 1], an input."""
    return v.input("column", 21, (7, 1))


def raw(v, op, x, shape, attr=None):
    """A view that the builder would not make, as it does nothing."""
    return v.builder.make(op, x, attr=attr, type=TensorType(shape, x.type.dtype))


def zeros(v, rows):
    return v.builder.constant(0.0, DType.F32, (rows, 11))


def padded(v, x, low, rows, fill=0.0):
    """`x` from row `low` of as many."""
    return v.builder.pad(x, (low, 0), (rows, 11), v.builder.constant(fill, DType.F32))


def rounded(v, x, y):
    """Their sum in bf16."""
    total = v.add(*(v.builder.cast(each, DType.F32) for each in (x, y)))
    return v.builder.cast(total, DType.BF16)


def padded_half(v, x, low, rows):
    return v.builder.pad(x, (low, 0), (rows, 11), v.builder.constant(0.0, DType.BF16))


def half(v, x):
    return v.builder.cast(x, DType.BF16)


def beside_zeros(v, x):
    """0.0 for -0.0, in bf16."""
    total = v.add(v.builder.cast(half(v, x), DType.F32), 0.0)
    return v.builder.cast(total, DType.BF16)


def twice(v):
    """f32[14, 11], an input."""
    return v.input("twice", 22, (14, 11))


def cut(v, x):
    return v.builder.slice(x, *CUT)


FIRES = [
    ("identity_view", lambda v: raw(v, Op.RESHAPE, v.x, (7, 11)), lambda v: v.x),
    ("identity_view", lambda v: raw(v, Op.BROADCAST, v.x, (7, 11)), lambda v: v.x),
    ("identity_view", lambda v: raw(v, Op.PERMUTE, v.x, (7, 11), (0, 1)), lambda v: v.x),
    ("identity_view", lambda v: raw(v, Op.SLICE, v.x, (7, 11), (WHOLE, WHOLE)), lambda v: v.x),
    ("identity_view", lambda v: raw(v, Op.CONCAT, v.x, (7, 11), 0), lambda v: v.x),
    (
        "reshape_of_reshape",
        lambda v: v.builder.reshape(v.builder.reshape(v.x, (77,)), (11, 7)),
        lambda v: v.builder.reshape(v.x, (11, 7)),
    ),
    (
        "broadcast_of_broadcast",
        lambda v: v.builder.broadcast(
            v.builder.broadcast(v.input("s", 20, (1, 1, 1)), (1, 7, 1)), (5, 7, 11)
        ),
        lambda v: v.builder.broadcast(v.input("s", 20, (1, 1, 1)), (5, 7, 11)),
    ),
    (
        "permute_of_permute",
        lambda v: v.builder.permute(v.builder.permute(v.x, (1, 0)), (1, 0)),
        lambda v: v.x,
    ),
    (
        "slice_of_slice",
        lambda v: v.builder.slice(cut(v, v.x), [Range(1, -1), Range(0, 2)], (2, 2)),
        lambda v: v.builder.slice(v.x, [Range(4, -2), Range(10, -2)], (2, 2)),
    ),
    (
        "concat_of_concat",
        lambda v: v.builder.concat([v.builder.concat([v.x, v.y], 0), v.z], 0),
        lambda v: v.builder.concat([v.x, v.y, v.z], 0),
    ),
    (
        "concat_of_constants",
        lambda v: v.builder.concat([zeros(v, 2), v.x, zeros(v, 3)], 0),
        lambda v: padded(v, v.x, 2, 12),
    ),
    (
        "sum_of_neighbours",
        lambda v: v.add(padded(v, v.x, 7, 21), padded(v, v.y, 0, 21)),
        lambda v: padded(v, v.builder.concat([v.add(v.y, 0.0), v.add(v.x, 0.0)], 0), 0, 21),
    ),
    (
        "sum_of_neighbours",
        lambda v: v.add(v.add(padded(v, v.x, 7, 14), twice(v)), padded(v, v.y, 0, 14)),
        lambda v: v.add(twice(v), v.builder.concat([v.add(v.y, 0.0), v.add(v.x, 0.0)], 0)),
    ),
    (
        "sum_of_neighbours",
        lambda v: rounded(
            v, padded_half(v, half(v, v.x), 7, 21), padded_half(v, half(v, v.y), 0, 21)
        ),
        lambda v: padded_half(
            v, v.builder.concat([beside_zeros(v, v.y), beside_zeros(v, v.x)], 0), 0, 21
        ),
    ),
    (
        "permute_of_unit_axes",
        lambda v: v.builder.permute(v.builder.reshape(v.x, (1, 7, 11)), (1, 0, 2)),
        lambda v: v.builder.reshape(v.builder.reshape(v.x, (1, 7, 11)), (7, 1, 11)),
    ),
    (
        "reshape_of_permute",
        lambda v: v.builder.reshape(v.builder.permute(v.x, (1, 0)), (11, 1, 7)),
        lambda v: v.builder.permute(v.builder.reshape(v.x, (1, 7, 11)), (2, 0, 1)),
    ),
    (
        "reshape_of_broadcast",
        lambda v: v.builder.reshape(v.builder.broadcast(row(v), (7, 11)), (7, 1, 11)),
        lambda v: v.builder.broadcast(v.builder.reshape(row(v), (1, 1, 11)), (7, 1, 11)),
    ),
    (
        "permute_of_broadcast",
        lambda v: v.builder.permute(v.builder.broadcast(row(v), (7, 11)), (1, 0)),
        lambda v: v.builder.broadcast(v.builder.permute(row(v), (1, 0)), (11, 7)),
    ),
    (
        "slice_of_broadcast",
        lambda v: cut(v, v.builder.broadcast(row(v), (7, 11))),
        lambda v: v.builder.broadcast(
            v.builder.slice(row(v), [WHOLE, Range(10, -1)], (1, 3)), (2, 3)
        ),
    ),
    (
        "slice_of_permute",
        lambda v: v.builder.slice(v.builder.permute(v.x, (1, 0)), CUT[0][::-1], CUT[1][::-1]),
        lambda v: v.builder.permute(cut(v, v.x), (1, 0)),
    ),
    (
        "slice_of_reshape",
        lambda v: v.builder.slice(
            v.builder.reshape(v.x, (7, 1, 11)), [CUT[0][0], WHOLE, CUT[0][1]], (2, 1, 3)
        ),
        lambda v: v.builder.reshape(cut(v, v.x), (2, 1, 3)),
    ),
    (
        "slice_of_concat",
        lambda v: v.builder.slice(v.builder.concat([v.x, v.y], 0), [Range(9), Range(1)], (3, 10)),
        lambda v: v.builder.slice(v.y, [Range(2), Range(1)], (3, 10)),
    ),
    (
        "slice_of_concat",
        lambda v: v.builder.slice(v.builder.concat([v.x, v.y], 0), [Range(0), Range(1)], (7, 10)),
        lambda v: v.builder.slice(v.x, [Range(0), Range(1)], (7, 10)),
    ),
    (
        "slice_of_concat",
        lambda v: v.builder.slice(v.builder.concat([v.x, v.y], 0), [WHOLE, Range(1)], (14, 10)),
        lambda v: v.builder.concat(
            [v.builder.slice(part, [WHOLE, Range(1)], (7, 10)) for part in (v.x, v.y)], 0
        ),
    ),
    (
        "slice_of_pad",
        lambda v: v.builder.slice(
            v.builder.pad(v.x, (1, 2), (9, 14), v.builder.constant(0, DType.F32)),
            [Range(3, 2), Range(12, -1)],
            (2, 3),
        ),
        lambda v: cut(v, v.x),
    ),
    (
        "elementwise_of_broadcasts",
        lambda v: v.mul(v.builder.broadcast(row(v), (7, 11)), v.builder.broadcast(row(v), (7, 11))),
        lambda v: v.builder.broadcast(v.mul(row(v), row(v)), (7, 11)),
    ),
    (
        "elementwise_of_broadcasts",
        lambda v: v.gt(v.builder.broadcast(row(v), (7, 11)), 2),
        lambda v: v.builder.broadcast(v.gt(row(v), 2), (7, 11)),
    ),
    (
        "elementwise_of_broadcasts",
        lambda v: v.to(v.builder.broadcast(row(v), (7, 11)), DType.BF16),
        lambda v: v.builder.broadcast(v.to(row(v), DType.BF16), (7, 11)),
    ),
    (
        "reduction_of_broadcast",
        lambda v: v.builder.reduce(Op.MAX, v.builder.broadcast(row(v), (7, 11)), [1]),
        lambda v: v.builder.broadcast(v.builder.reduce(Op.MAX, row(v), [1]), (7,)),
    ),
    (
        "extremum_of_broadcast",
        lambda v: v.builder.reduce(Op.MAX, v.builder.broadcast(row(v), (7, 11)), [0, 1]),
        lambda v: v.builder.reduce(Op.MAX, row(v), [0, 1]),
    ),
    (
        "iota_of_one_axis",
        lambda v: v.builder.iota((7, 11), 1),
        lambda v: v.builder.broadcast(v.builder.iota((1, 11), 1), (7, 11)),
    ),
]
STAYS = [
    ("concat_of_constants", lambda v: v.builder.concat([zeros(v, 2), v.x, v.y], 0)),
    (
        "concat_of_constants",
        lambda v: v.builder.concat(
            [zeros(v, 2), v.x, v.builder.constant(-0.0, DType.F32, (1, 11))], 0
        ),
    ),
    ("sum_of_neighbours", lambda v: v.add(padded(v, v.x, 7, 21), padded(v, v.y, 1, 21))),
    ("sum_of_neighbours", lambda v: v.add(padded(v, v.x, 7, 21), padded(v, v.y, 7, 21))),
    (
        "sum_of_neighbours",
        lambda v: rounded(
            v, padded_half(v, half(v, v.x), 7, 21), padded_half(v, half(v, v.y), 1, 21)
        ),
    ),
    ("sum_of_neighbours", lambda v: v.add(padded(v, v.x, 7, 21, 1.0), padded(v, v.y, 0, 21, 1.0))),
    ("identity_view", lambda v: v.builder.permute(v.input("q", 20, (3, 3)), (1, 0))),
    ("identity_view", lambda v: v.builder.slice(v.x, [Range(6, -1), WHOLE], (7, 11))),
    ("reshape_of_reshape", lambda v: v.builder.reshape(v.x, (77,))),
    ("broadcast_of_broadcast", lambda v: v.builder.broadcast(row(v), (7, 11))),
    ("permute_of_permute", lambda v: v.builder.permute(v.x, (1, 0))),
    ("slice_of_slice", lambda v: cut(v, v.x)),
    (
        "concat_of_concat",
        lambda v: v.builder.concat(
            [v.builder.concat([v.x, v.y], 1), v.builder.concat([v.z, v.z], 1)], 0
        ),
    ),
    ("permute_of_unit_axes", lambda v: v.builder.permute(v.x, (1, 0))),
    ("reshape_of_permute", lambda v: v.builder.reshape(v.builder.permute(v.x, (1, 0)), (77,))),
    (
        "reshape_of_broadcast",
        lambda v: v.builder.reshape(v.builder.broadcast(row(v), (7, 11)), (77,)),
    ),
    ("permute_of_broadcast", lambda v: v.builder.permute(v.x, (1, 0))),
    ("slice_of_broadcast", lambda v: cut(v, v.x)),
    ("slice_of_permute", lambda v: cut(v, v.x)),
    (
        "slice_of_reshape",
        lambda v: v.builder.slice(v.builder.reshape(v.x, (77,)), [Range(3)], (4,)),
    ),
    (
        "slice_of_concat",
        lambda v: v.builder.slice(v.builder.concat([v.x, v.y], 0), [Range(5), WHOLE], (4, 11)),
    ),
    (
        "slice_of_concat",
        lambda v: v.builder.slice(v.builder.concat([v.x, v.y], 0), [Range(1, 7), WHOLE], (2, 11)),
    ),
    (
        "slice_of_pad",
        lambda v: v.builder.slice(
            v.builder.pad(v.x, (1, 2), (9, 14), v.builder.constant(0, DType.F32)),
            [Range(0), Range(2)],
            (7, 11),
        ),
    ),
    (
        "elementwise_of_broadcasts",
        lambda v: v.mul(
            v.builder.broadcast(row(v), (7, 11)), v.builder.broadcast(column(v), (7, 11))
        ),
    ),
    ("elementwise_of_broadcasts", lambda v: v.add(v.like(1, v.x), 2)),
    (
        "reduction_of_broadcast",
        lambda v: v.builder.reduce(Op.SUM, v.builder.broadcast(row(v), (7, 11)), [0]),
    ),
    (
        "extremum_of_broadcast",
        lambda v: v.builder.reduce(Op.MAX, v.builder.broadcast(row(v), (7, 11)), [1]),
    ),
    ("iota_of_one_axis", lambda v: v.builder.iota((1, 11), 1)),
]


@pytest.mark.parametrize(("name", "before", "after"), FIRES)
def test_fires(name, before, after):
    check_fires(getattr(layout, name), before, after)


@pytest.mark.parametrize(("name", "before"), STAYS)
def test_stays_away(name, before):
    check_stays(getattr(layout, name), before)


def test_every_rule_is_tried_both_ways():
    names = {rule.name for rule in LAYOUT}
    assert names == {name for name, *_ in FIRES} == {name for name, _ in STAYS}
    assert all(rule.text for rule in LAYOUT)


def arranged(builder, *values):
    graph = single(builder, *values)
    found = rewrite(graph, (*LAYOUT, slicing(graph)), builder)
    verify(found)
    arguments = arguments_for(graph, Random(0))
    assert_same(run(found, arguments), run(graph, arguments))
    return [output.value for output in found.outputs]


def test_slices_pass_cheap_arithmetic_that_others_read():
    v = Values()
    total = v.add(v.x, v.y)
    part, whole = arranged(v.builder, cut(v, total), total)
    assert whole is total
    assert part is v.add(cut(v, v.x), cut(v, v.y))


def test_slices_pass_costly_arithmetic_that_nobody_else_reads():
    v = Values()
    (part,) = arranged(v.builder, cut(v, v.floordiv(v.floordiv(v.x, v.y), v.y)))
    assert part is v.floordiv(v.floordiv(cut(v, v.x), cut(v, v.y)), cut(v, v.y))


def test_slices_stop_at_costly_arithmetic_that_others_read():
    v = Values()
    costly = v.floordiv(v.x, v.y)
    part, _ = arranged(v.builder, cut(v, v.neg(costly)), costly)
    assert part is v.neg(cut(v, costly))


def test_slices_stop_where_much_cheap_arithmetic_would_be_done_again():
    v = Values()
    node = v.x
    for _ in range(10):
        node = v.add(node, v.y)
    part, _ = arranged(v.builder, cut(v, node), node)
    assert part is cut(v, node)


def test_slices_do_not_pass_reductions():
    v = Values(shape=(4, 3))
    scaled = v.sub(v.x, v.builder.broadcast(v.builder.reduce(Op.MAX, v.x, [1], keep=True), (4, 3)))
    first = v.builder.slice(scaled, [Range(0), Range(0)], (2, 3))
    part, _ = arranged(v.builder, first, scaled)
    assert part is first


def test_a_symbolic_split_finds_its_parts():
    builder = Builder()
    s0, s1 = symbol("s0"), symbol("s1")
    x = builder.input("x", 0, (s0, 4), DType.F32, (4, 1))
    y = builder.input("y", 1, (s1, 4), DType.F32, (4, 1))
    both = builder.concat([x, y], 0)
    parts = (
        builder.slice(both, [Range(0), WHOLE], (s0, 4)),
        builder.slice(both, [Range(s0), WHOLE], (s1, 4)),
        builder.slice(both, [Range(s1), WHOLE], (s0, 4)),
    )
    found = rewrite(single(builder, *parts), LAYOUT, builder)
    assert [output.value for output in found.outputs] == [x, y, parts[2]]


def test_repeated_work_along_one_axis_is_done_once():
    v = Values()
    scale = v.builder.broadcast(row(v), (7, 11))
    (value,) = arranged(v.builder, v.add(v.x, v.mul(v.neg(scale), v.add(scale, 1))))
    shapes = {node.op: node.shape for node in toposort([value]) if node.op is not Op.ADD}
    assert shapes[Op.MUL] == shapes[Op.NEG] == (1, 11)
    assert shapes[Op.BROADCAST] == (7, 11)


def test_different_broadcasts_share_what_both_repeat():
    v = Values()
    x = v.builder.broadcast(v.input("p", 20, (1, 7, 1)), (5, 7, 11))
    y = v.builder.broadcast(v.input("q", 21, (1, 1, 11)), (5, 7, 11))
    (value,) = arranged(v.builder, v.mul(x, y))
    assert value.op is Op.BROADCAST and value.inputs[0].shape == (1, 7, 11)
