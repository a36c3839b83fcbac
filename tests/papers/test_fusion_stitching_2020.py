"""FusionStitching 2020: rows F2-1 to F2-8 and F2-15 to F2-17. Its schemes are templates chosen for
each group; here they are what a reduction's result needs to reach its readers."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F

from hemstitch.errors import InternalError
from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.nodes import Accumulate, Let, Load, Loop, Phase, Role, statements
from hemstitch.kernel_ir.traffic import executed
from hemstitch.kernel_ir.verifier import verify
from hemstitch.latency.architecture import HOPPER, architecture
from hemstitch.latency.evaluate import LaunchFacts, evaluate
from hemstitch.latency.occupancy import occupancy
from hemstitch.options import Options
from hemstitch.stitching.schedule import Scheme
from hemstitch.targets.cpu.scratch_layout import scratch_layout
from tests.latency.test_cycles import kernel, row
from tests.papers.harness import (
    CONSERVATIVE,
    CPU,
    GPU,
    agree,
    both_targets,
    evaluations,
    lane_loops,
    machine_code,
    nests,
    plan,
    planned,
    random,
    scratch,
    triton_program,
)
from tests.programs import Program, arguments_for
from tests.test_kernel_counts import check_numbers

OCCUPANCY = Path(__file__).parents[1] / "latency" / "occupancy.csv"


@both_targets
def test_F2_1_independent_work_is_packed(machine, measured):
    def three(a, b, c):
        return a.exp(), b.relu(), c * 2

    def of_one(a):
        return a.exp(), a.relu(), a * 2

    tensors = [random(1024, 512, seed=k) for k in range(3)]
    packed = plan(three, *tensors, machine=machine)
    shared = plan(of_one, tensors[0], machine=machine)
    mixed = plan(three, tensors[0], random(7, 300), random(900), machine=machine)
    assert len(packed.kernel.phases) == len(mixed.kernel.phases) == 1
    assert (len(nests(packed.kernel)), len(nests(mixed.kernel))) == (3, 3)
    assert len(lane_loops(shared.kernel)) == 1
    agree(packed.run(tensors), three(*(x.double() for x in tensors)), 1e-12)
    measured("3 of one or three shapes: 1 kernel, 3 loops; 3 that read one tensor: 1 loop")


@both_targets
def test_F2_2_values_stay_in_registers(machine, measured):
    def function(x, y):
        return torch.relu(x * y + x)

    x, y = random(1024, 512), random(1024, 512, seed=1)
    found = plan(function, x, y, machine=machine)
    (loop,) = lane_loops(found.kernel)
    assert all(buffer.role in (Role.INPUT, Role.OUTPUT) for buffer in found.kernel.buffers)
    assert not any(isinstance(s, Accumulate | Loop) for s in loop.body)
    assert found.bytes_read + found.bytes_written == 3 * x.nbytes
    (text,) = found.texts()
    assert not re.search(r"tl\.(sum|max|debug_barrier)|shufflevector", text)
    measured(f"1 kernel, {3 * x.nbytes} bytes moved, no scratch")


def shares(x):
    return x / x.sum(1, keepdim=True)


def test_F2_3_short_rows_are_reduced_within_a_warp(measured):
    found = plan(shares, random(4096, 64), machine=GPU)
    assert found.schemes == [Scheme.REGIONAL]
    known, built = machine_code(found)
    assert known.shuffles > 0
    assert (known.barriers, built.shared_bytes) == (0, 0)
    measured(f"sm_90: {known.shuffles} shuffles, 0 barriers, 0 bytes of shared memory")


def test_F2_4_long_rows_are_reduced_within_a_block(measured):
    x = random(256, 8192)
    found = plan(shares, x, machine=GPU)
    assert found.schemes == [Scheme.REGIONAL]
    assert found.bytes_read + found.bytes_written == 2 * x.nbytes
    assert scratch(found.kernel, Role.SHARED, found.sizes) == 0
    known, built = machine_code(found)
    assert known.barriers > 0 and built.shared_bytes > 0
    words = f"{known.barriers} barriers, {built.shared_bytes} bytes of shared memory"
    measured(f"sm_90: {words}, each row read once")


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (1024,), weight, bias)


@both_targets
def test_F2_5_a_layer_norm_is_one_kernel(machine, measured):
    arguments = random(128, 1024), random(1024), random(1024, seed=1)
    found = plan(layer_norm, *arguments, machine=machine)
    plain = plan(layer_norm, *arguments, machine=machine, options=CONSERVATIVE)
    x, weight, bias = (argument.nbytes for argument in arguments)
    assert (found.bytes_read, found.bytes_written) == (x + weight + bias, x)
    assert len(found.kernels) == 1 and len(plain.kernels) >= 3
    agree(found.run(arguments), [layer_norm(*(x.double() for x in arguments))], 1e-6)
    measured(f"1 kernel, conservative {len(plain.kernels)}; {2 * x + weight + bias} bytes")


def test_F2_6_an_expensive_value_that_rows_share_may_be_a_sub_root(measured):
    """log<N> and its broadcast: both groupings are weighed. What is cheap is always computed where
    it is read, a reduction never again."""
    b, x = random(1024), random(512, 1024)
    sizes = {"threads": CPU.threads}

    def kernels_of(function, *arguments):
        found = plan(function, *arguments, machine=CPU)
        agree(found.run(arguments), [function(*(a.double() for a in arguments))], 1e-5)
        return found.kernels

    def dear(b, x):
        return torch.log(torch.tanh(torch.exp(b))) * x

    several, (single,) = kernels_of(dear, b, x), kernels_of(dear, b, x[:2].clone())
    assert len(several) == 2
    times = [sum(evaluations(k, Op.LOG, sizes) for k in each) for each in (several, [single])]
    assert times == [1024, 2 * 1024]
    (cheap,) = kernels_of(lambda b, x: (b * 2 + 1) + x, b, x)
    assert evaluations(cheap, Op.MUL, sizes) == 512 * 1024
    (reduced,) = kernels_of(lambda b, x: b.sum() + x, b, x)
    added = [
        times
        for phase in reduced.phases
        for statement, times in executed(phase, sizes)
        if isinstance(statement, Accumulate)
    ]
    assert sum(added) <= 1024 + CPU.threads * CPU.threads
    # On a GPU memory takes longer than the arithmetic, and a launch counts.
    assert len(plan(dear, b, x, machine=GPU).kernels) == 1
    measured(
        "512 rows: log of 1,024 values once, in a kernel of its own; 2 rows, or a GPU: in each"
    )


@both_targets
def test_F2_7_no_row_reads_what_another_task_left_without_a_barrier(machine, measured):
    """A consumer whose rows cross its producer's waits; without the barrier it is refused."""

    def shifted(x):
        return x[1:] - x.sum(1, keepdim=True)[:-1]

    x = random(400, 300)
    found = plan(shifted, x, machine=machine)
    assert found.schemes == [Scheme.SHARED] and found.kernel.barriers == 1
    agree(found.run([x]), [shifted(x.double())], 1e-12)
    together = Phase(tuple(nests(found.kernel)))
    with pytest.raises(InternalError, match="is not written in an earlier phase"):
        verify(replace(found.kernel, phases=(together,)))
    count = 0
    for seed in range(40):
        program = Program(Random(seed), steps=8)
        each = planned(program.graph, machine)
        each.run(arguments_for(program.graph, program.sizes, seed))
        count += len(each.kernels)
    measured(f"1 barrier, refused without; no race in {count} kernels of random programs")


@pytest.mark.needs_gpu("rank correlation of estimates with measured times")
def test_F2_8_occupancy_and_waves(measured):
    with OCCUPANCY.open() as lines:
        rows = list(csv.DictReader(lines))
    wrong = 0
    for known in rows:
        held = occupancy(
            architecture(known["target"]),
            registers=int(known["registers"]),
            shared_bytes=int(known["static_bytes"]) + int(known["dynamic_bytes"]),
            warps=int(known["warps"]),
        )
        wrong += held.blocks != int(known["blocks"])
    assert wrong == 0
    # 4 + 1 + 5 clocks of a warp; 64 warps of an SM are 16 blocks of 4, so 132 SMs hold 2112
    code = kernel(row(0, "FADD", stall=4), row(16, "FADD"), row(32, "EXIT", stall=5))
    found = evaluate(code, LaunchFacts(programs=3 * 2112, warps=4), HOPPER)
    assert (found.waves, found.warp_cycles) == (3.0, 10.0)
    assert found.latency_seconds == pytest.approx(3 * 10 / HOPPER.clock_hertz)
    measured(f"{len(rows)} of {len(rows)} configurations as NVIDIA's calculator has them")


def norms(x, count):
    for _ in range(count):
        x = F.layer_norm(x.tanh(), (1024,))
    return x


def test_F2_16_each_norm_takes_the_row_buffer_of_the_one_before(measured):
    x, found = random(128, 1024), []
    for count in (1, 2, 5):
        each = plan(norms, x, count, machine=CPU)
        rows = sum(b.role is Role.TASK for b in each.kernel.buffers)
        found.append((count, rows, scratch_layout(each.kernel, 1).total))
        check_numbers(partial(norms, count=count), (x,))
    assert [rows for _, rows, _ in found] == [1, 2, 5]
    assert {size for _, _, size in found} == {4 * 1024}
    measured("; ".join(f"{n} norms: {rows} buffers in {size} bytes" for n, rows, size in found))


def test_F2_16_norms_on_a_gpu_need_the_on_chip_memory_of_one(measured):
    """Their rows are registers."""
    found = []
    for count in (1, 2, 5):
        each = plan(norms, random(128, 1024), count, machine=GPU)
        assert triton_program(each.steps[0]).scratch == ()
        known, built = machine_code(each)
        assert known.spills == 0
        found.append((count, built.shared_bytes))
    assert len({size for _, size in found}) == 1
    measured("; ".join(f"{n} norms: {size} bytes of shared memory" for n, size in found))


DIVISION = re.compile(r"\w+ (?://|%) \w+|[us](?:div|rem) i64 .*")
INDEXED = {
    "softmax, mask of each batch": (
        lambda x, mask: torch.softmax(x + mask, -1),
        [(8, 12, 16, 200), (8, 1, 16, 200)],
    ),
    "transposed softmax": (lambda x: torch.softmax(x.transpose(1, 2), -1), [(6, 33, 40)]),
    "heads": (lambda x: x.view(4, 16, 3, 20).transpose(1, 2).exp() + 1, [(4, 16, 60)]),
    "norm of heads": (
        lambda x, w: F.layer_norm(x, (60,), w).view(4, 16, 3, 20).transpose(1, 2),
        [(4, 16, 60), (60,)],
    ),
    "rotary": (
        lambda x, c: x * c + torch.cat([-x[..., 10:], x[..., :10]], -1) * c.sin(),
        [(4, 3, 16, 20), (16, 20)],
    ),
}


@both_targets
def test_F2_15_no_kernel_crosses_blocks_without_global_stitching(machine, measured):
    def columns(x):
        return x - x.sum(0)

    def chain(x):
        return torch.softmax(x, -1) - torch.softmax(x, -1).sum(0)

    x = random(512, 300)
    off = Options(global_stitching=False)
    found = [plan(function, x, machine=machine, options=off) for function in (columns, chain)]
    for each in found:
        assert all(len(kernel.phases) == 1 for kernel in each.kernels)
        assert not set(each.schemes) - {Scheme.REGIONAL}
    agree(found[1].run([x]), [chain(x.double())], 1e-12)
    apart, on = found[1], plan(chain, x, machine=machine)
    assert len(apart.kernels) >= 2 and len(on.kernels) == 1
    assert "global" in {refusal.check for _, refusal in apart.plan.refusals}
    measured(f"{len(apart.kernels)} kernels without a barrier, {len(on.kernels)} with")


@both_targets
def test_F2_17_each_index_is_computed_once(machine, measured):
    """Divisions take axes out of a row's number: one for each axis, none for an access; and no loop
    has two statements that make the same."""
    divisions = twice = 0
    for function, shapes in INDEXED.values():
        found = plan(function, *(random(*shape) for shape in shapes), machine=machine)
        for text in map(_functions, found.texts()):
            made = Counter(DIVISION.findall(text))
            divisions += made.total()
            twice += made.total() - len(made)
        for body in (body for each in found.kernels for body in _bodies(each)):
            values = Counter(_right_side(s) for s in body if isinstance(s, Let | Load))
            twice += values.total() - len(values)
    assert twice == 0 < divisions
    measured(f"{divisions} divisions and remainders in {len(INDEXED)} programs; nothing made twice")


def _functions(text):
    """The nests, without what the launch does around them. Names differ between functions."""
    if "@triton.jit" in text:
        return "\n".join(text.split("@triton.jit")[1:-1])
    return "\n".join(re.findall(r"(?s)define internal void @\w+_nest\d+.*?\n}", text))


def _bodies(kernel):
    for nest in nests(kernel):
        yield from (nest.prologue, nest.body, nest.epilogue)
    yield from (s.body for s in statements(kernel) if isinstance(s, Loop))


def _right_side(statement):
    if isinstance(statement, Load):
        return statement.buffer, statement.index, statement.mask
    return statement.op, statement.operands, statement.source, statement.dtype
