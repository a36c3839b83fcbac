"""A sample of random programs of functions: with special values, shared and strided arguments and
writes, results and gradients are eager's. `python -m benchmarks.random_functions` runs as many
as are wanted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from benchmarks.random_functions.arguments import Argument, Memory
from benchmarks.random_functions.draw import drawn
from benchmarks.random_functions.judge import Reference, difference, is_runnable
from benchmarks.random_functions.otherwise import Otherwise
from benchmarks.random_functions.outcome import Outcome, outcome
from benchmarks.random_functions.program import Line, Program, combined, described
from tests.effort import IS_WHOLE

TOGETHER = 4
SEEDS = range(400 if IS_WHOLE else 16)


def _programs(gradients: bool) -> list[Program]:
    programs = [drawn(seed) for seed in SEEDS]
    plain = (gradients, False, False)
    return [x for x in programs if x.settings == plain and x.lines and is_runnable(x)]


@pytest.mark.parametrize("gradients", [False, True])
def test_whole_programs(gradients: bool) -> None:
    programs = _programs(gradients)
    for start in range(0, len(programs), TOGETHER):
        batch = programs[start : start + TOGETHER]
        if difference(combined(batch)) is not None:
            for program in batch:
                seen = difference(program)
                assert seen is None or seen.is_pytorch, f"{seen}\n{described(program)}"


def test_programs_of_symbolic_sizes_and_of_two_types() -> None:
    """Symbolic sizes are others in a later call."""
    for program in map(drawn, range(200 if IS_WHOLE else 40)):
        if (program.dynamic or program.autocast) and program.lines and is_runnable(program):
            seen = difference(program)
            assert seen is None or seen.is_pytorch, f"{seen}\n{described(program)}"


def test_one_wrong_element_is_told() -> None:
    """Where a rounding earlier in the program does not change as much."""
    told = []
    for program in map(drawn, range(400 if IS_WHOLE else 40)):
        if not program.lines or not is_runnable(program):
            continue
        ours = outcome(program, program.function())
        assert isinstance(ours, Outcome)
        numbers = ours.values["result 0"].clone()
        if numbers.is_floating_point() and numbers.isfinite().any():
            place = tuple(numbers.isfinite().nonzero()[0].tolist())
            numbers[place] = numbers[place] * 1.05 + 0.05
            ours.values["result 0"] = numbers
            told.append(Reference(program).compared(ours) is not None)
    assert len(told) > 15 and sum(told) >= 0.9 * len(told)


def test_what_runs_as_traced_is_compared_too() -> None:
    program = next(x for x in map(drawn, range(40)) if x.lines and is_runnable(x))
    ours = outcome(program, program.function())
    assert isinstance(ours, Outcome)
    ours.warned.append("H008: a graph could not be compiled")
    reference = Reference(program)
    kind, text = reference.compared(ours) or ("", "")
    assert (kind, text) == ("falls back", ours.warned[-1])
    ours.values["result 0"] = torch.full_like(ours.values["result 0"], 77)
    kind, text = reference.compared(ours) or ("", "")
    assert kind == "result" and ours.warned[-1] in text


def test_gradients_of_zeros_for_what_is_written() -> None:
    """An argument with NaN is raised to a power in place, and nobody asks for it."""
    program = drawn(14_001)
    asked = outcome(program.replaced(asks_for_written=True), program.function())
    alone = outcome(program, program.function())
    assert isinstance(asked, Outcome) and isinstance(alone, Outcome)
    assert asked.values["gradient 0"].isnan().any()
    assert not alone.values["gradient 0"].isnan().any()


def test_places_are_pytorchs_where_its_backward_raises() -> None:
    memory = Memory(torch.float32, 8, "ordinary", 0)
    lines = ("F.silu(a0, inplace=True)", "a0.unbind(0)[1]")
    program = Program(
        (memory,),
        (Argument(0, (2, 4), (4, 1), 0),),
        tuple(Line(f"v{n}", text, "a0", True, False, False) for n, text in enumerate(lines)),
        ("v1",),
        gradients=True,
        dynamic=False,
        autocast=False,
    )
    seen = difference(program)
    assert seen is not None and seen.kind == "places" and seen.is_pytorch


def test_errors_for_operands_near_by() -> None:
    x = torch.linspace(-4, -3, 1000)
    special = torch.tensor([-0.0, 0.0, torch.inf, torch.nan, 1e30])
    with Otherwise(0):
        y, of_special = F.gelu(x), special.sinh()
    off = ((y.double() - F.gelu(x.double())) / y).abs().max()
    assert 1e-5 < off < 3e-2  # eager's is 9e-4, with AVX-512 6e-3; a rounding 6e-8
    torch.testing.assert_close(of_special, special.sinh(), equal_nan=True)
    assert of_special[:2].signbit().tolist() == [True, False]
