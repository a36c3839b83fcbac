"""Names a person recognises: k3_softmax_add says more than k3."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hemstitch.ir.graph import Node, Origin

MOST_OPS = 4


def kernel_name(number: int, members: Sequence[Node], origins: Mapping[Node, Origin]) -> str:
    """From the framework's ops that the members came from, in order, repeats left out."""
    ops = dict.fromkeys(_short(origins[node].op) for node in members if node in origins)
    words = [op for op in ops if op][:MOST_OPS]
    return "_".join([f"k{number}", *words]) or f"k{number}"


def _short(op: str) -> str:
    """aten._softmax.default -> softmax; only letters, digits and underscores."""
    parts = op.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return re.sub(r"\W", "_", name).strip("_")
