"""What structured calls give: takes an operation and the types of its operands, gives the types of
its results. ValueError says which operand does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hemstitch.ir.calls import Attention, Convolution, ConvolutionBackward, Matmul, Operation
from hemstitch.ir.dims import Dim
from hemstitch.ir.types import TensorType

Types = Sequence[TensorType]


def result_types(operation: Operation, operands: Types) -> tuple[TensorType | None, ...]:
    """None: a result that is not wanted."""
    least, most = OPERAND_COUNTS[type(operation)](operation)
    if not least <= len(operands) <= most:
        raise ValueError(f"has {len(operands)} operands, not {least} to {most}")
    dtypes = {operand.dtype for operand in operands[:least]}
    if len(dtypes) > 1:
        raise ValueError(f"has operands of types {', '.join(sorted(t.value for t in dtypes))}")
    return RESULT_TYPES[type(operation)](operation, operands)


def _matmul(operation: Matmul, operands: Types) -> tuple[TensorType]:
    a, b = operands[-2:]
    if a.rank not in (2, 3) or b.rank != a.rank:
        raise ValueError(f"multiplies {a} with {b}: no matrices in equal batches")
    _agree("batches", a.shape[:-2], b.shape[:-2])
    _agree("steps", a.shape[-1:], b.shape[-2:-1])
    return (TensorType((*a.shape[:-1], b.shape[-1]), a.dtype),)


def _convolution(operation: Convolution, operands: Types) -> tuple[TensorType]:
    x, weight = operands[:2]
    rank = len(operation.stride)
    if x.rank != rank + 2 or weight.rank != x.rank:
        raise ValueError(f"convolves {x} with {weight} along {rank} axes")
    inner, outer = (0, 1) if operation.transposed else (1, 0)
    groups = operation.groups
    channels = weight.shape[inner] * (1 if operation.transposed else groups)
    _agree("channels", x.shape[1:2], (channels,))
    features = weight.shape[outer] * (groups if operation.transposed else 1)
    resize = _transposed_size if operation.transposed else _size
    sizes = (resize(operation, axis, x, weight) for axis in range(rank))
    return (TensorType((x.shape[0], features, *sizes), x.dtype),)


def _size(operation: Convolution, axis: int, x: TensorType, weight: TensorType) -> Dim:
    reach = operation.dilation[axis] * (weight.shape[axis + 2] - 1) + 1
    room = x.shape[axis + 2] + 2 * operation.padding[axis] - reach
    return room // operation.stride[axis] + 1


def _transposed_size(operation: Convolution, axis: int, x: TensorType, weight: TensorType) -> Dim:
    reach = operation.dilation[axis] * (weight.shape[axis + 2] - 1) + 1
    spread = (x.shape[axis + 2] - 1) * operation.stride[axis] + reach
    return spread - 2 * operation.padding[axis] + operation.output_padding[axis]


def _convolution_backward(
    operation: ConvolutionBackward, operands: Types
) -> tuple[TensorType | None, ...]:
    gradient, x, weight = operands
    (result,) = _convolution(operation.convolution, (x, weight))
    _agree("sizes of the gradient", gradient.shape, result.shape)
    bias = TensorType((result.shape[1],), weight.dtype)
    wanted = zip((x, weight, bias), operation.wanted)
    return tuple(type_ if is_wanted else None for type_, is_wanted in wanted)


def _attention(operation: Attention, operands: Types) -> tuple[TensorType, TensorType]:
    q, k, v = operands[:3]
    if not q.rank == k.rank == v.rank == 4:
        raise ValueError(f"attends from {q} to {k} and {v}")
    _agree("batches", q.shape[:1], k.shape[:1])
    _agree("keys", k.shape[:3], v.shape[:3])
    _agree("features", q.shape[3:], k.shape[3:])
    output = TensorType((*q.shape[:3], v.shape[3]), q.dtype)
    return output, TensorType(q.shape[:3], q.dtype.compute)


def _agree(what: str, sizes: Sequence[Dim], others: Sequence[Dim]) -> None:
    """Sizes that only a call knows are taken to agree."""
    pairs = zip(sizes, others, strict=True)
    if any(isinstance(m, int) and isinstance(n, int) and m != n for m, n in pairs):
        raise ValueError(f"{what} {tuple(sizes)} meet {tuple(others)}")


OPERAND_COUNTS: Mapping[type[Operation], Callable[[Any], tuple[int, int]]] = {
    Matmul: lambda operation: (2 + operation.has_addend,) * 2,
    Convolution: lambda operation: (
        2 + operation.has_bias,
        2 + operation.has_bias + operation.has_weight_sums,
    ),
    ConvolutionBackward: lambda _: (3, 3),
    Attention: lambda operation: (3, 3 + operation.has_mask),
}

RESULT_TYPES: Mapping[type[Operation], Callable[[Any, Types], tuple[TensorType | None, ...]]] = {
    Matmul: _matmul,
    Convolution: _convolution,
    ConvolutionBackward: _convolution_backward,
    Attention: _attention,
}
