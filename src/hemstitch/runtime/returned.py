"""What a compiled call returns at each position: a result, an argument, a number, a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from hemstitch.ir.dims import Dim


@dataclass(frozen=True, slots=True)
class Result:
    """The call returns the value of `graph.outputs[index]`, as a separate tensor."""

    index: int


@dataclass(frozen=True, slots=True)
class Argument:
    """The call returns its argument at this position, the same tensor object."""

    position: int


@dataclass(frozen=True, slots=True)
class ReturnedView:
    """The call returns a view of `whole`, a result with several views or an argument. Strides, and
    the offset relative to that of `whole`, in elements."""

    whole: Result | Argument
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim


@dataclass(frozen=True, slots=True)
class Number:
    """The call returns a size."""

    value: Dim


@dataclass(frozen=True, slots=True)
class ReturnedNumber:
    """The call returns the one element of `graph.outputs[index]`, as a Python number."""

    index: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """The call returns a compile-time constant, most often None."""

    value: object


Returned = Union[Result, ReturnedView, Argument, Number, ReturnedNumber, Fixed]
