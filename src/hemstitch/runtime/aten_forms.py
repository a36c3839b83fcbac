"""The ATen form of structured calls. Takes a call of the graph IR, gives the ATen op that
computes the same, with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hemstitch.ir.calls import (
    Attention,
    Call,
    Convolution,
    ConvolutionBackward,
    LibraryCall,
    Matmul,
    Operand,
    Operation,
    StructuredCall,
)

aten = torch.ops.aten
BATCHED = 3  # axes of matrices in batches


def aten_form(call: Call) -> LibraryCall:
    """An ATen op is its own."""
    if isinstance(call, LibraryCall):
        return call
    target, arguments, keywords = FORMS[type(call.operation)](call, call.operation)
    return LibraryCall(
        name=str(target),
        target=target,
        arguments=arguments,
        keywords=keywords,
        operand_strides=call.operand_strides,
        results=call.results,
        is_tuple=not isinstance(call.operation, Matmul | Convolution),
    )


Form = tuple[Any, tuple[object, ...], tuple[tuple[str, object], ...]]


def _matmul(call: StructuredCall, operation: Matmul) -> Form:
    (result,) = call.results
    assert result is not None
    is_batched = result[0].rank == BATCHED
    if operation.has_addend:
        target = aten.baddbmm.default if is_batched else aten.addmm.default
        return target, (Operand(0), Operand(1), Operand(2)), ()
    return aten.bmm.default if is_batched else aten.mm.default, (Operand(0), Operand(1)), ()


def _how(convolution: Convolution) -> tuple[object, ...]:
    return (
        *(convolution.stride, convolution.padding, convolution.dilation),
        *(convolution.transposed, convolution.output_padding, convolution.groups),
    )


def _convolution(call: StructuredCall, operation: Convolution) -> Form:
    bias = Operand(2) if operation.has_bias else None
    return aten.convolution.default, (Operand(0), Operand(1), bias, *_how(operation)), ()


def _convolution_backward(call: StructuredCall, operation: ConvolutionBackward) -> Form:
    of_bias = call.results[2]
    sizes = None if of_bias is None else of_bias[0].shape
    operands = Operand(0), Operand(1), Operand(2)
    how = _how(operation.convolution)
    return aten.convolution_backward.default, (*operands, sizes, *how, operation.wanted), ()


def _attention(call: StructuredCall, operation: Attention) -> Form:
    mask = Operand(3) if operation.has_mask else None
    return (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        (Operand(0), Operand(1), Operand(2), 0.0, operation.is_causal),
        (("attn_mask", mask), ("scale", operation.scale)),
    )


FORMS: Mapping[type[Operation], Callable[[StructuredCall, Any], Form]] = {
    Matmul: _matmul,
    Convolution: _convolution,
    ConvolutionBackward: _convolution_backward,
    Attention: _attention,
}
