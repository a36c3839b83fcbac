"""One measurement for all ranks of a job. Takes a key and a function that gives a record, gives the
record of the rank that had one first.

Through the store of the process group. This is no collective, and no rank waits: the others may
compile different graphs, or none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch.distributed as dist

Record = TypeVar("Record")  # a JSON value


def agreed(key: str, find: Callable[[], Record]) -> Record:
    """Without a job, the result of `find`."""
    store = _store()
    if store is None:
        return find()
    name = f"hemstitch: {key}"
    record = _known(store, name)
    if record is None:
        record = json.dumps(find())
        with suppress(RuntimeError):
            record = store.compare_set(name, "", record)
    agreed_record: Record = json.loads(record)
    return agreed_record


def _known(store: Any, name: str) -> Any:
    """None also if the store does not answer, as when a job ends."""
    with suppress(RuntimeError):
        if store.check([name]):
            return store.get(name)
    return None


def _store() -> Any:
    if dist.is_available() and dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    return None
