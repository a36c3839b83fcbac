"""Which convolutions are written out as products of matrices, and how."""

from __future__ import annotations

from collections.abc import Sequence

from hemstitch.fusion.convolutions import Convolution, convolution_of
from hemstitch.fusion.few_channels import FewChannels, few_channels_of
from hemstitch.fusion.winograd import Winograd, winograd_of
from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import LibraryCall, Node


def opened_convolution(
    builder: Builder, call: LibraryCall, inputs: Sequence[Node]
) -> Convolution | Winograd | FewChannels | None:
    """How the call is written out; None if it is not."""
    return (
        convolution_of(builder, call, inputs)
        or winograd_of(builder, call, inputs)
        or few_channels_of(builder, call, inputs)
    )
