"""Programs planned for a processor and for a GPU that is not there, and what can be counted in
their kernels: launches, bytes by signature, evaluations of an operation, what each task touches."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch._guards import detect_fake_mode

from hemstitch.backend import compile_with
from hemstitch.driver.compiler import Compiled
from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Graph, Op
from hemstitch.kernel_ir.nodes import Kernel, Let, Loop, Nest, Role, statements
from hemstitch.kernel_ir.traffic import executed, traffic
from hemstitch.kernel_ir.verifier import verify
from hemstitch.latency.disassembly import disassemble
from hemstitch.latency.facts import facts
from hemstitch.machine.record import Machine
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep, Plan
from hemstitch.planning.planner import make_plan
from hemstitch.planning.verifier import verify_plan
from hemstitch.stitching.schedule import Schedule, Scheme, schedule
from hemstitch.targets.cpu.description import Target, generic_cpu
from hemstitch.targets.gpu import kernel as triton
from hemstitch.targets.gpu.description import generic_gpu
from hemstitch.toolchain.triton_signature import signature
from hemstitch.toolchain.triton_source import kernel_of
from tests import lowered
from tests.compiled import Simulation

CPU = generic_cpu(threads=2, lanes=8)
GPU = generic_gpu()
MACHINES = {"cpu": CPU, "gpu": GPU}
PROGRAMS = 4 * GPU.threads  # resident at once on the GPU that is not there
DEFAULT = Options()
# What a compiler without stitching does; nothing was packed in 2018 to 2021.
CONSERVATIVE = Options(planner="conservative", pack=False)

both_targets = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


@dataclass(frozen=True)
class Planned:
    """One graph of a program with its plan for a machine."""

    graph: Graph
    plan: Plan
    machine: Machine

    @property
    def steps(self) -> tuple[KernelStep, ...]:
        return self.plan.kernels

    @property
    def kernels(self) -> list[Kernel]:
        return [step.stitched.kernel for step in self.steps]

    @property
    def kernel(self) -> Kernel:
        (kernel,) = self.kernels
        return kernel

    @property
    def library_calls(self) -> int:
        return len(self.plan.steps) - len(self.steps)

    @property
    def sizes(self) -> dict[str, int]:
        return {**self.graph.hints, "threads": self.machine.threads}

    @property
    def bytes_read(self) -> int:
        return sum(sum(traffic(kernel, self.sizes)[0].values()) for kernel in self.kernels)

    @property
    def bytes_written(self) -> int:
        return sum(sum(traffic(kernel, self.sizes)[1].values()) for kernel in self.kernels)

    @property
    def schedules(self) -> list[Schedule]:
        return [schedule(group, self.machine) for step in self.steps for group in step.groups]

    @property
    def schemes(self) -> list[Scheme]:
        return [scheme for found in self.schedules for scheme in found.schemes.values()]

    @property
    def signature(self) -> list[int]:
        """Bytes of each tensor that the kernels take or leave."""
        buffers = [b for kernel in self.kernels for b in kernel.parameters]
        return sorted(evaluate(b.size, self.sizes) * b.dtype.bytes for b in buffers)

    def texts(self) -> list[str]:
        """What the target compiles, of each kernel."""
        return [text_of(step, self.machine) for step in self.steps]

    def run(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """In the kernel interpreter, in float64, with all its checks; no library calls."""
        simulation = Simulation(dict(self.graph.hints), min(self.machine.threads, 7))
        return simulation.run(self.graph, self.plan, arguments)


def text_of(step: KernelStep, machine: Machine) -> str:
    kernel = step.stitched.kernel
    if machine.lanes == GPU.lanes:
        return triton_program(step).text
    target = Target(lanes=machine.lanes, threads=machine.threads, parallel=True)
    return lowered.llvm(kernel, target).text


def triton_program(step: KernelStep) -> triton.TritonProgram:
    return lowered.triton(step.stitched.kernel, step.groups[0].hint, PROGRAMS)


def graphs_of(
    function: Callable[..., Any], *arguments: Any, backward: bool = False, grad: bool = True
) -> list[Graph]:
    """As torch.compile makes them; nothing is built, and of fake tensors nothing is run."""
    found: list[Graph] = []

    def observe(kind: str, compiled: Compiled) -> None:
        found.append(compiled.graph)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        return compile_with(
            gm, inputs, Options(cache=False, strict=True, check=True), observe, plan_only=True
        )

    torch._dynamo.reset()
    with torch.set_grad_enabled(grad), detect_fake_mode(arguments) or nullcontext():
        results = torch.compile(function, backend=backend, dynamic=False)(*arguments)
        if backward:
            leaves = torch.utils._pytree.tree_leaves(results)
            sum(x.float().sum() for x in leaves if x.requires_grad).backward()
    return found


def planned(graph: Graph, machine: Machine, options: Options = DEFAULT) -> Planned:
    """Checked in all its parts."""
    machine = replace(machine, has_grid_barrier=options.global_stitching)
    plan = make_plan(graph, machine, options)
    verify_plan(plan)
    for step in plan.kernels:
        verify(step.stitched.kernel)
    return Planned(graph, plan, machine)


def plan(
    function: Callable[..., Any], *arguments: Any, machine: Machine, options: Options = DEFAULT
) -> Planned:
    """The only graph of a program, without gradients."""
    (graph,) = graphs_of(function, *arguments, grad=False)
    return planned(graph, machine, options)


def grid(program: triton.TritonProgram, resident: int | None) -> int:
    """Programs of a launch on a GPU that holds so many at a time (None: any number)."""
    pytest.importorskip("triton", reason="needs Triton")
    module = importlib.import_module("hemstitch.runtime.gpu.grid")  # imports Triton
    programs: int = module.grid_of(program, (), resident).programs
    return programs


def machine_code(found: Planned) -> tuple[Any, Any]:
    """Of the only kernel, for an H100: facts of the disassembly, and what Triton made."""
    pytest.importorskip("triton", reason="needs Triton")
    cross = importlib.import_module("hemstitch.toolchain.triton_cross")  # imports Triton
    (step,) = found.steps
    program = triton_program(step)
    kernel = kernel_of(program.text, program.entry)
    built = cross.compile_for(
        *(kernel, signature(program), {}, "sm_90"),
        warps=program.warps,
        cooperative=program.barriers > 0,
        fuse_multiply_add=False,
    )
    return facts(disassemble(built.binary, cross.tools_folder())), built


def kernel_count(found: Sequence[Planned]) -> int:
    return sum(len(each.kernels) for each in found)


def evaluations(kernel: Kernel, op: Op, sizes: Mapping[str, int]) -> int:
    """How many elements of `op` all tasks together compute."""
    return sum(
        times
        for phase in kernel.phases
        for statement, times in executed(phase, sizes)
        if isinstance(statement, Let) and statement.op is op
    )


def nests(kernel: Kernel) -> list[Nest]:
    return [nest for phase in kernel.phases for nest in phase.nests]


def lane_loops(kernel: Kernel) -> list[Loop]:
    return [s for s in statements(kernel) if isinstance(s, Loop) and s.lanes]


def scratch(kernel: Kernel, role: Role, sizes: Mapping[str, int]) -> int:
    """Bytes of all such buffers."""
    return sum(evaluate(b.size, sizes) * b.dtype.bytes for b in kernel.buffers if b.role is role)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape) * 31 + len(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def agree(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float = 1e-9
) -> None:
    """Within `tolerance` of the largest element, and of 1."""
    for new, old in zip(found, expected, strict=True):
        assert new.shape == old.shape
        error = float((new.double() - old.double()).abs().max()) if old.numel() else 0.0
        scale = max(1.0, float(old.double().abs().max())) if old.numel() else 1.0
        assert error <= tolerance * scale, f"{error} of {scale}"
