"""Which convolutions are written out as products of matrices, and how."""

from __future__ import annotations

from collections.abc import Sequence

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import LibraryCall, Node
from hemstitch.matmul.patterns.convolutions import Convolution, convolution_of
from hemstitch.matmul.patterns.direct_convolution import FewChannels, few_channels_of
from hemstitch.matmul.patterns.winograd import Winograd, winograd_of


def opened_convolution(
    builder: Builder, call: LibraryCall, inputs: Sequence[Node]
) -> Convolution | Winograd | FewChannels | None:
    """How the call is written out; None if it is not."""
    return (
        convolution_of(builder, call, inputs)
        or winograd_of(builder, call, inputs)
        or few_channels_of(builder, call, inputs)
    )
