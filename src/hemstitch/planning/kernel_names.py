"""Readable kernel names: k3_softmax_add instead of k3."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hemstitch.ir.graph import Node, Origin

MAX_OPS = 4  # in a name


def kernel_name(number: int, members: Sequence[Node], origins: Mapping[Node, Origin]) -> str:
    """From the framework's ops that the members came from, in order, without repetitions."""
    ops = dict.fromkeys(_short(origins[node].op) for node in members if node in origins)
    names = [op for op in ops if op][:MAX_OPS]
    return "_".join([f"k{number}", *names]) or f"k{number}"


def _short(op: str) -> str:
    """aten._softmax.default -> softmax; only letters, digits and underscores."""
    parts = op.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return re.sub(r"\W", "_", name).strip("_")
