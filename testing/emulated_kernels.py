"""Printed Triton kernels on CPU tensors: `target="interpret"`. Needs Triton, but no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hemstitch.ir.dims import evaluate
from hemstitch.ir.failure import Failure
from hemstitch.pipeline import GPU_LOWERING, run_stages
from hemstitch.planning.plan import KernelStep
from hemstitch.runtime.assembly import Launch
from hemstitch.runtime.gpu_facts import EMULATED
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES
from hemstitch.targets.gpu.description import GPULowering
from hemstitch.targets.gpu.kernel import SEMAPHORE, TritonProgram
from hemstitch.toolchain.triton_source import kernel_of
from testing.emulator import Checks, FailedAssertion, Order, emulate

GARBAGE = 0xFF  # each byte


def launch_of(step: KernelStep, check: bool) -> Launch:
    """`check`: look for races, deadlocks and reads of garbage, with programs in a random order."""
    lowering = GPULowering(step.groups[0].hint, EMULATED)
    program = run_stages(GPU_LOWERING, step.stitched.kernel, lowering, check)
    run = _Emulated(program, kernel_of(program.text, program.entry), check)
    return Launch(run, step.stitched.tensors, program.sizes, 0, step.stitched.places)


@dataclass(frozen=True, slots=True)
class _Emulated:
    """Call with the tensors, the sizes and an address of scratch that is not used."""

    program: TritonProgram
    kernel: object
    check: bool

    def __call__(self, *arguments: object) -> None:
        program = self.program
        count = len(program.parameters)
        tensors, numbers = arguments[:count], arguments[count:-1]
        names = [str(size) for size in program.sizes]
        sizes = {name: int(number) for name, number in zip(names, numbers)}  # type: ignore[call-overload]
        programs = min(EMULATED, evaluate(program.tiles, sizes))
        if not programs:  # nor is there a launch on a GPU
            return
        given: dict[str, object] = {b.name: t for b, t in zip(program.parameters, tensors)}
        given |= scratch_of(program, sizes | {"threads": programs})
        if program.has_semaphore:
            given[SEMAPHORE] = torch.zeros(1, dtype=torch.int32)
        checks = Checks(threads=True, scratch=frozenset(b.name for b in program.scratch))
        try:
            emulate(
                self.kernel,
                programs,
                given | sizes,
                checks=checks if self.check else None,
                order=Order.RANDOM if self.check else Order.FORWARD,
            )
        except FailedAssertion as failed:
            raise Failure.of(str(failed)).exception() from failed


def scratch_of(program: TritonProgram, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """By name, where launches have it: full of garbage, which is NaN where there are floats."""
    offsets, total = program.scratch_layout(sizes)
    memory = torch.full((total,), GARBAGE, dtype=torch.uint8)
    found: dict[str, torch.Tensor] = {}
    for buffer, start in zip(program.scratch, offsets):
        count = evaluate(buffer.size, sizes) * buffer.dtype.bytes
        found[buffer.name] = memory[start : start + count].view(TORCH_DTYPES[buffer.dtype])
    return found
