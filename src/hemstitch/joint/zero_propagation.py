"""Operations whose result is zero wherever an operand is."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import Node

from hemstitch.capture.traced_nodes import arguments_of, is_view, name_of

aten = torch.ops.aten

# At which places there are such operands, of which one alone is enough.
ZERO_AT = {
    **dict.fromkeys((aten.mul.Tensor, aten.mm.default, aten.bmm.default), (0, 1)),
    **dict.fromkeys(
        (
            *(aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar, aten.neg.default),
            *(aten.clone.default, aten._to_copy.default, aten.sum.default),
            *(aten.sum.dim_IntList, aten.slice_backward.default, aten.select_backward.default),
            *(aten.reshape.default, aten.threshold_backward.default, aten.gelu_backward.default),
            *(aten.tanh_backward.default, aten.sigmoid_backward.default),
            *(aten.silu_backward.default, aten.native_dropout_backward.default),
            *(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default),
        ),
        (0,),
    ),
}


def zero_wherever(node: Node) -> Collection[Node]:
    """Operands each of which, where it is zero, makes the result so."""
    if is_view(node):
        return node.all_input_nodes
    places = ZERO_AT.get(node.target, ())  # type: ignore[call-overload]
    operands = [arguments_of(node)[place] for place in places]
    return [operand for operand in operands if isinstance(operand, Node)]


def zero_where_all(node: Node) -> Collection[Node]:
    """Operands that make the result zero where all of them are: none if nothing is known."""
    match node.target, arguments_of(node):
        case ((aten.add.Tensor | aten.sub.Tensor), (Node() as one, Node() as other)):
            return one, other
        case aten.where.self, (_, Node() as one, Node() as other):
            return [operand for operand in (one, other) if not is_zero(operand)]
        case aten.masked_fill.Scalar, (Node() as x, _, 0):
            return (x,)
        case aten.cat.default, (parts, *_):
            return parts  # type: ignore[no-any-return]
    return ()


def is_zero(node: Node) -> bool:
    """It is made as zeros."""
    match name_of(node), arguments_of(node):
        case (("zeros" | "new_zeros" | "zeros_like"), _):
            return True
        case "full", (_, value):
            return bool(value == 0)
        case (("scalar_tensor" | "full_like" | "new_full"), (*_, value)):
            return bool(value == 0)
        case "expand", (x, *_):
            return is_zero(x)
    return False
