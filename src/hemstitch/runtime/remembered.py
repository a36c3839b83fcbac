"""What was found out once and is kept on disk: small records, a file each. Takes a path and a
record, gives the record in any later process. Losing one only costs finding it out again."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def folder(name: str) -> Path:
    return Path.home() / ".cache" / "hemstitch" / name


def recall(path: Path) -> Any:
    """None for a file that is not there or not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def remember(path: Path, record: object) -> None:
    """All at once, so that another process reads the old file or the new one."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file)
        Path(name).replace(path)
