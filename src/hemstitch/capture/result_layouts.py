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

from hemstitch.capture.advanced_indexing import order_of_indexed
from hemstitch.capture.rules import RULES
from hemstitch.capture.tensor_iterator import (
    StridedLayout,
    are_usual,
    axis_order,
    dense,
    elementwise_order,
    is_pointwise,
)
from hemstitch.capture.traced_nodes import are_hinted, hints_of

aten = torch.ops.aten
Decompositions = dict[Any, Callable[..., Any]]

# By channels where their operand is, contiguous otherwise.
NORMALISED = (
    *("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm"),
    *("_native_batch_norm_legit_no_training", "_batch_norm_no_update"),
    *("_batch_norm_with_update", "_batch_norm_with_update_functional"),
)
CONTIGUOUS = (
    *(aten.pow.Scalar, aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar),
    aten._transformer_encoder_layer_fwd.default,
)
MASKS = (torch.bool, torch.uint8)
AS_FIRST = (
    *(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor),
    *(aten.hardtanh.default, aten.relu6.default),
)


def as_in_eager(table: Decompositions) -> Decompositions:
    """For some operations of `table`, and some others, what to break them up into instead."""
    ways: Decompositions = {op: _by_channels for op in table if packet_of(op) in NORMALISED}
    ways |= dict.fromkeys(CONTIGUOUS, _contiguous) | dict.fromkeys(AS_FIRST, _as_first)
    ways |= {aten.ldexp.Tensor: _ldexp, aten.log_sigmoid_forward.default: _log_sigmoid}
    ways[aten.index.Tensor] = _indexed
    ordered = {
        op: partial(_laid_out, table.get(op) or partial(_itself, op), ways[op]) for op in ways
    }
    others = (op for op in (*table, *RULES) if is_pointwise(op) and op not in ways)
    return ordered | {op: partial(_elementwise, table.get(op), op) for op in others}


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


def _elementwise(
    usual: Callable[..., Any] | None, op: Any, *arguments: Any, **keywords: Any
) -> Any:
    if are_usual(arguments):
        return usual(*arguments, **keywords) if usual else NotImplemented
    result = usual(*arguments, **keywords) if usual else _itself(op, *arguments, **keywords)
    return _in_order(result, elementwise_order(op, arguments, result))


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
    """Axes of one element too."""
    is_known = are_hinted((*result.shape, *result.stride()))
    return _in_order(result, range(result.dim())) if is_known else result.contiguous()


def _log_sigmoid(result: Tensor, x: Tensor) -> Tensor:
    return _contiguous(result) if x.device.type == "cpu" else result


def _as_first(result: Tensor, x: Tensor, *_: Any) -> Tensor:
    """As `empty_like`."""
    if not are_hinted((*x.shape, *x.stride())):
        return result
    sizes, steps = StridedLayout.of(x).converted()
    # Of two axes of the same stride one has a single element, and lies inside.
    return _in_order(result, sorted(range(x.dim()), key=lambda axis: (-steps[axis], -sizes[axis])))


def _ldexp(result: Tensor, x: Tensor, exponent: Tensor) -> Tensor:
    """As a product with a power, of which that of f32 and f64 is contiguous."""
    if not are_hinted((*exponent.shape, *exponent.stride())):
        return result
    layout = StridedLayout.of(exponent)
    is_contiguous = exponent.dtype in (torch.float32, torch.float64)
    order = [*range(exponent.dim())] if is_contiguous else axis_order([layout])
    strides = dense(layout.shape, order).strides
    with disable_proxy_modes_tracing():
        power = torch.empty_strided(
            layout.shape, strides, dtype=result.dtype, device=exponent.device
        )
    return _in_order(result, elementwise_order(aten.mul.Tensor, (x, power), result))


def _indexed(result: Tensor, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    if any(index is not None and index.dtype in MASKS for index in indices):
        return result
    with disable_proxy_modes_tracing():
        order = order_of_indexed(result, x, indices)
    return _in_order(result, order)


def _in_order(x: Tensor, order: Sequence[int] | None) -> Tensor:
    """`order`: the axes, the outermost first."""
    if order is None or StridedLayout.of(x) == dense(hints_of(x.shape), order):
        return x
    laid = x.permute(*order).clone(memory_format=torch.contiguous_format)
    return laid.permute([*map(order.index, range(x.dim()))])
