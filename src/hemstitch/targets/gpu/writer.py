"""Lines of a function while it is printed. A line may belong to a buffer, and go when nothing reads
what it stores there."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager

from hemstitch.kernel_ir.nodes import Buffer

STEP = "    "


class Writer:
    """Indented text."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, Buffer | None]] = []
        self._depth = 1

    def line(self, text: str, stores: Buffer | None = None) -> None:
        self._lines.append((STEP * self._depth + text, stores))

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines below `head`, which goes where none are left."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def text(self, dead: Container[Buffer]) -> list[str]:
        """Without what is stored in dead buffers, and the loops that then are empty."""
        lines = [line for line, buffer in self._lines if buffer is None or buffer not in dead]
        reversed_lines: list[str] = []
        for line in reversed(lines):
            below = reversed_lines[-1] if reversed_lines else ""
            if line.endswith(":") and _depth(below) <= _depth(line):
                continue
            reversed_lines.append(line)
        return reversed_lines[::-1]


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
