"""The solver in its process: right, restarted, killed, late. And what makes two programs equal."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemstitch.planning.search.integer_program import IntegerProgram, Row, canonical
from hemstitch.planning.search.solver import SOLVER, Answer, Solver
from hemstitch.workers.worker import Worker
from tests.planning.search.problems import Inline

PACKING = IntegerProgram(
    (-3.0, -4.0, -2.0), (Row(None, 1, ((0, 1), (1, 1))), Row(None, 1, ((1, 1), (2, 1))))
)
BEST = Answer((0, 2), True)
LONG = 60.0


def programs(rng: random.Random) -> IntegerProgram:
    count = rng.randint(1, 6)
    rows = []
    for _ in range(rng.randrange(5)):
        columns = sorted(rng.sample(range(count), rng.randint(1, count)))
        terms = tuple((column, rng.choice((1, 1, -1))) for column in columns)
        rows.append(Row(None, rng.randint(0, 2), terms))
    return IntegerProgram(tuple(float(rng.randint(-5, 2)) for _ in range(count)), tuple(rows))


def least(program: IntegerProgram) -> float:
    """All columns 0 is always within bounds here."""
    best = 0.0
    for chosen in product((0, 1), repeat=len(program.costs)):
        sums = (sum(k * chosen[c] for c, k in row.terms) for row in program.rows)
        if all(found <= row.upper for found, row in zip(sums, program.rows)):
            best = min(best, sum(x * cost for x, cost in zip(chosen, program.costs)))
    return best


def test_one_process_answers_several_questions() -> None:
    with Solver() as solver:
        assert solver.solve(PACKING, LONG) == BEST
        worker = solver.worker
        assert solver.solve(PACKING, LONG) == BEST and solver.worker is worker
    assert not worker.is_alive


def test_killed_between_questions_it_is_missed_once() -> None:
    with Solver() as solver:
        assert solver.solve(PACKING, LONG) == BEST
        solver.worker.process.kill()
        solver.worker.process.wait()
        assert solver.solve(PACKING, LONG) is None
        assert solver.solve(PACKING, LONG) == BEST


@pytest.mark.parametrize(
    "answer",
    [
        "import time; answer = lambda question: time.sleep(1000)",
        "raise SystemExit(1)",
        "import os; answer = lambda question: os.abort()",
        "answer = lambda question: b'{'[1:2] + 1",
        "",
    ],
    ids=["hangs", "does not start", "dies", "refuses", "is not there"],
)
def test_what_does_not_answer_has_no_solution(answer: str, tmp_path: Path) -> None:
    (tmp_path / "solver.py").write_text(answer)
    with Solver(tmp_path / "solver.py", grace=0.5) as solver:
        assert solver.solve(PACKING, 0.1) is None
        assert solver.worker is None


def test_what_the_solver_prints_is_no_answer(tmp_path: Path) -> None:
    """HiGHS 1.16 has a banner, whatever its options say."""
    text = SOLVER.read_text().replace(
        "import highspy", "import os, highspy; os.write(1, b'Running HiGHS\\n'); print('by')"
    )
    (tmp_path / "solver.py").write_text(text)
    with Solver(tmp_path / "solver.py") as solver:
        assert solver.solve(PACKING, LONG) == BEST


def test_without_time_no_process_is_started() -> None:
    with Solver() as solver:
        assert solver.solve(PACKING, 0.0) is None and solver.worker is None


def test_interrupted_it_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def interrupted(self: Worker, question: bytes, seconds: float) -> bytes:
        seen.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt), Solver() as solver:
        solver.solve(PACKING, LONG)
    assert not seen[0].is_alive


@given(st.integers(0, 10**6))
def test_solutions_are_the_best(seed: int) -> None:
    program = programs(random.Random(seed))
    answer = Inline().solve(program, LONG)
    assert answer.is_optimal
    assert sum(program.costs[column] for column in answer.chosen) == least(program)


@given(st.integers(0, 10**6))
def test_costs_of_any_magnitude(seed: int) -> None:
    """Gigabytes that differ by a byte."""
    rng = random.Random(seed)
    base = 2.0 ** rng.randint(20, 45)
    costs = tuple(-(base + rng.randint(0, 3)) for _ in range(4))
    rows = (Row(1, 1, tuple((column, 1) for column in range(4))),)
    answer = Inline().solve(IntegerProgram(costs, rows), LONG)
    assert costs[answer.chosen[0]] <= min(costs) * (1 - 2.0**-40)


@given(st.integers(0, 10**6))
def test_canonical_programs_do_not_depend_on_the_numbering(seed: int) -> None:
    """Where colours tell all columns apart; and the new columns are the old ones, elsewhere too."""
    rng = random.Random(seed)
    program = programs(rng)
    shuffled = list(range(len(program.costs)))
    rng.shuffle(shuffled)
    place = {old: new for new, old in enumerate(shuffled)}
    rows = [Row(r.lower, r.upper, tuple((place[c], k) for c, k in r.terms)) for r in program.rows]
    rng.shuffle(rows)
    other = IntegerProgram(tuple(program.costs[old] for old in shuffled), tuple(rows))
    first, order = canonical(program)
    second, _ = canonical(other)
    assert first.costs == second.costs == tuple(program.costs[column] for column in order)
    assert len(first.rows) == len(program.rows)
    if len(set(program.costs)) == len(program.costs):
        assert first == second
    assert least(first) == least(program)


def test_programs_of_equal_colours_that_differ_stay_apart() -> None:
    """A cycle of six columns and two of three: refinement sees no difference, comparison does."""

    def around(*rings: tuple[int, ...]) -> IntegerProgram:
        pairs = [(a, b) for ring in rings for a, b in zip(ring, [*ring[1:], ring[0]])]
        rows = (Row(None, 1, tuple(sorted(((a, 1), (b, 1))))) for a, b in pairs)
        return IntegerProgram((-1.0,) * 6, tuple(rows))

    six, three = around((0, 1, 2, 3, 4, 5)), around((0, 1, 2), (3, 4, 5))
    assert canonical(six)[0] != canonical(three)[0]
    assert (least(six), least(three)) == (-3.0, -2.0)
