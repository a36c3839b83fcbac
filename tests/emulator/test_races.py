"""Memory: bounds, garbage, races, and how many bytes a launch touches."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from hemstitch.errors import InternalError, UnsupportedError
from testing.emulator import (
    Checks,
    EmulationError,
    Order,
    OutOfBoundsError,
    RaceError,
    UnwrittenScratchError,
    emulate,
)
from tests.emulator import kernels

RACES = Checks()


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def test_findings_count_different_bytes() -> None:
    x, out = torch.randn(100), torch.empty(100)
    for checks in (None, RACES):
        arguments = {"x": x, "out": out, "n": 90, "factor": 2.0, "BLOCK": 32}
        findings = emulate(kernels.scaled, 3, arguments, checks=checks)
        assert findings.loads == {"x": 360, "out": 0}
        assert findings.stores == {"x": 0, "out": 360}
        assert (findings.programs, findings.waits) == (3, 0)
    assert torch.equal(out[:90], x[:90] * 2)


def test_out_of_bounds_names_tensor_and_offset() -> None:
    arguments = {
        "x": torch.randn(100),
        "out": torch.empty(96),
        "n": 100,
        "factor": 2.0,
        "BLOCK": 32,
    }
    message = r"program 3 writes 4 bytes at out\[96\] \(byte 384 of 384\)\n  at .*kernels.py"
    with pytest.raises(OutOfBoundsError, match=message):
        emulate(kernels.scaled, 4, arguments)


def test_a_neighbour_in_one_storage_is_out_of_bounds() -> None:
    storage = torch.randn(128)
    arguments = {"x": storage[:64], "out": storage[64:], "n": 65, "factor": 2.0, "BLOCK": 64}
    with pytest.raises(OutOfBoundsError, match=r"reads 4 bytes at x\[64\]"):
        emulate(kernels.scaled, 2, arguments)


def test_in_place_and_empty() -> None:
    x = torch.randn(64)
    expected = x * 3
    arguments = {"x": x, "out": x, "n": 64, "factor": 3.0, "BLOCK": 32}
    findings = emulate(kernels.scaled, 2, arguments, checks=RACES)
    assert torch.equal(x, expected) and findings.stores == {"x": 256, "out": 256}
    empty = torch.empty(0)
    emulate(kernels.scaled, 1, {"x": empty, "out": empty, "n": 0, "factor": 3.0, "BLOCK": 32})
    with pytest.raises(OutOfBoundsError, match=r"reads 4 bytes at x\[64\]"):
        emulate(kernels.scaled, 1, {"x": x, "out": x, "n": 96, "factor": 3.0, "BLOCK": 128})


def test_unwritten_scratch() -> None:
    checks = Checks(scratch=frozenset(["x"]))
    arguments = {"x": torch.randn(64), "out": torch.empty(64), "n": 64, "factor": 2.0, "BLOCK": 32}
    with pytest.raises(UnwrittenScratchError, match=r"program 0 reads x\[0\] .*nobody has written"):
        emulate(kernels.scaled, 2, arguments, checks=checks)
    written = Checks(scratch=frozenset(["out"]))
    emulate(kernels.scaled, 2, arguments, checks=written)


def test_scratch_that_holds_another_argument() -> None:
    """Each has stored what it loads, were there not the other in the same memory."""
    memory = torch.zeros(96)
    first, second = memory[:64], memory[32:]
    checks = Checks(scratch=frozenset(["first", "second"]))
    arguments = {"first": first, "second": second, "out": torch.empty(64), "BLOCK": 64}
    with pytest.raises(UnwrittenScratchError, match=r"reads first\[32\] .*which holds second"):
        emulate(kernels.two_scratches, 1, arguments, checks=checks)
    arguments["second"] = torch.zeros(64)
    emulate(kernels.two_scratches, 1, arguments, checks=checks)


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("shift", [0, 1])
def test_separate_tensors_do_not_race(order: Order, shift: int) -> None:
    x, out = torch.randn(64), torch.empty(64)
    arguments = {"x": x, "out": out, "BLOCK": 16, "SHIFT": shift}
    emulate(kernels.through_neighbour, 4, arguments, checks=RACES, order=order)
    assert torch.equal(out, x.roll(16 * shift))


@pytest.mark.parametrize("order", Order)
def test_a_neighbours_block_in_place_races(order: Order) -> None:
    x = torch.randn(64)
    arguments = {"x": x, "out": x, "BLOCK": 16, "SHIFT": 1}
    with pytest.raises(RaceError, match="nothing orders that program"):
        emulate(kernels.through_neighbour, 4, arguments, checks=RACES, order=order)
    emulate(kernels.through_neighbour, 4, arguments, order=order)


def test_two_programs_that_write_one_element() -> None:
    arguments = {"out": torch.empty(4), "semaphore": integers(1), "REACHED": 0, "PROGRAMS": 4}
    emulate(kernels.barrier_for_some, 4, arguments, checks=RACES)
    with pytest.raises(RaceError, match=r"program 1 writes out\[0\] .* program 0 writes"):
        emulate(kernels.fails, 2, {"out": torch.empty(4), "FAILS": False}, checks=RACES)


def test_one_store_of_two_values_to_one_element() -> None:
    out = integers(8)
    emulate(kernels.same_element, 1, {"out": out, "BLOCK": 16, "EQUAL": True}, checks=RACES)
    with pytest.raises(RaceError, match=r"program 0 stores different values to out\[0\]"):
        emulate(kernels.same_element, 1, {"out": out, "BLOCK": 16, "EQUAL": False}, checks=RACES)


@pytest.mark.parametrize(("halves", "races"), [(3, True), (9, True), (16, False)])
def test_races_are_found_byte_by_byte(halves: int, races: bool) -> None:
    words = integers(16)
    arguments = {"words": words, "halves": halves, "BLOCK": 8}
    if races:
        with pytest.raises(RaceError, match=rf"byte {2 * halves} of 64"):
            emulate(kernels.bytes_of_words, 2, arguments, checks=RACES)
    else:
        findings = emulate(kernels.bytes_of_words, 2, arguments, checks=RACES)
        assert findings.stores == {"words": 34}


def test_atomics_do_not_race_with_each_other() -> None:
    x, out = torch.randn(4, 16), torch.zeros(16)
    arguments = {"x": x, "out": out, "BLOCK": 16, "READ": False}
    findings = emulate(kernels.atomic_sum, 4, arguments, checks=RACES, order=Order.RANDOM)
    torch.testing.assert_close(out, x.sum(0))
    assert findings.loads["out"] == findings.stores["out"] == 64
    with pytest.raises(RaceError, match=r"updates out\[0\] .* program 0 reads it"):
        emulate(kernels.atomic_sum, 4, arguments | {"READ": True}, checks=RACES)


def last_block(**changed: object) -> torch.Tensor:
    x, part, out = torch.randn(8, 16), torch.empty(8), torch.empty(1)
    named = {"x": x, "part": part, "out": out, "ticket": integers(1), "N": 8, "BLOCK": 16}
    how = {"SEM": "acq_rel", "FENCED": True, "SCOPE": "gpu"}
    checks = Checks(scratch=frozenset(["part", "out"]))
    for order in Order:
        named["ticket"].zero_()
        emulate(kernels.last_block_sums, 8, named | how | changed, checks=checks, order=order)
        torch.testing.assert_close(out[0], x.sum())
    return out


def test_the_last_program_sees_what_the_others_left() -> None:
    last_block()


@pytest.mark.parametrize(
    "changed",
    [{"SEM": "relaxed"}, {"SEM": "release"}, {"SEM": "acquire"}, {"FENCED": False}],
    ids=str,
)
def test_a_ticket_that_orders_nothing_is_a_race(changed: dict[str, object]) -> None:
    with pytest.raises(RaceError, match=r"reads part\[0\] .*nothing orders that program 0 writes"):
        last_block(**changed)


def test_a_ticket_within_a_program_is_a_race() -> None:
    with pytest.raises(RaceError, match=r"writes ticket\[0\]"):
        last_block(SCOPE="cta")


@pytest.mark.parametrize("fenced", [True, False])
def test_threads_of_a_program_meet_before_they_read_from_each_other(fenced: bool) -> None:
    x, scratch, out = torch.randn(64), torch.empty(64), torch.empty(64)
    arguments = {"x": x, "scratch": scratch, "out": out, "BLOCK": 64, "FENCED": fenced}
    emulate(kernels.reversed_through_memory, 1, arguments, checks=RACES)
    assert torch.equal(out, x.flip(0))
    threads = Checks(threads=True)
    if fenced:
        emulate(kernels.reversed_through_memory, 1, arguments, checks=threads)
    else:
        with pytest.raises(RaceError, match=r"reads scratch\[63\] .* program 0 writes it"):
            emulate(kernels.reversed_through_memory, 1, arguments, checks=threads)


@pytest.mark.parametrize("fenced", [True, False])
def test_threads_of_a_program_meet_before_they_write_what_others_read(fenced: bool) -> None:
    """As on an H100, where a slow warp read the next row's values."""
    x, scratch, out = torch.randn(3, 64), torch.empty(64), torch.empty(3, 64)
    arguments = {"x": x, "scratch": scratch, "out": out, "ROWS": 3, "BLOCK": 64, "FENCED": fenced}
    emulate(kernels.rows_through_memory, 1, arguments, checks=RACES)
    assert torch.equal(out, x.flip(1))
    threads = Checks(threads=True)
    if fenced:
        emulate(kernels.rows_through_memory, 1, arguments, checks=threads)
    else:
        with pytest.raises(RaceError, match=r"writes scratch\[0\] .* program 0 reads it"):
            emulate(kernels.rows_through_memory, 1, arguments, checks=threads)


@pytest.mark.parametrize("fenced", [True, False])
def test_threads_of_a_program_meet_before_they_add_to_what_others_write(fenced: bool) -> None:
    x, sums = torch.randn(64), torch.empty(64)
    arguments = {"x": x, "sums": sums, "BLOCK": 64, "FENCED": fenced}
    if fenced:
        emulate(kernels.sums_in_memory, 1, arguments, checks=Checks(threads=True))
        assert torch.equal(sums, x)
    else:
        with pytest.raises(RaceError, match=r"updates sums\[0\] .* program 0 writes it"):
            emulate(kernels.sums_in_memory, 1, arguments, checks=Checks(threads=True))


def test_each_thread_overwrites_what_it_has_read() -> None:
    x = torch.randn(64)
    expected = 2 * x
    emulate(kernels.in_place, 1, {"x": x, "BLOCK": 64}, checks=Checks(threads=True))
    assert torch.equal(x, expected)


def test_errors_are_ours() -> None:
    kinds = (RaceError, OutOfBoundsError, UnwrittenScratchError)
    assert all(issubclass(kind, EmulationError) for kind in kinds)
    assert issubclass(EmulationError, InternalError)


def test_what_cannot_be_an_argument() -> None:
    arguments = {
        "x": torch.ones(4, device="meta"),
        "out": torch.empty(4),
        "n": 4,
        "factor": 1.0,
        "BLOCK": 4,
    }
    with pytest.raises(UnsupportedError, match="x is on meta"):
        emulate(kernels.scaled, 1, arguments)
    with pytest.raises(UnsupportedError, match="argument factor of type str"):
        emulate(kernels.scaled, 1, arguments | {"x": torch.ones(4), "factor": "one"})
