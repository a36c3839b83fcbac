"""Constants are computed as the interpreter would, in every element type."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
import torch

from hemstitch.errors import InternalError
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import symbol
from hemstitch.ir.functions import round_to
from hemstitch.ir.graph import Address, Op, Range
from hemstitch.ir.ops import OPS, is_elementwise
from hemstitch.ir.types import DType, TensorType, TypeKind
from hemstitch.ir.verifier import verify
from hemstitch.rewrites import constant_folding as fold
from hemstitch.rewrites.constant_folding import FOLD
from hemstitch.rewrites.engine import rewrite
from hemstitch.runtime.interpreter import run
from tests.graphs import arguments_for, assert_same, single
from tests.rewrites.cases import Values, check_fires, check_stays

INF, NAN = float("inf"), float("nan")
VALUES = {
    TypeKind.BOOL: (False, True),
    TypeKind.INT: (0, 1, -1, 2, 3, -3, 7, 100, 200, -128),
    TypeKind.FLOAT: (0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 3.0, 1e-6, -7.3, 6e4, INF, -INF, NAN),
}
DTYPES = [dtype for dtype in DType if dtype is not DType.OPAQUE]
TIGHT = {"rtol": 1e-6, "atol": 1e-7}
TOLERANCE = {DType.F32: TIGHT, DType.F64: TIGHT}
ELEMENTWISE = [op for op in Op if is_elementwise(op)]


def folded(builder, *nodes):
    """What the rules make of each node, verified; and the values of either, the new ones first."""
    graph = single(builder, *nodes)
    verify(graph)
    found = rewrite(graph, FOLD, builder)
    verify(found)
    made = [output.value for output in found.outputs]
    return zip(made, run(found, []), run(graph, []), strict=True)


def operands_of(builder, op, dtype):
    """All tuples of constants that `op` takes; none where it is not for this element type."""
    count = OPS[op].arity
    constants = [builder.constant(value, dtype, (2,)) for value in VALUES[dtype.kind]]
    if op is Op.WHERE:
        flags = [builder.constant(value, DType.BOOL, (2,)) for value in (False, True)]
        return product(flags, constants[:3], constants[3:])
    return product(constants, repeat=count)


@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if op not in (Op.CAST, Op.CHECK)])
def test_elementwise_ops_of_constants(op):
    tried = 0
    for dtype in DTYPES:
        builder = Builder()
        nodes = [builder.make(op, *operands) for operands in operands_of(builder, op, dtype)]
        try:
            verify(single(builder, *nodes))
        except InternalError:
            continue  # not for this element type
        for value, found, expected in folded(builder, *nodes):
            if value.op is Op.CONSTANT:
                tried += 1
                bounds = TOLERANCE.get(dtype, {})
                torch.testing.assert_close(found, expected, equal_nan=True, **bounds)
    assert tried


EXACT = [Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.SQRT, Op.RECIPROCAL, Op.FMOD, Op.REMAINDER, Op.FLOOR]


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_float])
@pytest.mark.parametrize("op", [*EXACT, Op.FMA, Op.CEIL, Op.TRUNC, Op.ROUND, Op.FLOORDIV])
def test_exact_ops_give_the_very_bits(op, dtype):
    builder = Builder()
    nodes = [builder.make(op, *operands) for operands in operands_of(builder, op, dtype)]
    for value, found, expected in folded(builder, *nodes):
        assert value.op is Op.CONSTANT
        assert_same([found], [expected])


@pytest.mark.parametrize(("source", "target"), list(product(DTYPES, DTYPES)))
def test_casts_of_constants(source, target):
    builder = Builder()
    numbers = (*VALUES[source.kind], *((65519, 65520, 2**24 + 1) * (source is DType.I64)))
    constants = (builder.constant(number, source, (2,)) for number in numbers)
    casts = [builder.make(Op.CAST, x, type=TensorType((2,), target)) for x in constants]
    for value, found, expected in folded(builder, *casts):
        if value.op is Op.CONSTANT:
            assert_same([found], [expected])
        else:
            assert source.is_float and target.kind is TypeKind.INT


def test_rounding_to_half_types():
    random = Random(0)
    numbers = [random.uniform(-1, 1) * 2.0 ** random.randint(-30, 20) for _ in range(500)]
    for dtype, half in ((DType.BF16, torch.bfloat16), (DType.F16, torch.float16)):
        expected = torch.tensor(numbers, dtype=torch.float32).to(half)
        found = torch.tensor([round_to(number, dtype) for number in numbers])
        assert torch.equal(found.float(), expected.float())


def test_every_elementwise_op_has_a_function():
    functions = set(fold._FLOATS) | set(fold._INTEGERS)
    assert functions == set(ELEMENTWISE) - {Op.CAST, Op.WHERE, Op.CHECK}


FIRES = [
    ("of_constants", lambda v: v.add(v.like(2, v.x), 3), lambda v: v.like(5, v.x)),
    ("of_constants", lambda v: v.floordiv(v.like(2, v.i), 0), lambda v: v.like(0, v.i)),
    (
        "view_of_constant",
        lambda v: v.builder.permute(v.like(2, v.x), (1, 0)),
        lambda v: v.builder.constant(2, DType.F32, (11, 7)),
    ),
    (
        "view_of_constant",
        lambda v: v.builder.slice(v.like(2, v.x), [Range(1), Range(0, 2)], (6, 3)),
        lambda v: v.builder.constant(2, DType.F32, (6, 3)),
    ),
    (
        "view_of_constant",
        lambda v: v.builder.pad(v.like(2, v.x), (1, 1), (8, 12), v.builder.constant(2, DType.F32)),
        lambda v: v.builder.constant(2, DType.F32, (8, 12)),
    ),
    (
        "view_of_constant",
        lambda v: v.builder.concat([v.like(2, v.x), v.like(2, v.x)], 0),
        lambda v: v.builder.constant(2, DType.F32, (14, 11)),
    ),
    *(
        (
            "reduction_of_constant",
            lambda v, op=op: v.builder.reduce(op, v.like(3, v.x), [1]),
            lambda v, op=op, value=value: v.builder.constant(
                value, DType.I64 if op is Op.ARGMAX else DType.F32, (7,)
            ),
        )
        for op, value in ((Op.MAX, 3), (Op.MIN, 3), (Op.SUM, 33), (Op.ARGMAX, 0))
    ),
    (
        "reduction_of_constant",
        lambda v: v.builder.reduce(Op.ANY, v.like(True, v.b), [0, 1]),
        lambda v: v.builder.constant(True, DType.BOOL),
    ),
    (
        "reduction_of_constant",
        lambda v: v.builder.reduce(Op.SUM, v.like(200, v.u), [0]),
        lambda v: v.builder.constant(1400, DType.U8, (11,)),
    ),
    (
        "reduction_of_nothing",
        lambda v: v.builder.reduce(Op.ALL, v.builder.slice(v.b, [Range(0), Range(0)], (7, 0)), [1]),
        lambda v: v.builder.constant(True, DType.BOOL, (7,)),
    ),
    (
        "empty",
        lambda v: v.neg(v.builder.slice(v.x, [Range(0), Range(0)], (7, 0))),
        lambda v: v.builder.constant(0, DType.F32, (7, 0)),
    ),
    (
        "empty",
        lambda v: v.builder.gather(
            v.x,
            [v.builder.slice(v.i, [Range(0), Range(0)], (7, 0))] * 2,
            [Address(operand=1), Address(operand=2)],
            (7, 0),
        ),
        lambda v: v.builder.constant(0, DType.F32, (7, 0)),
    ),
    (
        "nothing_added",
        lambda v: v.builder.scatter_add(
            v.builder.slice(v.x, [Range(0), Range(0)], (0, 11)),
            [v.builder.slice(v.i, [Range(0), Range(0)], (0, 11))],
            [Address(operand=1), Address(axis=1)],
            (5, 11),
        ),
        lambda v: v.builder.constant(0, DType.F32, (5, 11)),
    ),
    ("known_size", lambda v: v.builder.size(5), lambda v: v.builder.constant(5, DType.I64)),
    (
        "single_index",
        lambda v: v.builder.iota((3, 1), 1),
        lambda v: v.builder.constant(0, DType.I64, (3, 1)),
    ),
]
STAYS = [
    ("of_constants", lambda v: v.add(v.x, 3)),
    ("of_constants", lambda v: v.truncdiv(v.like(2, v.i), 0)),
    ("of_constants", lambda v: v.shl(v.like(2, v.i), 64)),
    ("of_constants", lambda v: v.to(v.like(NAN, v.x), DType.I64)),
    ("view_of_constant", lambda v: v.builder.concat([v.like(2, v.x), v.like(3, v.x)], 0)),
    ("view_of_constant", lambda v: v.builder.concat([v.like(0.0, v.x), v.like(-0.0, v.x)], 0)),
    ("reduction_of_constant", lambda v: v.builder.reduce(Op.SUM, v.like(0.1, v.x), [0])),
    ("reduction_of_constant", lambda v: v.builder.reduce(Op.SUM, v.like(INF, v.x), [0])),
    ("reduction_of_constant", lambda v: v.builder.reduce(Op.PROD, v.like(3, v.x), [0])),
    ("reduction_of_nothing", lambda v: v.builder.reduce(Op.SUM, v.x, [0])),
    ("empty", lambda v: v.neg(v.x)),
    (
        "nothing_added",
        lambda v: v.builder.scatter_add(v.x, [v.i], [Address(operand=1), Address(axis=1)], (5, 11)),
    ),
    ("single_index", lambda v: v.builder.iota((3, 1), 0)),
]


@pytest.mark.parametrize(("name", "before", "after"), FIRES)
def test_fires(name, before, after):
    check_fires(getattr(fold, name), before, after)


@pytest.mark.parametrize(("name", "before"), STAYS)
def test_stays_away(name, before):
    check_stays(getattr(fold, name), before)


def test_every_rule_is_tried():
    assert {rule.name for rule in FOLD} == {name for name, *_ in FIRES}
    assert {rule.name for rule in FOLD} - {"known_size"} == {name for name, _ in STAYS}


def test_symbolic_sizes_are_left_alone():
    builder = Builder()
    s0 = symbol("s0")
    size = builder.size(s0)
    rows = builder.reduce(Op.SUM, builder.constant(1, DType.F32, (s0,)), [0])
    assert folded_of_symbols(builder, size) is size
    assert folded_of_symbols(builder, rows) is rows


def folded_of_symbols(builder, node):
    return rewrite(single(builder, node), FOLD, builder).outputs[0].value


def test_sums_are_exact_or_left():
    v = Values(shape=(3, 5))
    for number in (0.0, 1.0, 0.5, -3.0, 2.0**30, 16777215.0, 0.1, 1e38):
        node = v.builder.reduce(Op.SUM, v.like(number, v.x), [0, 1])
        ((value, *_),) = folded(v.builder, node)
        assert (value.op is Op.CONSTANT) == (number in (0.0, 1.0, 0.5, -3.0, 2.0**30))
        graph = single(v.builder, node)
        assert_same(run(single(v.builder, value), []), run(graph, arguments_for(graph, Random(0))))
