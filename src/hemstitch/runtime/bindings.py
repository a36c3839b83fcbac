"""PyTorch's own Python functions for operations. They read a call's arguments in half the time that
a schema takes, which for a small convolution is longer than what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten
_C: Any = torch._C
HOMES = (_C._VariableFunctions, _C._nn, _C._linalg, _C._fft, _C._special)
# Library calls that write their result where they are told.
OUT_FORMS: Mapping[object, object] = {
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.addmm.default: torch.addmm,
    aten.baddbmm.default: torch.baddbmm,
}
TO_TYPE = partial(torch.Tensor.to, copy=True)


def binding(operation: object, arguments: Sequence[object], keywords: Iterable[str]) -> object:
    """The function that takes the same arguments, if there is one that cannot mean another
    overload; else the operation."""
    if operation is aten._to_copy.default and {*keywords} <= {"dtype", "memory_format"}:
        return TO_TYPE
    if not isinstance(operation, OpOverload) or operation.namespace != "aten":
        return operation
    schema, packet = operation._schema, operation.overloadpacket
    others = (getattr(packet, name) for name in packet.overloads())
    is_alone = all(other is operation or _is_form(other) for other in others)
    makes = any(argument.name == "device" for argument in schema.arguments)
    lists = [argument for argument in arguments if isinstance(argument, tuple)]
    if not is_alone or makes or any(None in values for values in lists):
        return operation
    name = schema.name.removeprefix("aten::")
    functions: list[Callable[..., object]]
    functions = [getattr(home, name) for home in HOMES if hasattr(home, name)]
    return functions[0] if functions else operation


def _is_form(other: OpOverload) -> bool:
    """Of the same operation, told where to write, or without indices that are None."""
    is_told = any(argument.is_out for argument in other._schema.arguments)
    return is_told or other._overloadname == "hacked_twin"
