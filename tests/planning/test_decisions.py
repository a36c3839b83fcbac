"""Plans from decisions: the same without a search, and right whatever the decisions say."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemstitch.options import Options
from hemstitch.planning import planner
from hemstitch.planning.cached_plan import CachedPlan
from hemstitch.planning.planner import make_plan
from hemstitch.planning.verifier import verify_plan
from hemstitch.runtime import interpreter as interpret
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import Simulation, assert_close
from tests.effort import examples
from tests.lowered import optimize
from tests.programs import Program, arguments_for

EXACT = 1e-9  # both in float64
MACHINE = generic_cpu(2, 8)


def program_of(random):
    program = Program(random, steps=random.randint(2, 14), mutating=random.random() < 0.4)
    arguments = arguments_for(program.graph, program.sizes, random.randint(0, 1 << 30))
    return optimize(program.graph, program.builder), program.sizes, arguments


def test_nothing_is_looked_for(monkeypatch):
    graph, _, _ = program_of(Random(1))
    plan = make_plan(graph, MACHINE, Options())
    monkeypatch.setattr(planner, "_with_matmuls", None)
    again = make_plan(graph, MACHINE, Options(), plan.cached_plan)
    told = ([(label, str(why)) for label, why in each.refusals] for each in (plan, again))
    assert next(told) == next(told)
    assert len(again.kernels) == len(plan.kernels)


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {"inlined": []},
        {
            "inlined": [],
            "fusion_barriers": [],
            "rematerialised": [],
            "clusters": [3],
            "refusals": [],
        },
        {
            "inlined": [True],
            "fusion_barriers": [],
            "rematerialised": [],
            "clusters": [],
            "refusals": [],
        },
        {
            "inlined": [1.0],
            "fusion_barriers": [],
            "rematerialised": [],
            "clusters": [],
            "refusals": [],
        },
        {
            "inlined": [],
            "fusion_barriers": [],
            "rematerialised": [],
            "clusters": [],
            "refusals": [["a", "b"]],
        },
        {
            "inlined": [],
            "fusion_barriers": [],
            "rematerialised": [],
            "clusters": [],
            "refusals": ["abc"],
        },
    ],
)
def test_what_is_no_record(record):
    assert CachedPlan.parse(record) is None


@settings(max_examples=examples(160), deadline=None)
@given(st.integers(0, 1 << 40))
def test_wrong_decisions_make_right_plans(seed):
    random = Random(seed)
    graph, sizes, arguments = program_of(random)
    decided = make_plan(graph, MACHINE, Options()).cached_plan
    for _ in range(random.randint(1, 3)):
        decided = tampered(decided, random)
    plan = make_plan(graph, MACHINE, Options(), decided)
    verify_plan(plan)
    found = Simulation(sizes, MACHINE.threads).run(graph, plan, arguments)
    assert_close(found, interpret.run(graph, arguments, precise=True), EXACT)


def tampered(decided, random):
    clusters = [list(each) for each in decided.clusters]
    numbers = [number for each in clusters for number in each]
    some = tuple(random.choices(range(-1, 2 + 2 * len(numbers)), k=random.randint(1, 3)))
    match random.randrange(7):
        case 0:
            return replace(decided, inlined=some)
        case 1:
            return replace(decided, fusion_barriers=some)
        case 2:
            return replace(decided, rematerialised=some)
        case 3 if numbers:
            random.shuffle(numbers)
            clusters = [[numbers.pop() for _ in each] for each in clusters]
        case 4 if len(clusters) > 1:
            first, second = random.sample(range(len(clusters)), 2)
            clusters[first] += clusters[second]
            clusters.pop(second)
        case 5 if clusters:
            clusters.pop(random.randrange(len(clusters)))
        case _:
            clusters = [[number] for number in numbers]
    return replace(decided, clusters=tuple(map(tuple, clusters)))
