"""The object cache on disk. Takes a key and a function that compiles, gives machine code.

Entries are authenticated, since loading machine code runs it. Each file begins with an HMAC of its
name and content, with a key that only this user can read. A damaged, moved or foreign file is
ignored, and the kernel is compiled again.
"""

from __future__ import annotations

import hmac
import os
import secrets
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from hemstitch.cache.records import evict_oldest, folder, read, write

TAG_BYTES = 32  # of the HMAC, at the beginning
KEY_BYTES = 32
MAX_BYTES = 256 << 20  # bytes of all files: some 5,000 kernels
OTHERS = 0o077  # permission bits of group and others


def machine_code(name: str, make: Callable[[], bytes]) -> bytes:
    """The machine code of `make`, from disk if it was compiled before. `name`: all that it depends
    on, including the processor."""
    key = _key()
    if key is None:
        return make()
    path = _place(name)
    code = _authenticated(path, key)
    if code is None:
        code = make()
        write(path, _tag(key, path.name, code) + code)
        if path.name.startswith("0"):
            # For one digest in sixteen: a scan of thousands of files takes longer than some
            # kernels.
            evict_oldest(path.parent, MAX_BYTES)
    return code


def is_cached(name: str) -> bool:
    """Whether the file exists; its HMAC is not checked."""
    return _place(name).exists()


def _place(name: str) -> Path:
    return folder("code") / sha256(name.encode()).hexdigest()


def _authenticated(path: Path, key: bytes) -> bytes | None:
    content = read(path) or b""
    tag, code = content[:TAG_BYTES], content[TAG_BYTES:]
    return code if hmac.compare_digest(tag, _tag(key, path.name, code)) else None


def _tag(key: bytes, name: str, code: bytes) -> bytes:
    return hmac.digest(key, name.encode() + code, "sha256")


def _key() -> bytes | None:
    """The user's key, created once; None if it cannot be kept secret."""
    path = folder("key")
    with suppress(OSError):
        if not path.exists():
            _create_key(path)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid == os.getuid() and not status.st_mode & OTHERS:
                key = file.read()
                return key if len(key) == KEY_BYTES else None
    return None


def _create_key(path: Path) -> None:
    """Create the file atomically; the first process wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")  # readable by this user only
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink()
