"""Printed sources as modules."""

from __future__ import annotations

from pathlib import Path

from hemstitch.toolchain.triton_source import kernel_of

TEXT = '"""A module of test_source."""\n\n\ndef one():\n    return 1\n'


def test_a_text_is_written_once() -> None:
    """Who has the module may be reading it, also after it is forgotten here."""
    first = kernel_of(TEXT, "one")
    path = Path(first.__code__.co_filename)
    before = path.stat()
    kernel_of.cache_clear()
    assert kernel_of(TEXT, "one")() == first() == 1
    assert path.read_text() == TEXT
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [each.suffix for each in path.parent.glob(f"{path.stem}.*")] == [".py"]
