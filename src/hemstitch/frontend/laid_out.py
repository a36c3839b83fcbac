"""Results in eager's order of axes, which programs see. Some of PyTorch's decompositions have
another, and so have some of its functions that say what an operation gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import (
    is_channels_last_contiguous_or_false,
    is_contiguous_or_false,
    suggest_memory_format,
)
from torch.fx.experimental.proxy_tensor import decompose, disable_proxy_modes_tracing

from hemstitch.frontend.advanced_indexing import order_of_indexed
from hemstitch.frontend.joint import are_hinted, formulas, hints_of

aten = torch.ops.aten
Decompositions = dict[Any, Callable[..., Any]]

# By channels where their operand is, contiguous otherwise.
NORMALISED = (
    *("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm"),
    *("_native_batch_norm_legit_no_training", "_batch_norm_no_update"),
    *("_batch_norm_with_update", "_batch_norm_with_update_functional"),
)
# As all operations of two tensors, element by element; of these PyTorch thinks otherwise.
PAIRED = (
    *(aten.floor_divide.default, aten.div.Tensor_mode, aten.copysign.Tensor, aten.xlogy.Tensor),
    *(aten.special_xlog1py.default, aten.logaddexp.default, aten.logaddexp2.default),
    *(aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default),
    *(aten.heaviside.default, aten.gcd.default, aten.lcm.default),
)
CONTIGUOUS = (
    *(aten.pow.Scalar, aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar),
    aten._transformer_encoder_layer_fwd.default,
)
MASKS = (torch.bool, torch.uint8)
FILLED = (aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)


def as_in_eager(table: Decompositions) -> Decompositions:
    """For some operations of `table`, and some others, what to break them up into instead."""
    ways: Decompositions = {op: _by_channels for op in table if packet_of(op) in NORMALISED}
    ways |= dict.fromkeys(PAIRED, _paired) | dict.fromkeys(CONTIGUOUS, _contiguous)
    ways |= dict.fromkeys(FILLED, _as_first)
    ways |= {aten.ldexp.Tensor: _ldexp, aten.log_sigmoid_forward.default: _log_sigmoid}
    ways[aten.index.Tensor] = _indexed
    return {op: partial(_laid_out, table.get(op) or partial(_itself, op), ways[op]) for op in ways}


def packet_of(op: Any) -> str:
    return op._schema.name.rpartition("::")[2] if hasattr(op, "_schema") else ""


def _itself(op: Any, *arguments: Any, **keywords: Any) -> Any:
    """As it is, in the trace."""
    with decompose({}):
        return op(*arguments, **keywords)


def _laid_out(
    usual: Callable[..., Any], way: Callable[..., Tensor], *arguments: Any, **keywords: Any
) -> Any:
    results = usual(*arguments, **keywords)
    if isinstance(results, tuple):
        first, *others = results
        return way(first, *arguments), *others
    return way(results, *arguments) if isinstance(results, Tensor) else results


def _by_channels(result: Tensor, x: Tensor, *_: Any) -> Tensor:
    return result.contiguous(memory_format=_memory_format(x))


def _memory_format(x: Tensor) -> torch.memory_format:
    """By channels too where only axes of size 1 have other strides."""
    if not is_contiguous_or_false(x):
        for layout, rank in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
            if x.dim() == rank and is_channels_last_contiguous_or_false(x):
                return layout
    return suggest_memory_format(x)


def _contiguous(result: Tensor, *_: Any) -> Tensor:
    return result.contiguous()


def _log_sigmoid(result: Tensor, x: Tensor) -> Tensor:
    return result.contiguous() if x.device.type == "cpu" else result


def _paired(result: Tensor, x: Any, other: Any) -> Tensor:
    with disable_proxy_modes_tracing():
        model = x + other
    return _in_order_of(result, model) if isinstance(model, Tensor) else result  # sizes


def _as_first(result: Tensor, x: Tensor, *_: Any) -> Tensor:
    with disable_proxy_modes_tracing():
        model = torch.empty_like(x)
    return _in_order_of(result, model)


def _ldexp(result: Tensor, x: Tensor, exponent: Tensor) -> Tensor:
    """Of two operations, the first of which gives what is contiguous."""
    with disable_proxy_modes_tracing():
        model = x + exponent.contiguous()
    return _in_order_of(result, model)


def _indexed(result: Tensor, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    if any(index is not None and index.dtype in MASKS for index in indices):
        return result
    with disable_proxy_modes_tracing():
        order = order_of_indexed(result, x, indices)
        lies_so = order is None or is_contiguous_or_false(result.permute(*order))
    return result if order is None or lies_so else _in_order(result, order)


def _in_order_of(x: Tensor, other: Tensor) -> Tensor:
    if formulas(x.stride()) == formulas(other.stride()) or not are_hinted(other.stride()):
        return x
    steps = hints_of(other.stride())
    return _in_order(x, sorted(range(x.dim()), key=lambda axis: -steps[axis]))


def _in_order(x: Tensor, order: Sequence[int]) -> Tensor:
    """`order`: the axes, the outermost first."""
    return x.permute(*order).contiguous().permute([*map(order.index, range(x.dim()))])
