"""What reductions print: combining two tiles, and all of a tile along one of its two axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType, TypeKind
from hemstitch.targets.gpu.triton_types import NAMES

ARG: Mapping[Op, str] = MappingProxyType(
    {Op.ARGMAX: "device.arg_maximum", Op.ARGMIN: "device.arg_minimum"}
)
_EXTREMES = {Op.MAX: "maximum", Op.MIN: "minimum"}
_OPERATORS = {Op.SUM: "+", Op.PROD: "*", Op.ANY: "|", Op.ALL: "&"}


def combine(op: Op, dtype: DType, a: str, b: str) -> str:
    """One value of two, lane by lane; not of ARGMAX and ARGMIN."""
    if op in _EXTREMES:
        if dtype.kind is TypeKind.BOOL:
            return combine(Op.ANY if op is Op.MAX else Op.ALL, dtype, a, b)
        return f"{'device' if dtype.is_float else 'tl'}.{_EXTREMES[op]}({a}, {b})"
    return f"{a} {_OPERATORS[op]} {b}"


def along(op: Op, dtype: DType, tile: str, axis: int) -> str:
    """All of a tile along `axis`, which stays with size 1. NaN wins, as in PyTorch."""
    keep = f"{axis}, keep_dims=True"
    if dtype.kind is TypeKind.BOOL:
        largest = op in (Op.ANY, Op.MAX, Op.SUM)
        return f"(tl.{'max' if largest else 'min'}({tile}.to(tl.int32), {keep}) != 0)"
    if op is Op.SUM:
        return _as(dtype, f"tl.sum({tile}, {keep})")
    if op is Op.PROD:
        return f"tl.reduce({tile}, {axis}, device.multiply, keep_dims=True)"
    if dtype.is_float:
        return f"tl.reduce({tile}, {axis}, device.{_EXTREMES[op]}, keep_dims=True)"
    return _as(dtype, f"tl.{op.value}({tile}, {keep})")


def scanned(op: Op, dtype: DType, tile: str) -> str:
    """Each lane of a tile with all before it."""
    function = {Op.SUM: "cumsum", Op.PROD: "cumprod"}[op]
    return _as(dtype, f"tl.{function}({tile}, 1)")


def pairs_along(op: Op, pair: Sequence[str], axis: int) -> str:
    """The winning value and its position."""
    return f"tl.reduce(({', '.join(pair)}), {axis}, {ARG[op]}, keep_dims=True)"


def _as(dtype: DType, text: str) -> str:
    """Triton widens small integers."""
    return f"{text}.to({NAMES[dtype]})" if dtype.bytes < 4 else text
