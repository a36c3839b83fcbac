"""The Triton kernels of all workloads as machine code of GPUs that need not be there, and what is
wrong with it. Needs Triton.

python -m benchmarks.machine_code [--targets sm_80,sm_90,gfx942] [--only NAME] [--rows 4096]

A line for each kernel: registers, instructions, share of the traffic in accesses as wide as the
hardware has them. Exit status 1 if the lint has a finding (see docs/latency.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from benchmarks.calls import differentiable
from benchmarks.cases import CASES, Case, tensors
from benchmarks.products import PRODUCTS
from hemstitch.backend import compile_with
from hemstitch.driver.compiler import Compiled
from hemstitch.latency.amd import amd_facts
from hemstitch.latency.architecture import architecture
from hemstitch.latency.disassembly import disassemble
from hemstitch.latency.facts import WIDE_BITS, Facts, facts
from hemstitch.latency.lint import Expected, Finding, lint, lint_amd
from hemstitch.latency.ptx import parse_ptx
from hemstitch.options import Options
from hemstitch.pipeline import GPU_LOWERING, run_stages
from hemstitch.planning.planner import make_plan
from hemstitch.runtime.gpu.loaded_kernel import CHECK
from hemstitch.targets.gpu.description import GPULowering, generic_gpu
from hemstitch.targets.gpu.kernel import TritonProgram
from hemstitch.toolchain import triton_cross as cross
from hemstitch.toolchain.triton_cross import relaxed, tools_folder
from hemstitch.toolchain.triton_signature import signature
from hemstitch.toolchain.triton_source import kernel_of

TARGETS = "sm_80,sm_90,gfx942"
PROGRAMS = 4 * generic_gpu().threads


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one kernel for one target, in words."""

    head: str
    findings: tuple[str, ...]

    def __str__(self) -> str:
        return "\n    ".join([self.head, *self.findings])


def _said(
    program: TritonProgram, target: str, known: Facts, findings: Sequence[Finding]
) -> Verdict:
    head = (
        f"{program.entry:60.60} {target:7} {known.registers:4} registers {known.spills:3} spills "
        f"{known.instructions:6} instructions {known.wide_share(WIDE_BITS):5.0%} wide"
    )
    return Verdict(head, tuple(map(str, findings)))


def programs_of(case: Case, rows: int) -> list[TritonProgram]:
    """Of the forward pass, and the backward pass where it has one."""
    found: list[TritonProgram] = []

    def observe(_: str, compiled: Compiled) -> None:
        for step in make_plan(compiled.graph, generic_gpu(), Options()).kernels:
            kernel = step.stitched.kernel
            found.append(
                run_stages(GPU_LOWERING, kernel, GPULowering(step.groups[0].hint, PROGRAMS))
            )

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        return compile_with(gm, inputs, Options(strict=True), observe)

    arguments = case.arguments(case.rows or rows)
    for tensor in differentiable(case, arguments) if case.backward else []:
        tensor.requires_grad_()
    torch._dynamo.reset()
    results = torch.compile(case.function, backend=backend, dynamic=False)(*arguments)
    if case.backward:
        _differentiate(tensors(results))
    return found


def _differentiate(results: list[Tensor]) -> None:
    torch.autograd.backward(results, [torch.ones_like(result) for result in results])


def verdict(target: str, program: TritonProgram) -> Verdict:
    compiled = compiled_for(program, target)
    expected = Expected(
        program.warps,
        compiled.shared_bytes,
        barriers=program.barriers,
        has_dot=any("tl.dot(" in s and "float16" in s for s in program.text.splitlines()),
        last_block_reductions=int(program.has_last_block),
        width_bits=WIDE_BITS if program.is_vectorised else 0,
    )
    if target.startswith("gfx"):
        text = compiled.assembly
        return _said(program, target, amd_facts(text), lint_amd(text, expected))
    code = disassemble(compiled.binary, tools_folder())
    if facts(code).spills:  # as the runtime does where the driver says so
        compiled = compiled_for(program, target, relaxed(program.warps))
        code = disassemble(compiled.binary, tools_folder())
    found = lint(code, parse_ptx(compiled.assembly), expected, architecture(target))
    return _said(program, target, facts(code), found)


def compiled_for(
    program: TritonProgram, target: str, most_registers: int | None = None
) -> cross.CrossCompiled:
    return cross.compile_for(
        kernel_of(program.text, program.entry),
        signature(program),
        {},
        target,
        warps=program.warps,
        cooperative=program.barriers > 0,
        checked=CHECK in program.text,
        fuse_multiply_add=False,
        most_registers=most_registers,
    )


def verdicts(targets: Sequence[str], programs: Sequence[TritonProgram]) -> Iterator[Verdict]:
    """In two processes: Triton's compiler takes a second for each."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for target in targets:
            yield from pool.map(partial(verdict, target), programs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.machine_code")
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name contains it")
    parser.add_argument("--rows", type=int, default=4096)
    arguments = parser.parse_args()
    cases = [case for case in (*CASES, *PRODUCTS) if arguments.only in case.name]
    programs = [program for case in cases for program in programs_of(case, arguments.rows)]
    count = wrong = 0
    for found in verdicts(arguments.targets.split(","), programs):
        print(found, flush=True)
        count, wrong = count + 1, wrong + bool(found.findings)
    print(f"{count} kernels, {wrong} with findings")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
