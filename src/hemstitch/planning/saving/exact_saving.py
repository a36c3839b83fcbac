"""The optimal selection of saved activations: one 0/1 program for each independent part.

    s_v: v is saved    l_vk: kernel k loads v    m_vk: kernel k rematerialises v
    o_v: backward computes the operand v, in a kernel of its own

    minimise    sum of saving(v) s_v + bytes(v) l_vk + work(v) m_vk + storing(v) o_v
    such that   l_vk + m_vk >= 1         for what kernel k needs
                l_uk + m_uk >= m_vk      for each source u of v
                l_vk <= s_v              a saved value is loaded, not recomputed:
                m_vk + s_v <= 1
                s_v + o_v >= 1           for what library calls read
                m_vk >= o_v              for the kernel k of its own

An argument, and a value that every decision saves, has no s. Parts are kernels that share an s.
Equal parts (stacked layers) are solved once: `canonical` compares whole programs, not digests. EVT
(2024, section 4.2) partitions and memoises likewise. Its objective counts a value once for each
edge; this one counts it once for each kernel.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator

from hemstitch.planning.saving import saving_heuristic
from hemstitch.planning.saving.saving_problem import Decision, SavingProblem, cost, forced, reached
from hemstitch.planning.search.exact_search import Solves
from hemstitch.planning.search.integer_program import IntegerProgram, Row, canonical
from hemstitch.planning.search.solver import Answer

MOST_COMPARED = 5000  # columns of one part; comparing larger ones takes longer than solving them
Key = tuple[Hashable, ...]
Kernel = tuple[int | None, frozenset[int]]  # its operand of a library call, the values it needs


def decide(problem: SavingProblem, solver: Solves, seconds: float) -> Decision:
    """Parts that are not solved in time are decided by the heuristic."""
    deadline = time.monotonic() + seconds
    rough = saving_heuristic.decide(problem)
    always = forced(problem)
    saved, is_optimal = set(always), True
    known: dict[IntegerProgram, Answer] = {}
    for part in _parts(problem, always):
        columns = _Columns(problem, always, part)
        if not columns.has_choice:
            continue
        program, order = columns.program(), tuple(range(len(columns.costs)))
        if len(order) <= MOST_COMPARED:
            program, order = canonical(program)
        left = deadline - time.monotonic()
        answer = known.get(program) or (solver.solve(program, left) if left > 0 else None)
        if answer is None or not answer.is_optimal:
            is_optimal = False
        if answer is None:
            saved |= rough.saved & columns.saveable
            continue
        known[program] = answer
        saved |= columns.saved(order[column] for column in answer.chosen)
    solved_cost, rough_cost = cost(problem, saved), cost(problem, rough.saved)
    assert solved_cost is not None and rough_cost is not None, "parts are independent"
    if solved_cost > rough_cost + 1:  # a byte; the solver ran out of time
        return rough
    return Decision(frozenset(saved), is_optimal)


def _kernels(problem: SavingProblem, always: frozenset[int]) -> list[Kernel]:
    own = sorted(n for n in problem.operands - always if not problem.items[n].is_given)
    return [*((None, needed) for needed in problem.needs), *((n, frozenset((n,))) for n in own)]


def _parts(problem: SavingProblem, always: frozenset[int]) -> list[list[Kernel]]:
    """The connected components of kernels, where kernels that share a saveable value are
    adjacent."""
    kernels = _kernels(problem, always)
    parent = list(range(len(kernels)))

    def root(kernel: int) -> int:
        while parent[kernel] != kernel:
            parent[kernel] = parent[parent[kernel]]
            kernel = parent[kernel]
        return kernel

    first: dict[int, int] = {}
    for kernel, (_, needed) in enumerate(kernels):
        for number in reached(problem, needed, always):
            item = problem.items[number]
            if number not in always and not item.is_given and item.is_saveable:
                parent[root(kernel)] = root(first.setdefault(number, kernel))
    parts: dict[int, list[Kernel]] = {}
    for place, kernel_of_part in enumerate(kernels):
        parts.setdefault(root(place), []).append(kernel_of_part)
    return list(parts.values())


class _Columns:
    """The program of one part."""

    def __init__(
        self, problem: SavingProblem, always: frozenset[int], kernels: Iterable[Kernel]
    ) -> None:
        self.problem = problem
        self.always = always
        self.places: dict[Key, int] = {}
        self.costs: list[float] = []
        self.rows: list[Row] = []
        for kernel, (operand, needed) in enumerate(kernels):
            self.rows.extend(self._kernel(kernel, operand, needed))

    def program(self) -> IntegerProgram:
        return IntegerProgram(tuple(self.costs), tuple(self.rows))

    @property
    def has_choice(self) -> bool:
        return any(key[0] != "load" for key in self.places)

    @property
    def saveable(self) -> frozenset[int]:
        return frozenset(key[1] for key in self.places if key[0] == "save")  # type: ignore[misc]

    def saved(self, columns: Iterator[int]) -> set[int]:
        number = {place: key[1] for key, place in self.places.items() if key[0] == "save"}
        return {number[c] for c in columns if c in number}  # type: ignore[misc]

    def _kernel(self, kernel: int, operand: int | None, needed: frozenset[int]) -> Iterator[Row]:
        items = self.problem.items
        for number in sorted(reached(self.problem, needed, self.always)):
            item, ways = items[number], list[int]()
            is_there = item.is_given or number in self.always
            if is_there or item.is_saveable:
                load = self._column("load", number, kernel, cost=item.bytes)
                ways.append(load)
            if not is_there and item.is_saveable:
                save = self._column("save", number, cost=self.problem.saving(number))
                yield _row(None, 0, (load, 1), (save, -1))
            if not is_there and item.sources is not None:
                make = self._column("make", number, kernel, cost=item.work)
                ways.append(make)
                if item.is_saveable:
                    yield _row(None, 1, (make, 1), (save, 1))
                for source in dict.fromkeys(item.sources):
                    yield _row(0, None, *self._ways(source, kernel), (make, -1))
            if number in needed and operand is None:
                yield _row(1, None, *((way, 1) for way in ways))
        if operand is not None:
            make = self._column("make", operand, kernel, cost=items[operand].work)
            store = self._column("store", operand, cost=self.problem.storing(operand))
            if items[operand].is_saveable:
                save = self._column("save", operand, cost=self.problem.saving(operand))
                yield _row(1, None, (save, 1), (store, 1))
            else:
                yield _row(1, None, (store, 1))
            yield _row(0, None, (make, 1), (store, -1))

    def _ways(self, number: int, kernel: int) -> Iterator[tuple[int, int]]:
        """Columns that bring an item into a kernel."""
        item = self.problem.items[number]
        is_there = item.is_given or number in self.always
        if is_there or item.is_saveable:
            yield self._column("load", number, kernel, cost=item.bytes), 1
        if not is_there and item.sources is not None:
            yield self._column("make", number, kernel, cost=item.work), 1

    def _column(self, *key: Hashable, cost: float) -> int:
        if key not in self.places:
            self.places[key] = len(self.costs)
            self.costs.append(float(cost))
        return self.places[key]


def _row(lower: int | None, upper: int | None, *terms: tuple[int, int]) -> Row:
    return Row(lower, upper, tuple(sorted(terms)))
