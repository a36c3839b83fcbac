"""Random programs as Triton kernels, emulated in a random order with all checks: they mean what the
graph means."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hemstitch.runtime import interpreter as interpret
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import assert_close, execute, has_halves
from tests.effort import examples
from tests.lowered import optimize
from tests.programs import Program, arguments_for, hasty

pytest.importorskip("triton")
ROUNDED, HALVES = 1e-4, 3e-2


@settings(max_examples=examples(60), deadline=None)
@example(37_560_858)  # loads from an argument without elements
@example(19_662_983)  # what is the same in all rows is added up over rows
@example(2_039_747_507)  # all threads read what one of them writes
@given(st.integers(0, 1 << 40))
def test_kernels_mean_what_the_graph_means(seed):
    check(seed)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 1 << 40))
@example(103_401_761)  # all threads read what one of them writes
@example(45_191_312)  # the same
def test_scans_too(seed):
    check(seed, scanning=True)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 1 << 40))
@example(244)  # a row fills what it then adds to
@example(1_238_247_883)  # all threads read what one of them writes
def test_sums_by_index_too(seed):
    check(seed, scattering=True)


def check(seed, **kinds):
    random = Random(seed)
    program = Program(
        random,
        steps=random.randint(2, 14),
        symbolic=random.random() < 0.3,
        mutating=random.random() < 0.4,
        empty=random.random() < 0.05,
        **kinds,
    )
    arguments = arguments_for(program.graph, program.sizes, random.randint(0, 1 << 30))
    graph = optimize(program.graph, program.builder)
    machine, alone = hasty(generic_gpu(), random), random.random() < 0.5
    results = execute(graph, arguments, machine, target="interpret", alone=alone)
    assert_close(results, interpret.run(graph, arguments), HALVES if has_halves(graph) else ROUNDED)
