"""Clocks of a warp and the estimate, against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from hemstitch.latency.architecture import GUESS, HOPPER, Architecture
from hemstitch.latency.cycles import warp_cycles
from hemstitch.latency.disassembly import (
    Control,
    Disassembly,
    Instruction,
    Resources,
    SourceLine,
    parse,
)
from hemstitch.latency.evaluate import Bound, LaunchFacts, evaluate
from hemstitch.latency.loops import find_loops
from hemstitch.latency.opcodes import Pipe
from hemstitch.latency.ptx import PtxInstruction, SynchronisationRole, parse_ptx

FIXTURES = Path(__file__).parent / "fixtures"
FOR, BODY, LAST = (SourceLine("k.py", line) for line in (2, 3, 9))
BREAK = SourceLine("k.py", 5)
MEMORY = 600.0  # of GUESS


def row(
    address: int,
    opcode: str,
    *,
    stall: int = 1,
    sets: int | None = None,
    waits: tuple[int, ...] = (),
    line: SourceLine = BODY,
    target: int | None = None,
    operands: tuple[str, ...] = (),
) -> Instruction:
    control = Control(stall, True, sets, None, waits)
    return Instruction(address, opcode, None, operands, control, (line,), target)


def kernel(*rows: Instruction, registers: int = 32) -> Disassembly:
    return Disassembly("k", "sm_90", rows, Resources(registers, 0, 0, 0))


def clocks(code: Disassembly, trips: dict[SourceLine, float] | None = None) -> float:
    return warp_cycles(code, find_loops(code, trips or {}), GUESS).cycles


def test_stalls_add_up() -> None:
    assert clocks(kernel(row(0, "FADD", stall=4), row(16, "FADD"), row(32, "EXIT", stall=5))) == 10


def test_a_reader_waits_for_the_slowest_of_its_scoreboard() -> None:
    # issued at 0 and 1, there at 600 and 601; the reader takes 2
    loads = (row(0, "LDG.E", sets=0), row(16, "LDG.E", sets=0))
    assert clocks(kernel(*loads, row(32, "FADD", stall=2, waits=(0,)))) == MEMORY + 1 + 2


def test_what_nobody_waits_for_costs_nothing() -> None:
    assert clocks(kernel(row(0, "LDG.E", sets=0), row(16, "EXIT"))) == 2


def test_a_later_group_of_copies_may_still_be_under_way() -> None:
    # Two groups, committed at 1 and 103; waiting for all but one ends with the first, at 600.
    rows = (
        row(0, "LDGSTS.E.128"),
        row(16, "LDGDEPBAR", sets=0, stall=2),
        row(32, "FADD", stall=100),
        row(48, "LDGSTS.E.128"),
        row(64, "LDGDEPBAR", sets=0),
        row(80, "DEPBAR.LE", operands=("SB0", "0x1")),
    )
    assert clocks(kernel(*rows)) == MEMORY + 1
    assert clocks(kernel(*rows, row(96, "DEPBAR.LE", operands=("SB0", "0x0")))) == 103 + MEMORY + 1


def test_code_behind_the_last_exit_does_not_run() -> None:
    assert clocks(kernel(row(0, "EXIT"), row(16, "FADD", stall=15))) == 1


def loop(*, line: SourceLine = FOR) -> Disassembly:
    return kernel(
        row(0, "MOV", line=LAST),
        row(16, "LDG.E", sets=0),
        row(32, "FADD", stall=4, waits=(0,)),
        row(48, "BRA", stall=5, line=line, target=16),
        row(64, "EXIT", line=LAST),
    )


def test_a_loop_runs_as_often_as_the_caller_says() -> None:
    once = MEMORY + 4 + 5
    assert clocks(loop(), {FOR: 1}) == 1 + once + 1
    assert clocks(loop(), {FOR: 10}) == 1 + 10 * once + 1
    assert clocks(loop(), {FOR: 0.5}) == 1 + 0.5 * once + 1
    assert clocks(loop()) == 1 + once + 1


def test_a_loop_that_only_polls_runs_once() -> None:
    code = kernel(row(0, "LDG.E.STRONG.GPU", sets=0), row(16, "BRA", line=FOR, target=0))
    (found,) = find_loops(code, {FOR: 100})
    assert (found.line, found.trips) == (None, 1.0)


def test_loops_within_loops_multiply() -> None:
    code = kernel(
        row(0, "FADD", line=FOR),
        row(16, "FADD", stall=2, line=BREAK),
        row(32, "BRA", line=BREAK, target=16),
        row(48, "BRA", line=FOR, target=0),
        row(64, "EXIT", line=LAST),
    )
    warp = warp_cycles(code, find_loops(code, {FOR: 3, BREAK: 5}), GUESS)
    assert warp.cycles == 3 * (1 + 5 * 3 + 1) + 1
    assert warp.instructions == 3 * (1 + 5 * 2 + 1) + 1


def test_a_loop_of_a_function_counts_for_the_line_it_was_inlined_from() -> None:
    inlined = Instruction(
        0, "FADD", None, (), Control(1, True, None, None, ()), (SourceLine("lib.py", 7), FOR)
    )
    code = kernel(inlined, row(16, "BRA", line=LAST, target=0), row(32, "EXIT"))
    (found,) = find_loops(code, {FOR: 8})
    assert (found.line, found.trips) == (FOR, 8)


def test_the_share_of_programs_that_run_a_line() -> None:
    code = kernel(
        row(0, "FADD", stall=10, line=FOR),
        row(16, "LDG.E", sets=0, line=BODY),
        row(32, "FADD", stall=4, waits=(0,), line=BODY),
        row(48, "EXIT", line=LAST),
    )
    warp = warp_cycles(code, (), GUESS, {BODY: 0.25})
    assert warp.cycles == 10 + 0.25 * (MEMORY + 4) + 1
    assert warp.instructions == 1 + 0.25 * 2 + 1


def chase() -> Disassembly:
    text = (FIXTURES / "pointer_chase.sass").read_text()
    return parse(text, (FIXTURES / "pointer_chase.usage").read_text())


def test_what_ptxas_unrolled_shows_in_the_ptx() -> None:
    # ptxas made one loop of four steps and one for the rest.
    ptx = parse_ptx((FIXTURES / "pointer_chase.ptx").read_text())
    line = SourceLine("kernels.py", 93)
    main, rest = find_loops(chase(), {line: 1000}, ptx)
    assert (main.line, main.unrolled, main.trips) == (line, 4, 250)
    assert (rest.line, rest.trips) == (None, 1)
    cycles = warp_cycles(chase(), (main, rest), GUESS).cycles
    assert 1000 * MEMORY < cycles < 1.05 * 1000 * MEMORY


def test_special_functions_that_ptxas_gave_another_line_unroll_nothing() -> None:
    code = kernel(
        row(0, "LDG.E", sets=0),
        *(row(16 * place, "MUFU.EX2", stall=2) for place in range(1, 5)),
        row(80, "BRA", line=FOR, target=0),
        row(96, "EXIT", line=LAST),
    )
    load = PtxInstruction("ld.global.b32", SynchronisationRole.ACCESS, BODY, True)
    functions = [PtxInstruction("ex2.approx.f32", SynchronisationRole.OTHER, BODY, True)] * 2
    (found,) = find_loops(code, {FOR: 8}, [load, *functions])
    assert (found.unrolled, found.trips) == (1, 8)
    (found,) = find_loops(code, {FOR: 8}, functions)
    assert (found.unrolled, found.trips) == (2, 4)


def test_ptx_knows_lines_and_loops() -> None:
    ptx = parse_ptx((FIXTURES / "pointer_chase.ptx").read_text())
    (load,) = (each for each in ptx if each.opcode == "ld.global.b32")
    assert load.is_in_loop and load.role is SynchronisationRole.ACCESS
    assert load.line is not None and load.line.file == "kernels.py"
    (store,) = (each for each in ptx if each.opcode == "st.global.b32")
    assert not store.is_in_loop


# The estimate: 132 SMs at 2 GHz, everything else as for Hopper.
PLAIN: Architecture = replace(
    HOPPER, clock_hertz=2e9, fitted=replace(GUESS, copy_share=0.5, barrier_seconds=1e-6)
)


def test_waves_times_cycles() -> None:
    # 8 warps of 32 registers: 8 blocks an SM, 1056 at a time; 1057 programs are two waves of 611.
    estimate = evaluate(loop(), LaunchFacts(programs=1057, warps=8), PLAIN)
    assert estimate.occupancy.blocks == 8
    assert estimate.waves == pytest.approx(1057 / 1056)
    assert estimate.latency_seconds == pytest.approx(2 * 611 / 2e9)
    assert estimate.bound is Bound.LATENCY and estimate.seconds == estimate.latency_seconds


def test_pipes() -> None:
    # 16 programs an SM of 8 warps: 128 warps, 5 instructions each, 4 issued in a clock. The fma
    # pipe takes 4 warps in a clock, load/store one.
    estimate = evaluate(loop(), LaunchFacts(programs=16 * 132, warps=8), PLAIN)
    assert estimate.pipe_seconds[Pipe.ISSUE] == pytest.approx(128 * 5 / 4 / 2e9)
    assert estimate.pipe_seconds[Pipe.FMA] == pytest.approx(128 / 4 / 2e9)
    assert estimate.pipe_seconds[Pipe.MEMORY] == pytest.approx(128 / 2e9)
    assert estimate.busiest_pipe is Pipe.ISSUE


def test_bytes_and_barriers() -> None:
    launch = LaunchFacts(programs=132, warps=8, memory_bytes=4.8e9, cache_bytes=5.5e6, barriers=2)
    estimate = evaluate(loop(), launch, PLAIN)
    assert estimate.memory_seconds == pytest.approx(2e-3)  # half of 4.8 TB/s
    assert estimate.cache_seconds == pytest.approx(1e-6)
    assert estimate.bound is Bound.MEMORY
    assert estimate.seconds == pytest.approx(2e-3 + 2e-6)


def test_flops_that_the_caller_knows() -> None:
    flops = 4096.0 * 132 * 2e9
    estimate = evaluate(loop(), LaunchFacts(programs=132, warps=8, matrix_flops=flops), PLAIN)
    assert estimate.pipe_seconds[Pipe.MATRIX] == pytest.approx(1.0)


def test_a_kernel_that_cannot_be_launched_takes_forever() -> None:
    estimate = evaluate(loop(), LaunchFacts(programs=1, warps=8, shared_bytes=1 << 20), PLAIN)
    assert estimate.bound is Bound.LAUNCH and math.isinf(estimate.seconds)
    assert "it cannot be launched" in str(estimate)


def test_an_unknown_opcode_is_named() -> None:
    estimate = evaluate(kernel(row(0, "FROBNICATE.F32")), LaunchFacts(programs=1, warps=1), PLAIN)
    assert estimate.unknown_opcodes == ("FROBNICATE.F32",)


def test_the_choice_is_explained() -> None:
    text = str(evaluate(loop(), LaunchFacts(programs=132, warps=8, barriers=1), PLAIN))
    assert text == (
        "1.31 us, bound by latency (latency 0.31, pipe 0.01, memory bandwidth 0.00, "
        "cache bandwidth 0.00, barriers 1.00; busiest pipe issue); 8 blocks of 8 warps, "
        "limited by warps and registers; 0.12 waves of 611 clocks; uncalibrated"
    )
