"""Machine code on disk, by what it was made from. Takes a key and what makes it, gives bytes.

Loading machine code is running it. So each file carries a checksum that only this user can make
(HMAC, with a key that nobody else may read), over its name and its content: what is damaged, moved
or somebody else's is as if it were not there, and compiled again.
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

from hemstitch.cache.records import folder, forget_oldest, read, write

SEAL = 32  # bytes, in front
KEY = 32
MAX_BYTES = 256 << 20  # bytes of all files: some 5,000 kernels
OTHERS = 0o077  # of a file's mode


def machine_code(name: str, make: Callable[[], bytes]) -> bytes:
    """What `make` gives; from disk if it was made before. `name`: says all that it depends on, the
    processor among it."""
    key = _key()
    if key is None:
        return make()
    path = _place(name)
    code = _unsealed(path, key)
    if code is None:
        code = make()
        write(path, _seal(key, path.name, code) + code)
        if path.name.startswith("0"):
            # One digest in sixteen: looking at thousands of files takes longer than some kernels.
            forget_oldest(path.parent, MAX_BYTES)
    return code


def is_kept(name: str) -> bool:
    """Perhaps: its seal is not looked at."""
    return _place(name).exists()


def _place(name: str) -> Path:
    return folder("code") / sha256(name.encode()).hexdigest()


def _unsealed(path: Path, key: bytes) -> bytes | None:
    content = read(path) or b""
    seal, code = content[:SEAL], content[SEAL:]
    return code if hmac.compare_digest(seal, _seal(key, path.name, code)) else None


def _seal(key: bytes, name: str, code: bytes) -> bytes:
    return hmac.digest(key, name.encode() + code, "sha256")


def _key() -> bytes | None:
    """This user's, made once; None where there can be none that others do not know."""
    path = folder("key")
    with suppress(OSError):
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid == os.getuid() and not status.st_mode & OTHERS:
                key = file.read()
                return key if len(key) == KEY else None
    return None


def _make(path: Path) -> None:
    """All at once, by whoever comes first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")  # for this user alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY))
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink()
