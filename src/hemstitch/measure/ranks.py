"""What the ranks of a job must not find out each for itself: what a clock says. Takes a key and
what finds a record, gives the record of the rank that had one first.

By the store through which the ranks met. No rank waits for another, since they may compile other
graphs, or none; so this is no collective.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch.distributed as dist

Record = TypeVar("Record")  # what JSON can say


def agreed(key: str, find: Callable[[], Record]) -> Record:
    """Without a job, what `find` gives."""
    store = _store()
    if store is None:
        return find()
    name = f"hemstitch: {key}"
    record = _known(store, name)
    if record is None:
        record = json.dumps(find())
        with suppress(RuntimeError):
            record = store.compare_set(name, "", record)
    found: Record = json.loads(record)
    return found


def _known(store: Any, name: str) -> Any:
    """None as well where the store does not answer: a job that ends, or a test's."""
    with suppress(RuntimeError):
        if store.check([name]):
            return store.get(name)
    return None


def _store() -> Any:
    if dist.is_available() and dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    return None
