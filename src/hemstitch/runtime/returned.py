"""What a compiled call gives back at each position: a result, an argument, a number, a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from hemstitch.ir.dims import Dim


@dataclass(frozen=True, slots=True)
class Result:
    """The call returns the value of `graph.outputs[index]`, as a tensor of its own."""

    index: int


@dataclass(frozen=True, slots=True)
class Argument:
    """The call returns the very tensor that it was given at this position."""

    position: int


@dataclass(frozen=True, slots=True)
class ReturnedView:
    """The call returns a view of `whole`: of a result that others look into as well, or of an
    argument. Strides, and offset from where `whole` begins, in elements."""

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
    """The call returns this, known when compiled (most often None)."""

    value: object


Returned = Union[Result, ReturnedView, Argument, Number, ReturnedNumber, Fixed]
