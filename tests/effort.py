"""How much is tried. With HEMSTITCH_TESTS=all every case, which takes an hour and more; otherwise
some of each kind, so that all ends within minutes on the slowest processor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

IS_WHOLE = os.environ.get("HEMSTITCH_TESTS") == "all"
DRAWN = 1000 if IS_WHOLE else 150  # random graphs

Case = TypeVar("Case")


def some(chosen: Sequence[Case], others: Sequence[Case]) -> list[Case]:
    """`others` only where everything is tried."""
    return [*chosen, *others] if IS_WHOLE else [*chosen]


def examples(most: int) -> int:
    """Of a property."""
    return most if IS_WHOLE else most // 3
