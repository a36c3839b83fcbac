"""Calls of the library: structured ones, whose operands and attributes the compiler knows, and ATen
ops as they are. Takes nothing; gives the attributes of the IR's calls, their result types and
strides. What runs a structured call is its ATen form (`runtime/aten_forms.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hemstitch.ir.dims import Dim
from hemstitch.ir.types import TensorType

Strides = tuple[Dim, ...]
ResultTypes = tuple[tuple[TensorType, Strides] | None, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """In a LibraryCall's arguments: the i-th input of the node."""

    index: int


class MatmulAxis(Enum):
    """An axis of a matmul's result, or the one that it adds up along."""

    ROW = "row"
    COLUMN = "column"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Within:
    """The band of a matmul that is wanted: low <= high + distance. If `low` and `high` are a row
    and a column, nobody reads the other elements, which may be any finite numbers. If one is a
    step, an operand is zero in the other terms. To compute all of them is right as well."""

    low: MatmulAxis
    high: MatmulAxis
    distance: int = 0

    def __str__(self) -> str:
        farther = f" plus {self.distance}" if self.distance else ""
        return f"{self.low.value} within {self.high.value}{farther}"

    @property
    def transposed(self) -> Within:
        """That of the transposed result: both operands transposed and swapped."""
        other = {
            MatmulAxis.ROW: MatmulAxis.COLUMN,
            MatmulAxis.COLUMN: MatmulAxis.ROW,
            MatmulAxis.STEP: MatmulAxis.STEP,
        }
        return Within(other[self.low], other[self.high], self.distance)


@dataclass(frozen=True, slots=True)
class Matmul:
    """Operands (a, b), or (addend, a, b): a[..., m, k] @ b[..., k, n], plus the addend broadcast to
    [..., m, n]. At most one batch axis. `within`: the band that is wanted."""

    has_addend: bool = False
    within: Within | None = None


@dataclass(frozen=True, slots=True)
class Convolution:
    """Operands (x[count, channels, *size], weight[features, channels / groups, *window]), then
    bias[features] if `has_bias`, then what frozen weights alone decide if `has_weight_sums`: the
    sums of the windows that a fast algorithm multiplies with, which the library does not read.
    Transposed: weight[channels, features / groups, *window]."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    has_bias: bool = False
    has_weight_sums: bool = False


@dataclass(frozen=True, slots=True)
class ConvolutionBackward:
    """Operands (gradient of the result, x, weight) of `convolution`. Results: the gradients of x,
    of weight and of bias, as far as `wanted`."""

    convolution: Convolution
    wanted: tuple[bool, bool, bool]


@dataclass(frozen=True, slots=True)
class Attention:
    """Operands (q[batch, heads, rows, features], k and v[batch, heads, keys, features]), then a
    mask that is added to the scores, if `has_mask`. Results: the output, laid out by the library,
    and the logarithm of each row's sum of exponentials. `scale`: None is 1 / sqrt(features).
    `within`: the band of the scores that the mask lets through."""

    is_causal: bool = False
    scale: float | None = None
    has_mask: bool = False
    within: Within | None = None


Operation = Matmul | Convolution | ConvolutionBackward | Attention


@dataclass(frozen=True, slots=True, eq=False)
class StructuredCall:
    """Compared by identity: never merged. `operand_strides[i]`: those that input i has for the
    library. `results`: type and strides of each, None where it is not wanted."""

    operation: Operation
    operand_strides: tuple[Strides | None, ...]
    results: ResultTypes


@dataclass(frozen=True, slots=True, eq=False)
class LibraryCall:
    """An ATen op that the compiler does not look into. Compared by identity: never merged.

    `target` is the callable (an ATen overload), opaque to everything but the runtime.
    `arguments` and `keywords` may nest tuples and hold `Operand`, sizes and plain constants.
    `operand_strides[i]`: the strides that input i had when traced; the runtime supplies them.
    `results`: one entry per result: its type and strides, or None where the result is no tensor.
    """

    name: str
    target: object
    arguments: tuple[object, ...]
    keywords: tuple[tuple[str, object], ...]
    operand_strides: tuple[Strides | None, ...]
    results: ResultTypes
    is_tuple: bool = False  # the call returns a sequence even if it has one result
    effects: bool = False  # stateful or mutating: neither dropped, repeated nor reordered
    holds_operands: bool = False  # after it returns somebody looks into their memory, as views do
    may_keep_operands: bool = False  # unknown code sees them and may keep them for good
    in_place: object = None  # the callable that writes the only result over the first argument

    def __str__(self) -> str:
        return self.name


Call = LibraryCall | StructuredCall


def has_effects(call: object) -> bool:
    """Stateful or mutating: neither dropped, repeated nor reordered."""
    return isinstance(call, LibraryCall) and call.effects


def holds_operands(call: object) -> bool:
    """After it returns somebody looks into its operands' memory."""
    return isinstance(call, LibraryCall) and call.holds_operands


def may_keep_operands(call: object) -> bool:
    """Unknown code sees its operands and may keep them for good."""
    return isinstance(call, LibraryCall) and call.may_keep_operands
