"""The float functions in NumPy: for constants that are folded, and for the kernel interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from hemstitch.ir.graph import Op

FLOAT_FUNCTIONS: Mapping[Op, Callable[..., Any]] = MappingProxyType(
    {
        Op.EXP: np.exp,
        Op.EXP2: np.exp2,
        Op.EXPM1: np.expm1,
        Op.LOG: np.log,
        Op.LOG2: np.log2,
        Op.LOG10: np.log10,
        Op.LOG1P: np.log1p,
        Op.SQRT: np.sqrt,
        Op.RSQRT: lambda x: 1 / np.sqrt(x),
        Op.RECIPROCAL: lambda x: 1 / x,
        Op.SIN: np.sin,
        Op.COS: np.cos,
        Op.TAN: np.tan,
        Op.ASIN: np.arcsin,
        Op.ACOS: np.arccos,
        Op.ATAN: np.arctan,
        Op.SINH: np.sinh,
        Op.COSH: np.cosh,
        Op.TANH: np.tanh,
        Op.SIGMOID: lambda x: 1 / (1 + np.exp(-x)),
        Op.FLOOR: np.floor,
        Op.CEIL: np.ceil,
    }
)
