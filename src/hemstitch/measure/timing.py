"""Times kernels and library matmuls on this processor. Takes a probe, or a step of a plan, gives
seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter, sleep, thread_time
from timeit import Timer

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Graph, Node, Op, Output, toposort
from hemstitch.ir.ops import OPS, is_reduction
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.machine.matmul_rates import MatmulTimings
from hemstitch.machine.probes import MatmulProbe, OperationProbe, Probe, RateProbe
from hemstitch.matmul.lowering.blocking import USUAL, Blocking
from hemstitch.options import Options
from hemstitch.pipeline import CPU_LOWERING, run_stages
from hemstitch.planning.plan import KernelStep
from hemstitch.planning.planner import make_plan
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES
from hemstitch.stitching.group import Group, Tensor, Write, is_member
from hemstitch.stitching.stitcher import stitch
from hemstitch.targets.cpu.description import CPULowering, generic_cpu
from hemstitch.targets.cpu.kernel import LLVMProgram
from hemstitch.toolchain.compile_lock import CODE_GENERATOR
from hemstitch.toolchain.jit import Entry, host_target, load
from hemstitch.toolchain.llvm_workers import Helpers

BLOCKS, BLOCK_SECONDS = 40, 3e-4  # shorter than a scheduler's time slice
PAUSE_SECONDS, MOST_SECONDS = 2e-3, 0.5
# Of each matmul that rates come from; the first turn fills caches.
LEAST_TURNS, MOST_TURNS, RATE_SECONDS = 4, 20, 2e-3
BUSY_SHARE = 0.9  # of the wall time that this thread must have run
ROW_PADDING = 16  # elements, so that rows are not collapsed into one


def measure(probe: Probe) -> Mapping[Probe, float]:
    """The time of a call, compiled as any graph. A library matmul and the same matmul in a kernel
    are timed together, since they are compared."""
    if isinstance(probe, MatmulProbe):
        return _matmuls(replace(probe, by="library"), replace(probe, by="kernel"))
    if isinstance(probe, RateProbe):
        return _rates(
            MatmulTimings(probe.dtype, probe.threads, probe.lanes, {}).measured_with(probe)
        )
    plan = make_plan(graph_of(probe), generic_cpu(threads=1, lanes=probe.lanes), Options())
    (step,) = plan.kernels
    return {probe: seconds_of(step, threads=1)}


def _matmuls(*probes: MatmulProbe) -> Mapping[Probe, float]:
    with _disable_current_modes(), _threads(probes[0].threads):
        return dict(zip(probes, _fastest(*_matmul_runs(probes))))


def _rates(probes: Sequence[RateProbe]) -> Mapping[Probe, float]:
    """In turns, for a few milliseconds. Raises _Disturbed if other programs ran in every turn of a
    probe."""
    with _disable_current_modes(), _threads(probes[0].threads):
        runs = _matmul_runs(probes)
        clock = _own_seconds if probes[0].threads == 1 else _undisturbed_seconds
        best, remaining_seconds = [inf] * len(runs), [RATE_SECONDS] * len(runs)
        for turn in range(MOST_TURNS):
            for number, run in enumerate(runs):
                if turn < LEAST_TURNS or remaining_seconds[number] > 0 or best[number] == inf:
                    seconds = clock(run)
                    best[number] = min(best[number], seconds)
                    remaining_seconds[number] -= seconds
    if inf in best:
        raise _Disturbed
    return dict(zip(probes, best))


class _Disturbed(Exception):
    """The processor is too busy with other programs."""


def _own_seconds(run: Callable[[], object]) -> float:
    """By the thread's CPU clock, which excludes other programs."""
    start = thread_time()
    run()
    return thread_time() - start


def _undisturbed_seconds(run: Callable[[], object]) -> float:
    """Wall time of several threads. Infinite if this thread, which works and spins, was not running
    all the time."""
    thread_seconds, start = thread_time(), perf_counter()
    run()
    seconds, thread_seconds = perf_counter() - start, thread_time() - thread_seconds
    return seconds if thread_seconds > BUSY_SHARE * seconds else inf


def _matmul_runs(probes: Sequence[MatmulProbe | RateProbe]) -> list[Callable[[], object]]:
    """One function for each probe; the kernels are compiled in parallel."""
    steps = {probe: unfused_matmul(probe) for probe in probes if probe.by != "library"}
    kernels = dict(zip(steps, _runs(list(steps.values()), probes[0].threads)))
    return [kernels.get(probe) or _by_library(probe) for probe in probes]


def _by_library(probe: MatmulProbe | RateProbe) -> Callable[[], object]:
    dtype = TORCH_DTYPES[probe.dtype]
    left = torch.ones(probe.rows, probe.steps, dtype=dtype)
    right = torch.ones(probe.columns, probe.steps, dtype=dtype).t()
    return partial(torch.mm, left, right, out=torch.empty(probe.rows, probe.columns, dtype=dtype))


def unfused_matmul(probe: MatmulProbe | RateProbe) -> KernelStep:
    """A kernel of one matmul; by "transposed", of the transposed operands."""
    builder, shapes = Builder(), ((probe.rows, probe.steps), (probe.columns, probe.steps))
    left, right = (
        builder.input(name, place, shape, probe.dtype, contiguous_strides(shape))
        for place, (name, shape) in enumerate(zip("xy", shapes))
    )
    if probe.by == "transposed":
        matmul = builder.permute(builder.dot(right, builder.permute(left, (1, 0))), (1, 0))
    else:
        matmul = builder.dot(left, builder.permute(right, (1, 0)))
    result = builder.cast(matmul, probe.dtype)
    strides = contiguous_strides(result.shape)
    group = Group(
        tuple(node for node in toposort([result]) if is_member(node)),
        (Write(result, Tensor(result, strides), strides),),
        {node: Tensor(node, contiguous_strides(node.shape)) for node in (left, right)},
        {},
    )
    machine = generic_cpu(probe.threads, probe.lanes)
    return KernelStep((group,), stitch([group], machine, "product"))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set torch's threads, which the library and our kernels use."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_of(step: KernelStep, threads: int, blocking: Blocking = USUAL) -> float:
    """The time of a call with at most `threads` threads, always on the same tensors."""
    (seconds,) = _fastest(_run(step, threads, blocking))
    return seconds


def _run(step: KernelStep, threads: int, blocking: Blocking = USUAL) -> Callable[[], object]:
    (run,) = _runs([step], threads, blocking)
    return run


def _runs(
    steps: Sequence[KernelStep], threads: int, blocking: Blocking = USUAL
) -> list[Callable[[], object]]:
    target = replace(host_target(), threads=threads)
    with CODE_GENERATOR, closing(Helpers(max(1, len(steps)))) as helpers:
        lowering = CPULowering(target, blocking)
        programs = [run_stages(CPU_LOWERING, step.stitched.kernel, lowering) for step in steps]
        for program in programs:
            helpers.begin(program.text)
        entries = [load(helpers.compiled(program.text), program.entry) for program in programs]
    return [_call(*kernel) for kernel in zip(steps, programs, entries)]


def _call(step: KernelStep, program: LLVMProgram, entry: Entry) -> Callable[[], object]:
    """All tensors are filled with ones, which are valid for every operation."""
    hint = step.groups[0].hint
    with _disable_current_modes():  # PyTorch compiles with fake tensors
        tensors = [_ones(tensor, hint) for tensor in step.stitched.tensors]
        scratch = torch.empty(max(1, hint(program.scratch_bytes)), dtype=torch.uint8)
        sizes = tuple(map(hint, program.sizes))
        # The closure keeps the scratch alive, which is passed as an address.
        return lambda: entry(*tensors, *sizes, scratch.data_ptr())


def _fastest(*runs: Callable[[], object]) -> list[float]:
    """The shortest time of each, since disturbances only make calls longer. The runs take turns, so
    that a long disturbance affects all of them; pauses spread them over time."""
    timers, best, remaining_seconds = (
        [Timer(run) for run in runs],
        [inf] * len(runs),
        MOST_SECONDS * len(runs),
    )
    for _ in range(BLOCKS):
        for number, timer in enumerate(timers):
            calls = max(1, int(BLOCK_SECONDS / best[number]))
            seconds = timer.timeit(calls)
            best[number], remaining_seconds = (
                min(best[number], seconds / calls),
                remaining_seconds - seconds,
            )
        if remaining_seconds < 0:
            break
        sleep(PAUSE_SECONDS)
    return best


def _ones(tensor: Tensor, hint: Callable[[Dim], int]) -> torch.Tensor:
    return torch.ones(tensor.extent(hint), dtype=TORCH_DTYPES[tensor.node.type.dtype])


def graph_of(probe: OperationProbe) -> Graph:
    """Further operands are one number for each row, so that only the first one is streamed."""
    builder, shape = Builder(), (probe.rows, probe.length)
    strides = (probe.length * max(1, probe.step) + ROW_PADDING, probe.step)
    inputs = [builder.input("x", 0, shape, probe.source, strides)]
    for position in range(1, OPS[probe.op].arity or 1):
        dtype = DType.BOOL if (probe.op, position) == (Op.WHERE, 1) else probe.source
        inputs.append(builder.input(f"y{position}", position, shape, dtype, (1, 0)))
    value = _value(builder, probe, inputs)
    return Graph(tuple(inputs), (Output(value, contiguous_strides(value.shape)),))


def _value(builder: Builder, probe: OperationProbe, inputs: list[Node]) -> Node:
    if is_reduction(probe.op):
        return builder.reduce(probe.op, inputs[0], [1 if probe.across else 0])
    if probe.op is Op.WHERE:
        operand, condition, other = inputs
        return builder.make(Op.WHERE, condition, operand, other)
    return builder.make(probe.op, *inputs, type=TensorType((probe.rows, probe.length), probe.dtype))
