"""In which order of its axes eager lays out what an elementwise operation gives: as PyTorch's
TensorIterator decides, by the strides of all operands one after the other. PyTorch's own functions
that say so convert halves to f32 first, and so lose the gaps and the repeated axes of an operand;
and they leave out axes of size 1, which have strides too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from hemstitch.capture.traced_nodes import are_hinted, hints_of

aten = torch.ops.aten

# Arguments that are operands also where they are numbers, as in `x + 1`; but of these operations.
NUMBERS = ("self", "other", "exponent")
BESIDE = (aten.pow.Tensor_Scalar, aten.lerp.Scalar)
CHANNELS_LAST = {4: (0, 2, 3, 1)}  # of volumes TensorIterator asks nothing
# Views, copies, what eager computes in several steps, or lays out in a way of its own.
OTHERS = (
    *("conj_physical", "positive", "clone", "pow.Scalar", "mvlgamma", "threshold_backward"),
    *("deg2rad", "rad2deg", "hardtanh", "relu6", "clamp", "clamp_min", "clamp_max", "ldexp.Tensor"),
    *("nan_to_num", "masked_fill.Scalar", "isinf", "isfinite", "round.decimals"),
)


class StridedLayout(NamedTuple):
    """Of a tensor; strides in elements, 0 along an axis that is repeated."""

    shape: Sequence[int]
    strides: Sequence[int]

    @staticmethod
    def of(x: Tensor) -> StridedLayout:
        return StridedLayout(hints_of(x.shape), hints_of(x.stride()))

    def is_dense(self, order: Sequence[int]) -> bool:
        """Whether the axes in this order, the outermost first, leave no gap."""
        step = 1
        for axis in reversed(order):
            if self.shape[axis] != 1:
                if self.strides[axis] != step:
                    return False
                step *= self.shape[axis]
        return True

    def spread(self, shape: Sequence[int]) -> StridedLayout:
        """As an operand of a result of this shape."""
        before = len(shape) - len(self.shape)
        own = zip(self.shape, shape[before:], self.strides)
        strides = (0 if size == 1 != whole else stride for size, whole, stride in own)
        return StridedLayout(shape, [*[0] * before, *strides])

    def converted(self) -> StridedLayout:
        """To another type: what has no gaps keeps its strides."""
        by_stride = sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis])
        return self if self.is_dense(by_stride) else dense(self.shape, axis_order([self]))


def dense(shape: Sequence[int], order: Sequence[int]) -> StridedLayout:
    """`order`: the axes, the outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return StridedLayout(shape, strides)


def is_pointwise(op: Any) -> bool:
    """Whether eager computes it with one TensorIterator, into a new tensor."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return False
    name = str(op).removeprefix("aten.").removesuffix(".default")
    is_one = torch.Tag.pointwise in op.tags or op is aten.floor_divide.default
    return is_one and not op._schema.is_mutable and name not in OTHERS


def axis_order(operands: Sequence[StridedLayout]) -> list[int]:
    """`TensorIteratorBase::reorder_dimensions`: the outermost first. Two axes of which no operand
    says anything may lie either way, so that no key sorts them."""
    inner = [*reversed(range(len(operands[0].shape)))]
    for last in range(1, len(inner)):
        place = last
        for before in reversed(range(last)):
            step = _step(operands, inner[before], inner[place])
            if step < 0:
                break
            if step > 0:
                inner[before], inner[place] = inner[place], inner[before]
                place = before
    return inner[::-1]


def _step(operands: Sequence[StridedLayout], a: int, b: int) -> int:
    """Whether axis `a` lies outside (1) or inside (-1) of `b`."""
    for shape, strides in operands:
        if strides[a] and strides[b]:
            if strides[a] != strides[b]:
                return 1 if strides[a] > strides[b] else -1
            if shape[a] > shape[b]:
                return 1
    return 0


def are_usual(arguments: Sequence[Any]) -> bool:
    """Whether PyTorch's word holds: of what lies as new tensors do, or has sizes read from data."""
    return all(map(_is_usual, _with_axes(arguments)))


def _with_axes(operands: Sequence[Any]) -> list[Tensor]:
    return [x for x in operands if isinstance(x, Tensor) and x.dim()]


def _is_usual(x: Tensor) -> bool:
    if x.layout is not torch.strided or not are_hinted((*x.shape, *x.stride())):
        return True
    layout = StridedLayout.of(x)
    return layout == dense(layout.shape, range(x.dim()))


def elementwise_order(op: Any, arguments: Sequence[Any], result: Tensor) -> list[int] | None:
    """The axes of `result`, the outermost first; None where PyTorch's word holds."""
    operands = _operands(op, arguments)
    tensors = _with_axes(operands)
    if not all(are_hinted((*x.shape, *x.stride())) for x in (*tensors, result)):
        return None
    layouts = [StridedLayout.of(x) for x in tensors]
    if result.device.type == "cpu":  # a kernel for a GPU converts what it reads
        common = _common_dtype(operands, result)
        layouts = [y if x.dtype is common else y.converted() for x, y in zip(tensors, layouts)]
    shape = hints_of(result.shape)
    if not math.prod(shape):
        return None
    if len(layouts) == len(operands) and all(layout.shape == shape for layout in layouts):
        for order in (range(len(shape)), CHANNELS_LAST.get(len(shape))):
            if order is not None and all(layout.is_dense(order) for layout in layouts):
                return [*order]
        if all(layout == layouts[0] == layout.converted() for layout in layouts):
            return None
    return axis_order([layout.spread(shape) for layout in layouts])


def _operands(op: Any, arguments: Sequence[Any]) -> list[Any]:
    """Tensors, and numbers that eager makes tensors of no axes."""
    named = zip(op._schema.arguments, arguments)
    return [
        value
        for argument, value in named
        if isinstance(value, Tensor)
        or (value is not None and argument.name in NUMBERS and op not in BESIDE)
    ]


def _common_dtype(operands: Sequence[Any], result: Tensor) -> torch.dtype:
    """To which eager converts them first."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    common: torch.dtype = elementwise_dtypes(*operands, type_promotion_kind=kind)[1]
    is_float = result.dtype.is_floating_point and not common.is_floating_point
    return result.dtype if is_float else common
