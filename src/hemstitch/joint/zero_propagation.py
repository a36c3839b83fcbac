"""Operations whose result is zero wherever an operand is."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import Node

from hemstitch.capture.traced_nodes import arguments_of, is_view

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
