"""Problems to search, and the slow and certain way to do it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from hemstitch.planning.search import milp
from hemstitch.planning.search.integer_program import IntegerProgram
from hemstitch.planning.search.judge import Judge
from hemstitch.planning.search.search_problem import Oracle, PassedValue, Pattern, PlanningProblem
from hemstitch.planning.search.solver import Answer


def from_edges(
    count: int, edges: Iterable[tuple[int, int]], sizes: Sequence[int] = (), **options
) -> PlanningProblem:
    """Each vertex makes one value, of 8 bytes or of `sizes`, that is read along its edges; what
    nobody reads is kept."""
    edges = tuple(edges)
    readers: dict[int, list[int]] = {vertex: [] for vertex in range(count)}
    for first, second in edges:
        readers[first].append(second)
    sizes = sizes or [8] * count
    values = [
        PassedValue(sizes[v], v, tuple(found), is_kept=not found) for v, found in readers.items()
    ]
    return PlanningProblem(count, edges, tuple(values), **{"launch_bytes": 1, **options})


def ladder(length: int, **options) -> PlanningProblem:
    """Two rails of so many vertices with rungs: a_i -> a_i+1, b_i -> b_i+1, a_i -> b_i."""
    edges = []
    for step in range(length):
        edges.append((2 * step, 2 * step + 1))
        if step + 1 < length:
            edges += [(2 * step, 2 * step + 2), (2 * step + 1, 2 * step + 3)]
    return from_edges(2 * length, sorted(edges), **options)


def transformer(layers: int, width: int = 64, **options) -> PlanningProblem:
    """Forward of so many encoder layers: matrix products are fixed; a residual stream leads through
    all layers, a mask into each."""
    edges: list[tuple[int, int]] = []
    fixed: list[int] = []
    sizes: list[int] = []

    def vertex(size: int, *inputs: int) -> int:
        edges.extend((other, len(sizes)) for other in inputs)
        sizes.append(size)
        return len(sizes) - 1

    def product(size: int, *inputs: int) -> int:
        fixed.append(vertex(size, *inputs))
        return fixed[-1]

    def norm(x: int) -> int:
        centred = vertex(width, x, vertex(1, x))
        deviation = vertex(1, vertex(1, vertex(width, centred)))
        return vertex(width, vertex(width, centred, deviation))

    def softmax(x: int) -> int:
        powers = vertex(4 * width, vertex(4 * width, x, vertex(1, x)))
        return vertex(4 * width, powers, vertex(1, powers))

    def attention(x: int) -> int:
        heads = [vertex(width, product(width, x)) for _ in range(3)]
        scores = vertex(4 * width, vertex(4 * width, product(4 * width, *heads[:2])), mask)
        return product(width, product(width, softmax(scores), heads[2]))

    mask, x = vertex(width), vertex(width)
    for _ in range(layers):
        x = norm(vertex(width, x, vertex(width, attention(x))))
        wide = vertex(4 * width, product(4 * width, x))
        gelu = vertex(4 * width, wide, vertex(4 * width, vertex(4 * width, wide)))
        x = norm(vertex(width, x, vertex(width, product(width, gelu))))
    return from_edges(len(sizes), edges, sizes, fixed=frozenset(fixed), **options)


def random_problem(
    rng: random.Random, count: int, fixed: float = 0.1, cheap: float = 0.0, together: float = 0.0
) -> PlanningProblem:
    """Sparse, with arguments, results, kept values and orders that are not of data. `fixed` and
    `cheap` are shares of the vertices, `together` of the edges."""
    readers: dict[int, set[int]] = {vertex: set() for vertex in range(count)}
    arguments: list[tuple[int, ...]] = []
    for vertex in range(count):
        for maker in rng.sample(range(vertex), min(vertex, rng.choice((1, 1, 2, 2, 3)))):
            if rng.random() < 0.85:
                readers[maker].add(vertex)
    for _ in range(rng.randrange(3)):
        arguments.append(tuple(rng.sample(range(count), min(count, rng.randint(1, 3)))))
    sizes = (1, 4, 4, 16)
    values = [PassedValue(rng.choice(sizes), None, found) for found in arguments]
    for vertex, found in readers.items():
        is_kept = not found or rng.random() < 0.1
        values.append(PassedValue(rng.choice(sizes), vertex, tuple(sorted(found)), is_kept))
    orders = {(maker, reader) for maker, found in readers.items() for reader in found}
    if count > 2 and rng.random() < 0.3:
        orders.add(tuple(sorted(rng.sample(range(count), 2))))
    calls = frozenset(v for v in range(count) if rng.random() < fixed)
    free = [v for v in range(count) if v not in calls]
    return PlanningProblem(
        count,
        tuple(sorted(orders)),
        tuple(values),
        calls,
        _bound(rng, orders, calls, together),
        frozenset(v for v in free if rng.random() < cheap),
        most=rng.choice((4, 160)),
        launch_bytes=rng.choice((0, 2, 10)),
    )


def _bound(
    rng: random.Random, orders: set[tuple[int, int]], calls: frozenset[int], share: float
) -> tuple[frozenset[int], ...]:
    """Ends of edges without a third vertex, and so perhaps without a call, in between."""
    found = []
    for first, second in sorted(orders):
        is_direct = not any(a == first and b < second for a, b in orders)
        if is_direct and rng.random() < share and calls.isdisjoint((first, second)):
            found.append(frozenset((first, second)))
    return tuple(found)


def wish(rng: random.Random, chance: float = 0.7) -> Oracle:
    """Refuses some patterns, always the same, and punishes others."""
    salt = rng.random()

    def draw(pattern: Pattern, what: str) -> random.Random:
        sets = sorted(pattern.vertices), sorted(pattern.rematerialised)
        return random.Random(f"{salt} {what} {sets[0]} {sets[1]}")

    return Oracle(
        lambda pattern: draw(pattern, "legal").random() < chance,
        lambda pattern: float(draw(pattern, "penalty").choice((0, 0, 1, 5))),
    )


class Inline:
    """The solver in this process, which counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[IntegerProgram] = []

    def solve(self, program: IntegerProgram, seconds: float) -> Answer | None:
        self.asked.append(program)
        rows = [(row.lower, row.upper, row.terms) for row in program.rows]
        found = milp.solve(program.costs, rows, 60.0)
        return Answer(tuple(found["chosen"]), found["is_optimal"])


def executed(problem: PlanningProblem, patterns: Sequence[Pattern]) -> int | None:
    """Runs a plan: a pattern once all that it loads is in memory and all that must run before has
    run. The bytes that patterns moved; None if they wait for each other or something is missing."""
    data = {(value.maker, reader) for value in problem.values for reader in value.readers}
    makers = [value.maker for value in problem.values]
    memory = {number for number, maker in enumerate(makers) if maker is None}
    loads = [
        {
            number
            for number, value in enumerate(problem.values)
            if value.maker not in pattern.computed
            and not pattern.computed.isdisjoint(value.readers)
        }
        for pattern in patterns
    ]
    wanted = set().union(*loads)
    waiting, total = set(range(len(patterns))), 0
    while waiting:
        for place in sorted(waiting):
            pattern = patterns[place]
            late = [patterns[other].computed for other in waiting if other != place]
            blocked = any(
                b in pattern.computed and any(a in other for other in late)
                for a, b in problem.orders
                if (a, b) not in data
            )
            if not blocked and loads[place] <= memory:
                break
        else:
            return None
        waiting.remove(place)
        stored = {
            number
            for number, value in enumerate(problem.values)
            if value.maker in pattern.vertices and (value.is_kept or number in wanted)
        }
        memory |= stored
        if problem.fixed.isdisjoint(pattern.vertices):
            total += sum(problem.values[number].bytes for number in loads[place] | stored)
            total += problem.launch_bytes
    needed = {number for number, value in enumerate(problem.values) if value.is_kept}
    return total if needed <= memory else None


def cost(judge: Judge, patterns: Sequence[Pattern]) -> float | None:
    moved = executed(judge.problem, patterns)
    several = [p for p in patterns if len(p.computed) > 1]
    return None if moved is None else moved + sum(judge.oracle.penalty(p) for p in several)


def selections(problem: PlanningProblem, columns: Sequence[Pattern]) -> Iterator[list[Pattern]]:
    """All ways to choose columns that hold each vertex once, cheap ones at most once."""

    def rest(vertex: int, taken: frozenset[int]) -> Iterator[list[Pattern]]:
        if vertex == problem.count:
            yield []
            return
        if vertex in taken:
            yield from rest(vertex + 1, taken)
            return
        if vertex in problem.cheap:
            yield from rest(vertex + 1, taken | {vertex})
        for column in columns:
            if min(column.vertices) == vertex and taken.isdisjoint(column.vertices):
                for others in rest(vertex + 1, taken | column.vertices):
                    yield [column, *others]

    return rest(0, frozenset())


def least_cost(judge: Judge, columns: Sequence[Pattern]) -> float:
    """Of the cheapest legal selection that can run."""
    legal = [column for column in columns if judge.is_legal(column)]
    found = (cost(judge, chosen) for chosen in selections(judge.problem, legal))
    return min(each for each in found if each is not None)
