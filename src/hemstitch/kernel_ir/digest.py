"""A digest of kernel IR without the names of kernels: the key of the machine code cache.

Equal records have equal digests. The digest covers every field but `why`, also those that the text
form leaves out (bounds of computed indices, weights). Axes and buffers are compared by identity:
each is numbered in the order of its first occurrence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from hashlib import sha256
from typing import Any

from hemstitch.ir.dims import SymbolicDim

REASON = "why"  # a field that only comments in the code depend on


def digest(*values: object) -> str:
    """The SHA-256 digest of `values`: records, enums, numbers, text, None, and tuples of them.
    Raises TypeError for anything else."""
    writer = _Writer()
    for value in values:
        writer.add(value)
    return sha256("\n".join(writer.parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Record:
    """The fields of a dataclass. `is_itself`: instances are compared by identity."""

    name: str
    names: tuple[str, ...]
    is_itself: bool


@cache
def _record(kind: Any) -> _Record:
    names = tuple(attribute.name for attribute in fields(kind) if attribute.name != REASON)
    return _Record(kind.__name__, names, kind.__eq__ is object.__eq__)


@dataclass(slots=True)
class _Writer:
    """Serialises values to `parts`. `numbers`: of the objects compared by identity."""

    parts: list[str] = field(default_factory=list)
    numbers: dict[object, int] = field(default_factory=dict)

    def add(self, value: object) -> None:
        kind: Any = type(value)
        if kind is str or value is None or kind is int or kind is bool:
            self.parts.append(repr(value))
        elif kind is tuple:
            assert isinstance(value, tuple)
            self._sequence(f"tuple {len(value)}", value)
        elif kind is float:
            assert isinstance(value, float)
            self.parts.append(f"float {value.hex()}")
        elif kind is SymbolicDim:
            self.parts.append(f"size {value}")
        elif isinstance(value, Enum):
            self.parts.append(f"{kind.__name__} {value.name}")
        else:
            self._fields(value, _record(kind))

    def _sequence(self, opening: str, values: Iterable[object]) -> None:
        self.parts.append(opening)
        for value in values:
            self.add(value)

    def _fields(self, value: object, record: _Record) -> None:
        opening = record.name
        if record.is_itself:
            number = self.numbers.get(value)
            if number is not None:
                self.parts.append(f"{opening} again {number}")
                return
            self.numbers[value] = len(self.numbers)
        self._sequence(opening, (getattr(value, name) for name in record.names))
