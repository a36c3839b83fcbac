"""Structured calls: which ATen ops the graph IR describes, and with what attributes. Takes a call
of such an op and the types of its operands; gives the structured call and which operands it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from hemstitch.ir.calls import (
    Attention,
    Convolution,
    ConvolutionBackward,
    LibraryCall,
    Matmul,
    Operand,
    Operation,
    StructuredCall,
    Within,
)
from hemstitch.ir.structured import result_types
from hemstitch.ir.types import DType, TensorType

aten = torch.ops.aten
Described = tuple[Operation, tuple[object, ...]]  # and its operands, by their places
ATTENTION_DEFAULTS: tuple[Any, ...] = (0.0, False)  # dropout, is_causal
HOW = 6  # arguments of a convolution, from the stride to the number of groups


def structured(
    call: LibraryCall, types: Sequence[TensorType], within: Within | None
) -> tuple[StructuredCall, tuple[int, ...]] | None:
    """`types`: of the call's operands. `within`: what is wanted of a matmul, or of an attention's
    scores. None: the op, or this form of it, is none that the IR describes."""
    describe = DESCRIBED.get(call.target)
    described = describe and describe(*call.arguments, **dict(call.keywords))
    if described is None:
        return None
    operation, operands = described
    places = [operand.index for operand in operands if isinstance(operand, Operand)]
    if len(places) < len(operands) or any(types[n].dtype is DType.OPAQUE for n in places):
        return None
    if isinstance(operation, Matmul | Attention):
        operation = replace(operation, within=within)
    if not _gives(operation, [types[n] for n in places], call):
        return None
    strides = tuple(call.operand_strides[n] for n in places)
    return StructuredCall(operation, strides, call.results), tuple(places)


def _gives(operation: Operation, operands: Sequence[TensorType], call: LibraryCall) -> bool:
    """What the trace says that the call gives."""
    try:
        inferred = result_types(operation, operands)
    except ValueError:
        return False
    pairs = zip(inferred, call.results, strict=True)
    return all(
        (result is None)
        if type_ is None
        else (result is not None and type_.dtype is result[0].dtype)
        for type_, result in pairs
    )


def _matmul(a: object, b: object) -> Described:
    return Matmul(), (a, b)


def _matmul_with_addend(
    addend: object, a: object, b: object, *, beta: object = 1, alpha: object = 1
) -> Described | None:
    return (Matmul(has_addend=True), (addend, a, b)) if beta == alpha == 1 else None


def _convolution(x: object, weight: object, bias: object, *how: Any) -> Described | None:
    convolution = _described(*how)
    if convolution is None:
        return None
    operands = (x, weight) if bias is None else (x, weight, bias)
    return replace(convolution, has_bias=bias is not None), operands


def _convolution_backward(
    gradient: object, x: object, weight: object, bias_sizes: object, *rest: Any
) -> Described | None:
    convolution = _described(*rest[:HOW])
    if convolution is None:
        return None
    return ConvolutionBackward(convolution, rest[HOW]), (gradient, x, weight)


def _described(
    stride: Any, padding: Any, dilation: Any, transposed: Any, output_padding: Any, groups: Any
) -> Convolution | None:
    """None: with numbers that only a call knows, or one for all axes."""
    lists = stride, padding, dilation, output_padding
    numbers = [number for values in lists for number in values]
    is_known = all(type(number) is int for number in (*numbers, groups))
    is_each = len(set(map(len, lists))) == 1
    if not is_known or not is_each:
        return None
    return Convolution(stride, padding, dilation, transposed, output_padding, groups)


def _attention(
    *arguments: Any, attn_mask: object = None, scale: float | None = None
) -> Described | None:
    q, k, v, *rest = arguments
    dropout, is_causal = *rest, *ATTENTION_DEFAULTS[len(rest) :]
    if dropout != 0.0 or not (scale is None or isinstance(scale, float)):
        return None
    operands = (q, k, v) if attn_mask is None else (q, k, v, attn_mask)
    return Attention(bool(is_causal), scale, attn_mask is not None), operands


DESCRIBED: Mapping[object, Callable[..., Described | None]] = {
    aten.mm.default: _matmul,
    aten.bmm.default: _matmul,
    aten.addmm.default: _matmul_with_addend,
    aten.baddbmm.default: _matmul_with_addend,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}
