"""What every stage knows of each op: class, operand count, result type, cost. Total over `Op`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from hemstitch.ir.elementwise import ELEMENTWISE, Elementwise
from hemstitch.ir.graph import CALLED, Op
from hemstitch.ir.types import DType, TypeKind


class OpClass(Enum):
    """How an op reads its operands."""

    SOURCE = "source"  # has no tensor operands (PHILOX: only its seed)
    ELEMENTWISE = "elementwise"  # result[i] from operand[i]
    VIEW = "view"  # result[i] from operand[f(i)]; no arithmetic
    GATHER = "gather"  # result[i] from source[index[i]]
    SCATTER = "scatter"  # value[i] added to result[index[i]]
    REDUCTION = "reduction"
    SCAN = "scan"  # result[i] from operand[0] to operand[i]
    CONTRACTION = "contraction"  # result[m, n] from a whole row of one, a column of the other
    LIBRARY = "library"


class ResultType(Enum):
    """How an op's element type follows from its operands'."""

    SAME = "same"  # that of the last operand
    BOOL = "bool"
    INDEX = "i64"
    GIVEN = "given"  # the caller says


@dataclass(frozen=True, slots=True)
class OpRow:
    """`flops`: arithmetic per element worked on, in units of one add; of a contraction per step
    of it, as docs/compiler/performance-notes.md measures (a vector op's time over an add's)."""

    op_class: OpClass
    arity: int | None  # None: any
    flops: int
    result: ResultType = ResultType.SAME

    @property
    def is_expensive(self) -> bool:
        """Worth keeping rather than computing twice (FusionStitching 2020, section 3.1)."""
        return self.flops >= 8 or self.op_class is OpClass.CONTRACTION


def _elementwise(arity: int, flops: int, result: ResultType = ResultType.SAME) -> OpRow:
    return OpRow(OpClass.ELEMENTWISE, arity, flops, result)


def _arithmetic(row: Elementwise) -> OpRow:
    result = ResultType.BOOL if row.is_predicate else ResultType.SAME
    return _elementwise(row.arity, row.flops, result)


def _view(arity: int | None, result: ResultType = ResultType.GIVEN) -> OpRow:
    return OpRow(OpClass.VIEW, arity, 0, result)


def _reduction(flops: int, result: ResultType = ResultType.SAME) -> OpRow:
    return OpRow(OpClass.REDUCTION, 1, flops, result)


SCANNED: Mapping[Op, Op] = MappingProxyType({Op.CUMSUM: Op.SUM, Op.CUMPROD: Op.PROD})

OPS: dict[Op, OpRow] = {
    Op.INPUT: OpRow(OpClass.SOURCE, 0, 0, ResultType.GIVEN),
    Op.CONSTANT: OpRow(OpClass.SOURCE, 0, 0, ResultType.GIVEN),
    Op.SIZE: OpRow(OpClass.SOURCE, 0, 0, ResultType.GIVEN),
    Op.IOTA: OpRow(OpClass.SOURCE, 0, 1, ResultType.GIVEN),
    Op.PHILOX: OpRow(OpClass.SOURCE, 1, 20, ResultType.GIVEN),
    **{op: _arithmetic(row) for op, row in ELEMENTWISE.items()},
    Op.CAST: _elementwise(1, 1, ResultType.GIVEN),
    Op.WHERE: _elementwise(3, 1),
    Op.CHECK: _elementwise(2, 1),
    Op.BROADCAST: _view(1),
    Op.RESHAPE: _view(1),
    Op.PERMUTE: _view(1),
    Op.SLICE: _view(1),
    Op.PAD: _view(2),
    Op.CONCAT: _view(None),
    Op.UNFOLD: _view(1),
    Op.GATHER: OpRow(OpClass.GATHER, None, 2, ResultType.GIVEN),
    **dict.fromkeys((Op.SUM, Op.PROD, Op.MAX, Op.MIN, Op.ANY, Op.ALL), _reduction(1)),
    **dict.fromkeys((Op.ARGMAX, Op.ARGMIN), _reduction(3, ResultType.INDEX)),
    **dict.fromkeys(SCANNED, OpRow(OpClass.SCAN, 1, 8)),
    Op.SCATTER_ADD: OpRow(OpClass.SCATTER, None, 2, ResultType.GIVEN),
    Op.DOT: OpRow(OpClass.CONTRACTION, 2, 2, ResultType.GIVEN),
    **dict.fromkeys(
        (*CALLED.values(), Op.LIBRARY), OpRow(OpClass.LIBRARY, None, 0, ResultType.GIVEN)
    ),
    Op.RESULT: OpRow(OpClass.LIBRARY, 1, 0, ResultType.GIVEN),
}


def is_elementwise(op: Op) -> bool:
    return OPS[op].op_class is OpClass.ELEMENTWISE


def is_view(op: Op) -> bool:
    return OPS[op].op_class is OpClass.VIEW


def is_reduction(op: Op) -> bool:
    return OPS[op].op_class is OpClass.REDUCTION


def is_scan(op: Op) -> bool:
    return OPS[op].op_class is OpClass.SCAN


def is_scatter(op: Op) -> bool:
    return OPS[op].op_class is OpClass.SCATTER


def combines(op: Op) -> bool:
    """An element of the result is made of several: a loop has to end, or go on in order, before it
    is known."""
    return is_reduction(op) or is_scan(op) or is_scatter(op)


def is_contraction(op: Op) -> bool:
    return OPS[op].op_class is OpClass.CONTRACTION


def is_library(op: Op) -> bool:
    """A call, or a result of one."""
    return OPS[op].op_class is OpClass.LIBRARY


def is_call(op: Op) -> bool:
    return is_library(op) and op is not Op.RESULT


def identity(op: Op, dtype: DType) -> bool | int | float:
    """What a reduction starts from: combining with it changes nothing. For ARGMAX and ARGMIN the
    value that any other wins against; paired with the largest index it loses to an equal one."""
    if op in (Op.MAX, Op.ARGMAX):
        return lowest(dtype)
    if op in (Op.MIN, Op.ARGMIN):
        return highest(dtype)
    one = op in (Op.PROD, Op.ALL)
    if dtype.kind is TypeKind.BOOL:
        return one
    return float(one) if dtype.is_float else int(one)


def lowest(dtype: DType) -> bool | int | float:
    match dtype.kind:
        case TypeKind.FLOAT:
            return float("-inf")
        case TypeKind.BOOL:
            return False
        case _:
            return 0 if dtype is DType.U8 else -(1 << (8 * dtype.bytes - 1))


def highest(dtype: DType) -> bool | int | float:
    match dtype.kind:
        case TypeKind.FLOAT:
            return float("inf")
        case TypeKind.BOOL:
            return True
        case _:
            return (1 << (8 * dtype.bytes - (0 if dtype is DType.U8 else 1))) - 1
