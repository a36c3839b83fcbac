"""A progress bar on the terminal, around an iteration over pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO, TypeVar

Piece = TypeVar("Piece")
WIDTH = 30  # characters
CLEAR = "\r\033[K"


def with_bar(pieces: Sequence[Piece], title: str, stream: TextIO) -> Iterator[Piece]:
    """Nothing is written to a file or a pipe."""
    if not stream.isatty():
        yield from pieces
        return
    try:
        for done, piece in enumerate(pieces):
            bar = "#" * (WIDTH * done // len(pieces))
            stream.write(f"{CLEAR}{title} [{bar:{WIDTH}}] {done}/{len(pieces)}")
            stream.flush()
            yield piece
    finally:
        stream.write(CLEAR)
        stream.flush()
