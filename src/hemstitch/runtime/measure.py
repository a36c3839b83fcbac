"""How long kernels, and products by the library, take on this processor. Takes a probe, or a step
of a plan, gives seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf
from time import sleep
from timeit import Timer

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hemstitch.codegen.llvm.kernel import print_kernel
from hemstitch.fusion.plan import KernelStep
from hemstitch.fusion.planner import make_plan
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Graph, Node, Op, Output, toposort
from hemstitch.ir.ops import OPS, is_reduction
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.kernel.blocked import USUAL, Blocking
from hemstitch.options import Options
from hemstitch.runtime.background import CODE_GENERATOR
from hemstitch.runtime.dtypes import TORCH_DTYPES
from hemstitch.runtime.helpers import compiled
from hemstitch.runtime.jit import host_target, load
from hemstitch.stitch.group import Group, Tensor, Write, is_member
from hemstitch.stitch.machine import generic_cpu
from hemstitch.stitch.probe import OperationProbe, Probe, ProductProbe
from hemstitch.stitch.stitch import stitch

BLOCKS, BLOCK_SECONDS = 40, 3e-4  # short beside the time that a thread runs undisturbed
PAUSE_SECONDS, MOST_SECONDS = 2e-3, 0.5
APART = 16  # elements between an operand's rows: else they would be walked as one


def measure(probe: Probe) -> Mapping[Probe, float]:
    """Of a call, planned, printed and compiled as for any graph. A product by the library and one
    in a kernel are measured together: what is decided is which is faster."""
    if isinstance(probe, ProductProbe):
        return _products(replace(probe, by="library"), replace(probe, by="kernel"))
    plan = make_plan(graph_of(probe), generic_cpu(threads=1, lanes=probe.lanes), Options())
    (step,) = plan.kernels
    return {probe: seconds_of(step, threads=1)}


def _products(by_library: ProductProbe, by_kernel: ProductProbe) -> Mapping[Probe, float]:
    dtype, threads = TORCH_DTYPES[by_library.dtype], by_library.threads
    rows, steps, columns = by_library.rows, by_library.steps, by_library.columns
    with _disable_current_modes(), _threads(threads):
        left = torch.ones(rows, steps, dtype=dtype)
        right = torch.ones(columns, steps, dtype=dtype).t()
        result = torch.empty(rows, columns, dtype=dtype)
        runs: dict[Probe, Callable[[], object]] = {
            by_library: partial(torch.mm, left, right, out=result),
            by_kernel: _run(bare_product(by_kernel), threads),
        }
        return dict(zip(runs, _fastest(*runs.values())))


def bare_product(probe: ProductProbe) -> KernelStep:
    """A kernel that does nothing else."""
    builder, shapes = Builder(), ((probe.rows, probe.steps), (probe.columns, probe.steps))
    left, right = (
        builder.input(name, place, shape, probe.dtype, contiguous_strides(shape))
        for place, (name, shape) in enumerate(zip("xy", shapes))
    )
    product = builder.dot(left, builder.permute(right, (1, 0)))
    result = builder.cast(product, probe.dtype)
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
    """The library's and ours are torch's."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_of(step: KernelStep, threads: int, blocking: Blocking = USUAL) -> float:
    """Of calls on the same tensors, in at most so many threads."""
    (seconds,) = _fastest(_run(step, threads, blocking))
    return seconds


def _run(step: KernelStep, threads: int, blocking: Blocking = USUAL) -> Callable[[], object]:
    """All its tensors are ones, which every operation takes."""
    kernel, hint = step.stitched.kernel, step.groups[0].hint
    with CODE_GENERATOR:
        program = print_kernel(kernel, replace(host_target(), threads=threads), blocking)
        entry = load(compiled(program.text), program.entry)
    with _disable_current_modes():  # PyTorch compiles among fake tensors
        tensors = [_ones(tensor, hint) for tensor in step.stitched.tensors]
        scratch = torch.empty(max(1, hint(program.scratch_bytes)), dtype=torch.uint8)
        sizes = tuple(map(hint, program.sizes))
        # Scratch is passed as an address, which keeps no memory alive: this function does.
        return lambda: entry(*tensors, *sizes, scratch.data_ptr())


def _fastest(*runs: Callable[[], object]) -> list[float]:
    """Seconds of a call of each: the least, since what disturbs one only makes it longer. They take
    turns, so that what goes on for long disturbs all. Pauses spread the calls, as it may end."""
    timers, best, left = [Timer(run) for run in runs], [inf] * len(runs), MOST_SECONDS * len(runs)
    for _ in range(BLOCKS):
        for number, timer in enumerate(timers):
            calls = max(1, int(BLOCK_SECONDS / best[number]))
            taken = timer.timeit(calls)
            best[number], left = min(best[number], taken / calls), left - taken
        if left < 0:
            break
        sleep(PAUSE_SECONDS)
    return best


def _ones(tensor: Tensor, hint: Callable[[Dim], int]) -> torch.Tensor:
    return torch.ones(tensor.extent(hint), dtype=TORCH_DTYPES[tensor.node.type.dtype])


def graph_of(probe: OperationProbe) -> Graph:
    """Further operands are one number a row, so that only the first one is read all along."""
    builder, shape = Builder(), (probe.rows, probe.length)
    strides = (probe.length * max(1, probe.step) + APART, probe.step)
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
