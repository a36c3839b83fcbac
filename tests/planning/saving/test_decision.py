"""What is saved between the passes: the integer program against brute force, the heuristic against
both, and the bound on memory."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from itertools import chain, combinations

import pytest

from hemstitch.planning.saving import exact_saving as exact
from hemstitch.planning.saving import saving_heuristic as heuristic
from hemstitch.planning.saving.budget import Decide, within
from hemstitch.planning.saving.saving_problem import SavedValue, SavingProblem, cost, held_bytes
from hemstitch.planning.search.integer_program import IntegerProgram
from hemstitch.planning.search.solver import Answer
from tests.planning.search.problems import Inline


class Never:
    """A solver that is always late."""

    def solve(self, program: IntegerProgram, seconds: float) -> Answer | None:
        return None


def random_item(rng: random.Random, number: int) -> SavedValue:
    size = rng.choice((0, 1 << 10, 1 << 16, 1 << 16, 1 << 20))
    kind = rng.random()
    if number == 0 or kind < 0.15:
        return SavedValue(size, is_given=True, is_written=True, is_saveable=False)
    if kind < 0.35:
        return SavedValue(size, is_written=True)
    sources = tuple(rng.sample(range(number), min(number, rng.choice((1, 1, 2, 3)))))
    if kind < 0.45:
        return SavedValue(size, sources, is_saveable=False)
    work = rng.random() * size * 2
    if kind < 0.6:
        return SavedValue(size // 4, sources, work, early=work)
    return SavedValue(size, sources, work, is_written=rng.random() < 0.4)


def random_problem(rng: random.Random, count: int) -> SavingProblem:
    items = tuple(random_item(rng, number) for number in range(count))
    kernels = rng.randint(1, 4)
    needs = tuple(frozenset(rng.sample(range(count), rng.randint(1, 3))) for _ in range(kernels))
    operands = frozenset(rng.sample(range(count), rng.randint(0, 2)))
    return SavingProblem(items, needs, operands, held=rng.choice((0.0, 0.25, 2.0)))


def least_cost(problem: SavingProblem) -> float:
    saveable = [n for n, item in enumerate(problem.items) if item.is_saveable]
    subsets = chain.from_iterable(combinations(saveable, n) for n in range(len(saveable) + 1))
    return min(found for some in subsets if (found := cost(problem, {*some})) is not None)


def beside(problem: SavingProblem, times: int) -> SavingProblem:
    """The same so many times, without anything in common."""
    count = len(problem.items)

    def moved(item: SavedValue, by: int) -> SavedValue:
        sources = item.sources
        shifted = None if sources is None else tuple(s + by for s in sources)
        return replace(item, sources=shifted)

    return SavingProblem(
        tuple(moved(item, count * k) for k in range(times) for item in problem.items),
        tuple(
            frozenset(n + count * k for n in need) for k in range(times) for need in problem.needs
        ),
        frozenset(n + count * k for k in range(times) for n in problem.operands),
        problem.held,
    )


def test_the_program_finds_what_brute_force_finds() -> None:
    for seed in range(300):
        problem = random_problem(random.Random(seed), 9)
        decision = exact.decide(problem, Inline(), 60.0)
        found = cost(problem, decision.saved)
        assert found is not None and decision.is_optimal
        assert abs(found - least_cost(problem)) <= 1e-6 * (1 + found), seed


def test_the_heuristic_is_near() -> None:
    ratios = []
    for seed in range(300):
        problem = random_problem(random.Random(seed), 9)
        found, least = cost(problem, heuristic.decide(problem).saved), least_cost(problem)
        assert found is not None and found >= least - 1e-6
        ratios.append((found + 1) / (least + 1))
    assert sum(ratio > 1.0001 for ratio in ratios) < 30
    assert sum(ratios) / len(ratios) < 1.05


def test_what_is_not_solved_in_time_is_decided_by_the_heuristic() -> None:
    for seed in range(50):
        problem = random_problem(random.Random(seed), 9)
        decision = exact.decide(problem, Never(), 0.0)
        assert cost(problem, decision.saved) == cost(problem, heuristic.decide(problem).saved)


def test_equal_layers_are_solved_once() -> None:
    """x -> library -> y -> exp -> library, with a kernel in backward that needs exp and y."""
    items = (
        SavedValue(1 << 20, is_given=True, is_written=True, is_saveable=False),
        SavedValue(1 << 20, is_written=True),
        SavedValue(1 << 20, (1,), 1e5),
        SavedValue(1 << 20, (2,), 4e5, is_written=True),
    )
    layer = SavingProblem(items, (frozenset((2, 3)),))
    solver = Inline()
    decision = exact.decide(beside(layer, 12), solver, 60.0)
    assert decision.is_optimal
    assert len(solver.asked) == 1


def test_a_written_value_costs_nothing_more_to_save() -> None:
    """The result of a ReLU that a product reads is saved, and the mask made from it."""
    size = 1 << 20
    items = (
        SavedValue(size, is_written=True),  # what the product before it gave
        SavedValue(size, (0,), 1e5, is_written=True),  # relu
        SavedValue(
            size // 4, (1,), 1e5, is_saveable=False
        ),  # relu > 0, which forward does not need
    )
    problem = SavingProblem(items, (frozenset((2,)),), operands=frozenset((1,)))
    for decision in (heuristic.decide(problem), exact.decide(problem, Inline(), 60.0)):
        assert decision.saved == {1}


SIZE = 1 << 20
EITHER = (heuristic.decide, partial(exact.decide, solver=Inline(), seconds=60.0))


def layer(is_operand: bool) -> SavingProblem:
    """A product, its ReLU, the ReLU's mask, and what dropout leaves, which the next product reads;
    or the product reads the ReLU."""
    items = (
        SavedValue(SIZE, is_written=True),
        SavedValue(SIZE, (0,), 1e5, is_written=is_operand),
        SavedValue(SIZE // 4, (1,), 3e4, early=3e4),
        SavedValue(SIZE, (1,), 2e6, is_written=True),
    )
    return SavingProblem(items, (frozenset((2,)),), operands=frozenset((1 if is_operand else 3,)))


@pytest.mark.parametrize("decide", EITHER, ids=("heuristic", "program"))
def test_a_mask_is_saved_in_place_of_what_it_is_made_from(decide: Decide) -> None:
    assert within(layer(is_operand=False), 1.0, decide).saved == {2, 3}


@pytest.mark.parametrize("decide", EITHER, ids=("heuristic", "program"))
def test_a_mask_is_not_held_beside_what_it_is_made_from(decide: Decide) -> None:
    problem = layer(is_operand=True)
    assert decide(problem).saved == {1, 2}  # which would move less
    assert within(problem, 1.0, decide).saved == {1}


@pytest.mark.parametrize("decide", EITHER, ids=("heuristic", "program"))
def test_masks_are_held_beside_where_others_have_made_room(decide: Decide) -> None:
    """In the first layer the mask takes the place of four times its bytes."""
    first, second = layer(is_operand=False), beside(layer(is_operand=True), 2)
    count = len(first.items)
    moved = [
        replace(item, sources=item.sources and tuple(s + count for s in item.sources))
        for item in second.items
    ]
    problem = SavingProblem(
        (*first.items, *moved),
        (*first.needs, *(frozenset(n + count for n in need) for need in second.needs)),
        first.operands | {n + count for n in second.operands},
    )
    assert within(problem, 1.0, decide).saved == {2, 3, 5, 6, 9, 10}


@pytest.mark.parametrize("decide", EITHER, ids=("heuristic", "program"))
def test_nothing_more_is_held_for_what_only_backward_needs(decide: Decide) -> None:
    for seed in range(200):
        problem = random_problem(random.Random(seed), 9)
        usual = decide(problem.with_early(()))
        found = within(problem, 1.0, decide)
        assert held_bytes(problem, found.saved) <= held_bytes(problem, usual.saved), seed
        moved, before = cost(problem, found.saved), cost(problem, usual.saved)
        assert moved is not None and before is not None and moved <= before + 1e-6, seed


def test_a_bound_on_memory_is_kept_where_it_can_be() -> None:
    """Two chains of 4 values each, of which every one is needed, from an argument."""
    size = 1 << 20
    chain_of_4 = [SavedValue(size, (n,), 3.0 * size) for n in range(4)]
    given = SavedValue(size, is_given=True, is_written=True, is_saveable=False)
    problem = beside(
        SavingProblem((given, *chain_of_4), tuple(frozenset((n,)) for n in range(1, 5))), 2
    )
    for decide in (heuristic.decide, partial(exact.decide, solver=Inline(), seconds=60.0)):
        whole = held_bytes(problem, decide(problem).saved)
        held = [
            held_bytes(problem, within(problem, share, decide).saved) for share in (0.6, 0.3, 0)
        ]
        assert all(found <= share * whole for found, share in zip(held, (0.6, 0.3, 0)))
        assert whole > held[0] >= held[1] >= held[2] == 0
