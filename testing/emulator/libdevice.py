"""`triton.language.extra.libdevice` in NumPy: computed in f64 and rounded once.

Outside a compile these functions have no body, and Triton's interpreter silently takes their None.
One that has no row here raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice

from hemstitch.errors import UnsupportedError
from hemstitch.ir.functions import fused_multiply_add
from testing.emulator import numerics
from testing.emulator.numerics import Array
from testing.emulator.tensors import like

Function = Callable[..., Any]


def _torch(function: Function) -> Function:
    return lambda *arrays: function(*map(torch.tensor, arrays)).numpy()


def _rounded_half_up(x: Array) -> Array:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), np.copysign(whole, x))


FUNCTIONS: dict[str, Function] = {
    **{name: getattr(np, name) for name in ("ceil", "floor", "trunc", "rint", "sqrt", "cbrt")},
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10")},
    **{name: getattr(np, name) for name in ("log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: getattr(np, name) for name in ("hypot", "fmod", "copysign", "abs")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh")},
    **{name: _torch(getattr(torch, name)) for name in ("erf", "erfc", "erfinv", "lgamma")},
    "erfcx": _torch(torch.special.erfcx),
    "normcdf": _torch(torch.special.ndtr),
    "normcdfinv": _torch(torch.special.ndtri),
    "j0": _torch(torch.special.bessel_j0),
    "j1": _torch(torch.special.bessel_j1),
    "y0": _torch(torch.special.bessel_y0),
    "y1": _torch(torch.special.bessel_y1),
    "cyl_bessel_i0": _torch(torch.special.i0),
    "cyl_bessel_i1": _torch(torch.special.i1),
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "pow": np.power,
    "exp10": lambda x: np.power(10.0, x),
    "nearbyint": np.rint,
    "round": _rounded_half_up,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "fdim": lambda x, y: np.where(x <= y, 0.0, x - y),
    "saturatef": lambda x: np.fmin(np.fmax(x, 0.0), 1.0),
    "add_rn": np.add,
    "sub_rn": np.subtract,
    "mul_rn": np.multiply,
    "div_rn": np.divide,
    "rcp_rn": np.reciprocal,
    "sqrt_rn": np.sqrt,
    "rsqrt_rn": lambda x: 1 / np.sqrt(x),
    "fast_dividef": np.divide,
    "fast_expf": np.exp,
    "fast_exp10f": lambda x: np.power(10.0, x),
    "fast_logf": np.log,
    "fast_log2f": np.log2,
    "fast_log10f": np.log10,
    "fast_powf": np.power,
    "fast_sinf": np.sin,
    "fast_cosf": np.cos,
    "fast_tanf": np.tan,
}
# Those that must see f32 itself, not its value in f64.
IN_OWN_TYPE: dict[str, Function] = {"nextafter": np.nextafter}
PREDICATES: dict[str, Function] = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "finitef": np.isfinite,
    "isfinited": np.isfinite,
}
FUSED = ("fma", "fma_rn")


def parameters(name: str) -> list[str]:
    """Of the function of this name."""
    return list(inspect.signature(getattr(libdevice, name)).parameters)


def replacements(semantic: Any) -> Iterator[tuple[str, Function]]:
    """Name and meaning of every function of libdevice."""
    for name, member in vars(libdevice).items():
        if callable(member) and getattr(member, "__module__", None) == libdevice.__name__:
            yield name, _elementwise(name, semantic)


def _elementwise(name: str, semantic: Any) -> Function:
    meaning = _meaning(name)

    def call(*arguments: Any, _semantic: object = None) -> Any:
        if meaning is None:
            raise UnsupportedError(
                f"libdevice.{name} in the emulator", hint="emulator/libdevice.py lists those it has"
            )
        tensors = [semantic.to_tensor(argument) for argument in arguments]
        dtypes = {each.dtype for each in tensors}
        if len(dtypes) > 1 or dtypes - {tl.float32, tl.float64}:
            named = ", ".join(map(str, sorted(dtypes, key=str)))
            raise UnsupportedError(f"libdevice.{name} of {named}", hint="cast to f32 first")
        result = np.asarray(meaning(*(each.handle.data for each in tensors)))
        dtype = tl.int1 if result.dtype == np.bool_ else tensors[0].dtype
        return like(result, dtype, tensors)

    return call


def _meaning(name: str) -> Function | None:
    if name in IN_OWN_TYPE or name in PREDICATES:
        return IN_OWN_TYPE.get(name) or PREDICATES[name]
    if name in FUSED:
        return fused_multiply_add
    if name in FUNCTIONS:
        return lambda *arrays: _rounded(FUNCTIONS[name], arrays)
    return None


def _rounded(function: Function, arrays: tuple[Array, ...]) -> Array:
    return numerics.through_f64(function, *arrays).astype(arrays[0].dtype)
