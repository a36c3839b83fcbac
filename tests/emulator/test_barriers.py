"""Programs that wait for each other: in every order, never reached, never released."""

from __future__ import annotations

import threading

import pytest
import torch

pytest.importorskip("triton")

from testing.emulator import (
    Checks,
    DeadlockError,
    EmulationError,
    Findings,
    Order,
    RaceError,
    emulate,
)
from tests.emulator import kernels

M, N, PROGRAMS = 13, 20, 6
CHECKS = Checks(scratch=frozenset(["partial", "column", "out"]))
ORDERS = [(Order.FORWARD, 0), (Order.REVERSE, 0), *((Order.RANDOM, seed) for seed in range(5))]


def integer(count: int = 1) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


def three_phases(
    x: torch.Tensor,
    barriers: int,
    semaphore: torch.Tensor,
    order: Order,
    seed: int,
    checks: Checks = CHECKS,
) -> tuple[torch.Tensor, Findings]:
    nan = float("nan")
    out = torch.full((M, N), nan)
    arguments = {"x": x, "out": out, "M": M, "N": N, "PROGRAMS": PROGRAMS, "BLOCK": 32, "PADDED": 8}
    scratch = {"partial": torch.full((PROGRAMS, N), nan), "column": torch.full((N,), nan)}
    named = arguments | scratch | {"semaphore": semaphore, "BARRIERS": barriers}
    findings = emulate(
        kernels.row_column_elementwise, PROGRAMS, named, checks=checks, order=order, seed=seed
    )
    return out, findings


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_three_phases_in_one_launch(order: Order, seed: int) -> None:
    x, semaphore = torch.rand(M, N) + 0.1, integer()
    rows = x.double() / x.double().sum(1, keepdim=True)
    for _ in range(2):  # the semaphore is not reset in between
        out, findings = three_phases(x, 2, semaphore, order, seed)
        torch.testing.assert_close(out.double(), rows / rows.sum(0), rtol=1e-6, atol=0)
        assert semaphore.item() == 0  # its sign flips twice
        assert findings.waits == 2 * PROGRAMS
        assert findings.loads["x"] == findings.stores["out"] == M * N * 4
        assert findings.stores["partial"] == findings.loads["partial"] == PROGRAMS * N * 4


@pytest.mark.parametrize("barriers", [0, 1])
@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_without_a_barrier_it_is_a_race(barriers: int, order: Order, seed: int) -> None:
    """In some order the values may be right all the same."""
    x = torch.rand(M, N) + 0.1
    with pytest.raises(RaceError, match="nothing orders that program"):
        three_phases(x, barriers, integer(), order, seed, Checks())
    with pytest.raises(EmulationError, match=r"nothing orders|nobody has written"):
        three_phases(x, barriers, integer(), order, seed)


@pytest.mark.parametrize("order", Order)
def test_a_barrier_that_only_some_reach(order: Order) -> None:
    out = torch.zeros(6)
    arguments = {"out": out, "semaphore": integer(), "REACHED": 4, "PROGRAMS": 6}
    before = threading.active_count()
    message = (
        r"4 of 6 programs wait forever, 2 have ended: program 0 waits until semaphore\[0\] .* has "
        r"another sign than \d+, but it stays \d+\n  at .*device_functions.py:\d+: "
        r"spin_until_flipped"
    )
    with pytest.raises(DeadlockError, match=message):
        emulate(kernels.barrier_for_some, 6, arguments, order=order)
    assert threading.active_count() == before
    assert out.tolist() == [0, 0, 0, 0, 4, 5]


@pytest.mark.parametrize("order", Order)
def test_programs_in_turn(order: Order) -> None:
    out = integer()
    findings = emulate(
        kernels.turns, 9, {"out": out, "tokens": integer(9)}, checks=Checks(), order=order
    )
    assert out.item() == 0 and findings.waits == 8


def test_an_order_can_be_repeated() -> None:
    def history(seed: int) -> tuple[list[bool], list[int]]:
        x = torch.rand(8, 16)
        out = torch.zeros(16)
        arguments = {"x": x, "out": out, "BLOCK": 16, "READ": True}
        emulate(kernels.atomic_sum, 8, arguments, order=Order.RANDOM, seed=seed)
        return (x[:, 0] > 0).tolist(), x[:, 0].argsort().tolist()

    torch.manual_seed(0)
    first = history(1)
    torch.manual_seed(0)
    assert history(1) == first
    torch.manual_seed(0)
    assert any(history(seed) != first for seed in range(2, 5))


def test_a_spin_of_its_own_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testing.emulator.checked_builder.MOST_ATOMICS", 50)
    with pytest.raises(DeadlockError, match="spins without spin_until_flipped"):
        emulate(kernels.spins_by_itself, 2, {"token": integer()})


def test_many_programs_that_wait() -> None:
    out, tokens = integer(), integer(200)
    emulate(kernels.turns, 200, {"out": out, "tokens": tokens}, checks=Checks())
    assert (tokens == -1).all()


def test_one_number_is_added_to_many() -> None:
    """Triton 3.6's interpreter reads on behind it."""
    x, out = torch.tensor([0.5]), torch.zeros(8)
    emulate(kernels.atomic_sum_of_one, 2, {"x": x, "out": out, "BLOCK": 8})
    assert torch.equal(out, torch.ones(8))
