"""The numbers are complete, and fitted ones survive a file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hemstitch.errors import UnsupportedError
from hemstitch.latency.architecture import (
    ARCHITECTURES,
    GUESS,
    UNCALIBRATED,
    architecture,
    from_json,
    to_json,
)
from hemstitch.latency.opcodes import Pipe, Wait

MEASURED = ("sm_90",)


@pytest.mark.parametrize("target", ARCHITECTURES)
def test_every_pipe_and_every_wait_has_a_number(target: str) -> None:
    known = architecture(target)
    assert set(known.fitted.latency_cycles) == set(Wait)
    for pipe in set(Pipe) - {Pipe.MATRIX}:  # counted in operations
        assert known.lanes_of(pipe) > 0
    assert (known.fitted.source == UNCALIBRATED) == (target not in MEASURED)


def test_an_unknown_target_is_refused_with_the_near_one() -> None:
    with pytest.raises(UnsupportedError, match='did you mean "sm_90"'):
        architecture("sm_9")


def test_fitted_constants_survive_a_file() -> None:
    measured = replace(
        GUESS,
        source="H200, driver 580, 2026-11-20",
        latency_cycles={**GUESS.latency_cycles, Wait.MEMORY: 812.5},
    )
    assert from_json(to_json(measured)) == measured
    assert from_json(to_json(GUESS)) == GUESS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"copy_share": None}, "copy_share must be a positive number"),
        ({"copy_share": -1}, "copy_share must be a positive number"),
        ({"copy_share": True}, "copy_share must be a positive number"),
        ({"speed": 3}, "unknown or missing: speed"),
        ({"latency_cycles": {"memory": 600}}, "latencies unknown or missing: atomic"),
    ],
)
def test_a_file_with_a_mistake_is_refused(change: dict[str, object], message: str) -> None:
    fields = {**json.loads(to_json(GUESS)), **change}
    with pytest.raises(ValueError, match=message):
        from_json(json.dumps(fields))
