"""The elementwise arithmetic of the graph IR: its costs, its operands, and its meaning in NumPy. A
new operation is a member of `Op` and a row here. CAST, WHERE and CHECK have no row, since their
operands differ in type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from hemstitch.ir.functions import (
    fused_multiply_add,
    integer_or_float_power,
    per_element,
    truncated_quotient,
)
from hemstitch.ir.graph import Op
from hemstitch.ir.types import TypeKind

_FLOAT = frozenset((TypeKind.FLOAT,))
_INT = frozenset((TypeKind.INT,))
_BITS = frozenset((TypeKind.BOOL, TypeKind.INT))
_NUMBER = frozenset((TypeKind.INT, TypeKind.FLOAT))
_ANY = frozenset((TypeKind.BOOL, TypeKind.INT, TypeKind.FLOAT))


@dataclass(frozen=True, slots=True)
class Elementwise:
    """`function`: on numbers and arrays of NumPy; constant folding and the kernel interpreter call
    it. `flops`: in units of one add. `kinds`: what the operands' elements may be; they have one
    type. `is_predicate`: the result is bool, else it has that type. `in_libm`: the libraries of C
    and of CUDA have it for floats, under the op's name; a target without a faster one calls it."""

    function: Callable[..., Any]
    flops: int
    kinds: frozenset[TypeKind]
    arity: int = 1
    is_predicate: bool = False
    in_libm: bool = False

    @property
    def is_of_floats(self) -> bool:
        return self.kinds == _FLOAT


def _libm(function: Callable[..., Any], flops: int, arity: int = 1) -> Elementwise:
    return Elementwise(function, flops, _FLOAT, arity, in_libm=True)


def _binary(
    function: Callable[..., Any], kinds: frozenset[TypeKind], flops: int = 1
) -> Elementwise:
    return Elementwise(function, flops, kinds, arity=2)


def _comparison(function: Callable[..., Any]) -> Elementwise:
    return Elementwise(function, 1, _ANY, arity=2, is_predicate=True)


ELEMENTWISE: Mapping[Op, Elementwise] = MappingProxyType(
    {
        Op.NEG: Elementwise(np.negative, 1, _NUMBER),
        Op.ABS: Elementwise(np.abs, 1, _NUMBER),
        Op.NOT: Elementwise(np.invert, 1, _BITS),
        Op.FLOOR: Elementwise(np.floor, 1, _FLOAT),
        Op.CEIL: Elementwise(np.ceil, 1, _FLOAT),
        Op.ROUND: Elementwise(np.rint, 1, _FLOAT),
        Op.TRUNC: Elementwise(np.trunc, 1, _FLOAT),
        Op.SIGN: Elementwise(np.sign, 2, _NUMBER),
        Op.SQRT: Elementwise(np.sqrt, 6, _FLOAT),
        Op.RECIPROCAL: Elementwise(lambda x: 1 / x, 6, _FLOAT),
        Op.RSQRT: Elementwise(lambda x: 1 / np.sqrt(x), 10, _FLOAT),
        Op.SIGMOID: Elementwise(lambda x: 1 / (1 + np.exp(-x)), 14, _FLOAT),
        Op.EXP: _libm(np.exp, 10),
        Op.EXP2: _libm(np.exp2, 10),
        Op.EXPM1: _libm(np.expm1, 18),
        Op.LOG: _libm(np.log, 14),
        Op.LOG2: _libm(np.log2, 14),
        Op.LOG10: _libm(np.log10, 14),
        Op.LOG1P: _libm(np.log1p, 18),
        Op.SIN: _libm(np.sin, 18),
        Op.COS: _libm(np.cos, 18),
        Op.TAN: _libm(np.tan, 26),
        Op.ASIN: _libm(np.arcsin, 26),
        Op.ACOS: _libm(np.arccos, 26),
        Op.ATAN: _libm(np.arctan, 26),
        Op.SINH: _libm(np.sinh, 20),
        Op.COSH: _libm(np.cosh, 20),
        Op.TANH: _libm(np.tanh, 20),
        Op.ERF: _libm(per_element(math.erf), 20),
        Op.ERFC: _libm(per_element(math.erfc), 26),
        Op.ATAN2: _libm(np.arctan2, 30, arity=2),
        Op.POW: Elementwise(integer_or_float_power, 30, _NUMBER, arity=2, in_libm=True),
        Op.ISNAN: Elementwise(np.isnan, 1, _ANY, is_predicate=True),
        Op.ADD: _binary(np.add, _NUMBER),
        Op.SUB: _binary(np.subtract, _NUMBER),
        Op.MUL: _binary(np.multiply, _NUMBER),
        Op.MAXIMUM: _binary(np.maximum, _ANY),
        Op.MINIMUM: _binary(np.minimum, _ANY),
        Op.AND: _binary(np.bitwise_and, _BITS),
        Op.OR: _binary(np.bitwise_or, _BITS),
        Op.XOR: _binary(np.bitwise_xor, _BITS),
        Op.SHL: _binary(np.left_shift, _INT),
        Op.SHR: _binary(np.right_shift, _INT),
        Op.DIV: _binary(np.divide, _FLOAT, 6),
        Op.FLOORDIV: _binary(np.floor_divide, _NUMBER, 12),
        Op.TRUNCDIV: _binary(truncated_quotient, _INT, 12),
        Op.FMOD: _binary(np.fmod, _NUMBER, 12),
        Op.REMAINDER: _binary(np.remainder, _NUMBER, 12),
        Op.EQ: _comparison(np.equal),
        Op.NE: _comparison(np.not_equal),
        Op.LT: _comparison(np.less),
        Op.LE: _comparison(np.less_equal),
        Op.GT: _comparison(np.greater),
        Op.GE: _comparison(np.greater_equal),
        Op.FMA: Elementwise(fused_multiply_add, 1, _FLOAT, arity=3),
    }
)
