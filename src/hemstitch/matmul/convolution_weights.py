"""Convolutions by the library whose weights are frozen. Takes a graph, gives one in which a call of
its own lays such a weight out as the library wants it, which the weight alone decides
(`rewrites/weight_folding.py`); else the library does so in each convolution.

Convolutions that are products of matrices stay as they are: kernels pack what they multiply with.
Those that multiply sums of their windows have these as a further operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Convolution, LibraryCall, Operand, StructuredCall
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Graph, Node, Op, call_of
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.matmul.patterns.registry import pattern_of
from hemstitch.rewrites.engine import Rule, rewrite
from hemstitch.rewrites.weight_folding import Leaves, frozen_leaves

RANK = 4  # of images
LAY = torch.ops.mkldnn._reorder_convolution_weight.default
CONVOLVE = torch.ops.mkldnn._convolution_pointwise.default


def lay_out_convolution_weights(
    graph: Graph, builder: Builder, inlines_matmuls: bool, exact: bool
) -> Graph:
    """`graph` itself where no weight is frozen. `inlines_matmuls`: kernels may multiply, and
    `exact`: by patterns that are exact alone."""
    leaves = frozen_leaves(graph)
    if not any(leaves.values()):
        return graph
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return graph
    rule = Rule(
        frozenset({Op.RESULT}), _Laying(leaves, _types(), inlines_matmuls, exact).convolution
    )
    return rewrite(graph, [rule], builder)


def _types() -> frozenset[DType]:
    """Of elements, that the library does this for."""
    has_bf16: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return frozenset({DType.F32, DType.BF16} if has_bf16 else {DType.F32})


@dataclass(frozen=True, slots=True)
class _Laying:
    leaves: Mapping[Node, Leaves]
    types: frozenset[DType]
    inlines_matmuls: bool
    exact: bool

    def convolution(self, builder: Builder, result: Node) -> Node | None:
        """a convolution with a frozen weight -> one with that weight laid out"""
        call, operands = call_of(result), result.inputs[0].inputs
        match call:
            case StructuredCall(operation=Convolution() as convolution):
                image, matrix = operands[:2]
            case _:
                return None
        is_laid = self.leaves.get(matrix) and image is not matrix and not convolution.transposed
        if not is_laid or image.type.rank != RANK or image.type.dtype not in self.types:
            return None
        pattern = None
        if self.inlines_matmuls:
            pattern = pattern_of(builder, call, operands, exact=self.exact)
        if pattern is not None:
            sums = pattern.constant_operand()
            return None if sums is None else _with_sums(builder, result, convolution, sums)
        how = (
            *(convolution.padding, convolution.stride),
            *(convolution.dilation, convolution.groups),
        )
        x_strides, strides, *of_bias = call.operand_strides
        laid = builder.call(_layout(strides, image.shape, how), (matrix,))[0]
        assert laid is not None
        bias = Operand(2) if convolution.has_bias else None
        prepacked = LibraryCall(
            name=str(CONVOLVE),
            target=CONVOLVE,
            arguments=(Operand(0), Operand(1), bias, *how, "none", (), ""),
            keywords=(),
            operand_strides=(x_strides, None, *of_bias),
            results=call.results,
        )
        return builder.call(prepacked, (image, laid, *operands[2:]))[0]


def _with_sums(builder: Builder, result: Node, convolution: Convolution, sums: Node) -> Node | None:
    """The call does not look at them."""
    call, operands = call_of(result), result.inputs[0].inputs
    strides = (*call.operand_strides, contiguous_strides(sums.shape))
    known = replace(convolution, has_weight_sums=True)
    return builder.call(StructuredCall(known, strides, call.results), (*operands, sums))[0]


def _layout(
    strides: tuple[Dim, ...] | None, image: Sequence[Dim], how: tuple[object, ...]
) -> LibraryCall:
    """For images of this shape, where it is known; else for any. Only the library knows the shape
    of what it gives."""
    is_known = all(isinstance(size, int) for size in image)
    return LibraryCall(
        name=str(LAY),
        target=LAY,
        arguments=(Operand(0), *how, tuple(image) if is_known else None),
        keywords=(),
        operand_strides=(strides,),
        results=((TensorType((), DType.OPAQUE), ()),),
    )
