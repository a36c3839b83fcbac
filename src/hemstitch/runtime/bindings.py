"""PyTorch's Python bindings of operations. They parse a call's arguments in half the time of an
`OpOverload`, whose parsing takes longer than a small convolution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten
_C: Any = torch._C
HOMES = (_C._VariableFunctions, _C._nn, _C._linalg, _C._fft, _C._special)
# Library calls with an `out=` form.
OUT_FORMS: Mapping[object, object] = {
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.addmm.default: torch.addmm,
    aten.baddbmm.default: torch.baddbmm,
}
TO_TYPE = partial(torch.Tensor.to, copy=True)


def binding(operation: object, arguments: Sequence[object], keywords: Iterable[str]) -> object:
    """The Python binding that takes the same arguments, if it cannot resolve to another overload;
    else the operation."""
    if operation is aten._to_copy.default and {*keywords} <= {"dtype", "memory_format"}:
        return TO_TYPE
    if not isinstance(operation, OpOverload) or operation.namespace != "aten":
        return operation
    schema, packet = operation._schema, operation.overloadpacket
    others = (getattr(packet, name) for name in packet.overloads())
    is_alone = all(other is operation or _is_variant(other) for other in others)
    is_factory = any(argument.name == "device" for argument in schema.arguments)
    lists = [argument for argument in arguments if isinstance(argument, tuple)]
    if not is_alone or is_factory or any(None in values for values in lists):
        return operation
    name = schema.name.removeprefix("aten::")
    functions: list[Callable[..., object]]
    functions = [getattr(home, name) for home in HOMES if hasattr(home, name)]
    return functions[0] if functions else operation


def _is_variant(other: OpOverload) -> bool:
    """Whether an overload is the same operation with `out=`, or without indices that are None."""
    has_out = any(argument.is_out for argument in other._schema.arguments)
    return has_out or other._overloadname == "hacked_twin"
