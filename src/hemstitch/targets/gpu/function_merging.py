"""Nests of one phase that differ in nothing but the tensors they are about, as an optimiser's that
updates many parameters: one function does them all, and its tiles say whose turn it is. So the code
is a fraction, and with it the time to compile it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_NAME = re.compile(r"\b[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"^\s*(?:for )?([\w, ]+?) (?:=|in) ", re.MULTILINE)


def canonical_text(text: str, parameters: Sequence[str]) -> str:
    """The body of a function with names that depend on nothing but where they stand: equal for
    bodies that do the same with their parameters."""
    own = {name for targets in _ASSIGNED.findall(text) for name in targets.split(", ")}
    names = {name: f"p{number}" for number, name in enumerate(parameters)}

    def renamed(match: re.Match[str]) -> str:
        name = match[0]
        return names.setdefault(name, f"n{len(names)}") if name in names or name in own else name

    return _NAME.sub(renamed, text)


def parameters_of(name: str, count: int) -> Iterator[str]:
    """What stands for the buffer `name` of each of so many nests."""
    return (f"{name}_of_{number}" for number in range(count))


def select_by_number(names: Sequence[str], which: str, first: int = 0) -> str:
    """The one of `names` with the number `which`, from `first` on."""
    if len(names) == 1:
        return names[0]
    half = len(names) // 2
    left = select_by_number(names[:half], which, first)
    right = select_by_number(names[half:], which, first + half)
    return f"tl.where({which} < {first + half}, {left}, {right})"
