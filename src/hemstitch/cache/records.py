"""Small records on disk, one in each file. Takes a path and a record, gives the record in any later
process. A lost record only costs its computation."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any


def folder(name: str) -> Path:
    """A folder of the cache; an impossible path for a user without a home."""
    try:
        home = Path.home()
    except RuntimeError:
        home = Path(os.devnull)
    return home / ".cache" / "hemstitch" / name


def load_record(path: Path) -> Any:
    """None for a missing or damaged file."""
    try:
        return json.loads(read(path) or b"")
    except (ValueError, RecursionError):
        return None


def read(path: Path) -> bytes | None:
    """None for a missing file. Updates the time stamp, by which the oldest files are evicted."""
    try:
        content = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    return content


def store_record(path: Path, record: object) -> None:
    write(path, json.dumps(record).encode())


def write(path: Path, content: bytes) -> None:
    """Atomic: another process reads the old file or the new one."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink()
            raise


def evict_oldest(place: Path, most: int) -> None:
    """Delete the oldest files until the folder has at most `most` bytes."""
    with suppress(OSError):
        with os.scandir(place) as entries:  # another process may delete files meanwhile
            files = [(entry.stat(), entry.path) for entry in entries]
        size = sum(status.st_size for status, _ in files)
        for status, path in sorted(files, key=lambda file: file[0].st_mtime):
            if size <= most:
                return
            Path(path).unlink()
            size -= status.st_size


@cache
def source_digest() -> str:
    """A digest of this package's sources, so that a change of them invalidates plans and
    kernels."""
    digest = sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
