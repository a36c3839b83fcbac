"""Keys of kernels: equal for kernels with equal machine code, and no others."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from enum import Enum
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings

from hemstitch.ir.dims import symbol
from hemstitch.ir.ops import Op
from hemstitch.kernel_ir.digest import REASON, digest
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import Kernel, statements
from hemstitch.options import Options
from hemstitch.planning.planner import make_plan
from hemstitch.targets.cpu.description import Target, generic_cpu
from tests.lowered import llvm
from tests.planning.test_random_programs import SEEDS, kinds_of, program_of

CPU = generic_cpu(2, 8)
TARGET = Target(8, 2, True)


def kernels_of(seed: int) -> list[Kernel]:
    random = Random(seed)
    graph, _, _ = program_of(random, **kinds_of(random))
    return [step.stitched.kernel for step in make_plan(graph, CPU, Options()).kernels]


def key(kernel: Kernel) -> str:
    return digest(kernel.buffers, kernel.phases)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_equal_keys_are_of_equal_programs(seed: int) -> None:
    known: dict[str, tuple[object, ...]] = {}
    for kernel in (*kernels_of(seed), *kernels_of(seed), *kernels_of(seed + 1)):
        program = llvm(replace(kernel, name="kernel"), TARGET)
        facts = program.text, program.sizes, program.scratch_bytes
        assert known.setdefault(key(kernel), facts) == facts


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_the_same_program_again_has_the_same_keys(seed: int) -> None:
    assert list(map(key, kernels_of(seed))) == list(map(key, kernels_of(seed)))


def another(value: object) -> object:
    """Of the same kind where there is one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, (str, tuple)):
        return value + value[:1] if value else None
    if isinstance(value, Enum):
        return next(member for member in type(value) if member is not value)
    return None if value is not None else "something"


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_whatever_is_another_has_another_key(seed: int) -> None:
    for kernel in kernels_of(seed):
        nests = [nest for phase in kernel.phases for nest in phase.nests]
        for record in (*kernel.buffers, *kernel.phases, *nests, *statements(kernel)):
            assert is_dataclass(record)
            for field in fields(record):
                old = getattr(record, field.name)
                other = replace(record, **{field.name: another(old)})
                assert (digest(other) == digest(record)) == (field.name == REASON), field.name


def test_numbers_that_python_calls_equal_differ() -> None:
    numbers = (0, 0.0, -0.0, False, None, "0", (0,), ((0,),), float("nan"), Op.ADD, symbol("n"))
    assert all(digest(a) != digest(b) for a, b in combinations(numbers, 2))
    assert digest(float("nan")) == digest(float("nan"))


def test_axes_are_themselves() -> None:
    first, second = Axis("i", 4), Axis("i", 4)
    assert digest(at(first)) == digest(at(second))
    assert digest(at(first), at(first)) != digest(at(first), at(second))
    assert digest(at(first), at(second)) == digest(at(second), at(first))
    assert digest(at(Axis("i", 4))) != digest(at(Axis("i", 5)))
    assert digest(Index()) != digest(at(first))


def test_how_values_are_grouped_counts() -> None:
    assert digest(("a", "b"), ()) != digest(("a",), ("b",)) != digest("a", ("b",))


def test_what_is_no_record_is_refused() -> None:
    for value in ({}, object(), [1], {1}):
        with pytest.raises(TypeError):
            digest(value)
