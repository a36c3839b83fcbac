"""Occupancy is what the vendor's calculator says; tools/occupancy_table.py wrote its answers
down."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from hemstitch.latency.architecture import ARCHITECTURES, HOPPER, architecture
from hemstitch.latency.occupancy import Limiter, occupancy

TABLE = Path(__file__).parent / "occupancy.csv"
BITS = {Limiter.WARPS: 1, Limiter.REGISTERS: 2, Limiter.SHARED: 4, Limiter.BLOCKS: 8}  # NVIDIA's


def rows(target: str) -> list[dict[str, str]]:
    with TABLE.open() as lines:
        return [row for row in csv.DictReader(lines) if row["target"] == target]


@pytest.mark.parametrize("target", ARCHITECTURES)
def test_the_vendor_agrees(target: str) -> None:
    different = []
    for row in rows(target):
        found = occupancy(
            architecture(target),
            registers=int(row["registers"]),
            shared_bytes=int(row["static_bytes"]) + int(row["dynamic_bytes"]),
            warps=int(row["warps"]),
        )
        bits = sum(BITS[limiter] for limiter in found.limiters)
        if (found.blocks, bits) != (int(row["blocks"]), int(row["limiters"])):
            different.append((row, str(found)))
    assert different == []


@pytest.mark.parametrize("target", ARCHITECTURES)
def test_the_table_covers_every_limiter_and_launches_that_cannot_be(target: str) -> None:
    counts = Counter(row["limiters"] for row in rows(target))
    assert sum(counts.values()) >= 2000
    assert {"1", "2", "4", "8"} <= set(counts)
    assert any(row["blocks"] == "0" for row in rows(target))


def test_a_register_more_can_cost_a_block() -> None:
    # 65536 registers, 8 warps of 32 threads: 256 a thread are one block, 128 two, 129 one again
    blocks = [
        occupancy(HOPPER, registers=registers, shared_bytes=0, warps=8).blocks
        for registers in (32, 128, 129, 256)
    ]
    assert blocks == [8, 2, 1, 1]


def test_it_says_what_limits() -> None:
    found = occupancy(HOPPER, registers=169, shared_bytes=8192, warps=8)
    assert str(found) == "1 blocks of 8 warps, limited by registers"
