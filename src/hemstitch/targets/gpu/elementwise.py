"""What each elementwise op prints, with PyTorch's meaning. Total over them, by kind of operand.

Floating-point division is IEEE's, functions are those of CUDA's own library (ROCm's on AMD), or as
exact.
`device` is hemstitch.targets.gpu.device_functions, which each printed module imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hemstitch.ir.elementwise import ELEMENTWISE
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType, TypeKind

_COMPARISONS = {
    Op.EQ: "{} == {}",
    Op.NE: "{} != {}",
    Op.LT: "{} < {}",
    Op.LE: "{} <= {}",
    Op.GT: "{} > {}",
    Op.GE: "{} >= {}",
    Op.WHERE: "tl.where({}, {}, {})",
}


def _libdevice(name: str, arity: int) -> str:
    return f"libdevice.{name}({', '.join(['{}'] * arity)})"


_FLOAT = {
    **_COMPARISONS,
    **{op: _libdevice(op.value, row.arity) for op, row in ELEMENTWISE.items() if row.in_libm},
    Op.ROUND: "libdevice.rint({})",
    Op.TRUNC: "libdevice.trunc({})",
    Op.NEG: "{} * -1.0",  # Triton 3.6 takes `-x` for `0 - x`, which is never -0.0
    Op.ABS: "tl.abs({})",
    Op.FLOOR: "tl.floor({})",
    Op.CEIL: "tl.ceil({})",
    Op.SIGN: "device.sign({})",
    Op.SQRT: "tl.sqrt_rn({})",
    Op.RSQRT: "device.reciprocal(tl.sqrt_rn({}))",
    Op.RECIPROCAL: "device.reciprocal({})",
    Op.SIGMOID: "device.sigmoid({})",
    Op.TANH: "device.tanh({})",
    Op.ISNAN: "{0} != {0}",
    Op.ADD: "{} + {}",
    Op.SUB: "{} - {}",
    Op.MUL: "{} * {}",
    Op.FMA: "tl.fma({}, {}, {})",
    Op.DIV: "tl.div_rn({}, {})",
    Op.MAXIMUM: "device.maximum({}, {})",
    Op.MINIMUM: "device.minimum({}, {})",
    Op.FLOORDIV: "device.floor_divide({}, {})",
    Op.TRUNCDIV: "libdevice.trunc(tl.div_rn({}, {}))",
    Op.FMOD: "libdevice.fmod({}, {})",
    Op.REMAINDER: "device.remainder({}, {})",
}
# What is rounded to a half type at once needs no more than a few of that type's bits.
_COARSE = _FLOAT | {
    Op.EXP: "tl.exp({})",
    Op.SIGMOID: "device.coarse_sigmoid({})",
    Op.TANH: "device.coarse_tanh({})",
    Op.DIV: "{} / {}",
    Op.RECIPROCAL: "1.0 / {}",
}
# In double precision Triton's `/` is exact, and `div_rn` and `sqrt_rn` take f32 alone.
_DOUBLE = _FLOAT | {
    Op.SQRT: "tl.sqrt({})",
    Op.RSQRT: "1.0 / tl.sqrt({})",
    Op.RECIPROCAL: "1.0 / {}",
    Op.SIGMOID: "1.0 / (1.0 + libdevice.exp(-{}))",
    Op.TANH: "libdevice.tanh({})",
    Op.DIV: "{} / {}",
    Op.TRUNCDIV: "libdevice.trunc({} / {})",
    Op.FLOORDIV: "device.floor_divide_double({}, {})",
}
_INTEGER = {
    **_COMPARISONS,
    Op.NEG: "-{}",
    Op.ABS: "tl.abs({})",
    Op.SIGN: "device.integer_sign({})",
    Op.NOT: "~{}",
    **dict.fromkeys((Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC), "{}"),
    Op.ADD: "{} + {}",
    Op.SUB: "{} - {}",
    Op.MUL: "{} * {}",
    Op.MAXIMUM: "tl.maximum({}, {})",
    Op.MINIMUM: "tl.minimum({}, {})",
    Op.AND: "{} & {}",
    Op.OR: "{} | {}",
    Op.XOR: "{} ^ {}",
    Op.SHL: "device.shift_left({}, {})",
    Op.SHR: "device.shift_right({}, {})",
    Op.TRUNCDIV: "device.integer_quotient({}, {})",
    Op.FLOORDIV: "device.integer_floor_divide({}, {})",
    Op.FMOD: "device.integer_rest({}, {})",
    Op.REMAINDER: "device.integer_remainder({}, {})",
    Op.POW: "device.integer_power({}, {})",
}
_BOOL = {
    **_COMPARISONS,
    Op.NOT: "~{}",
    **dict.fromkeys((Op.AND, Op.MUL, Op.MINIMUM), "{} & {}"),
    **dict.fromkeys((Op.OR, Op.ADD, Op.MAXIMUM), "{} | {}"),
    Op.XOR: "{} ^ {}",
    Op.EQ: "~({} ^ {})",
    Op.NE: "{} ^ {}",
    Op.LT: "~{} & {}",
    Op.LE: "~{} | {}",
    Op.GT: "{} & ~{}",
    Op.GE: "{} | ~{}",
}
TABLES: Mapping[DType, Mapping[Op, str]] = MappingProxyType(
    {
        **dict.fromkeys((DType.F32, DType.F16, DType.BF16), _FLOAT),
        DType.F64: _DOUBLE,
        DType.BOOL: _BOOL,
        **{dtype: _INTEGER for dtype in DType if dtype.kind is TypeKind.INT},
    }
)


def apply(op: Op, dtype: DType, *operands: str, is_coarse: bool = False) -> str:
    """The expression of `op`; `dtype` is the type of its operands (of the last one, for WHERE).
    `is_coarse`: the result of an op on f32 is rounded to a half type, and not used otherwise.

    Raises KeyError for an op that integers or bools do not have.
    """
    table = _COARSE if is_coarse and dtype is DType.F32 else TABLES[dtype]
    return table[op].format(*operands)
