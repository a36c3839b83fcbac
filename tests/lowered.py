"""Kernels through all stages of a target, for tests that start from a kernel or a graph."""

from __future__ import annotations

from collections.abc import Callable

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Graph
from hemstitch.kernel_ir.nodes import Kernel
from hemstitch.options import Options
from hemstitch.pipeline import (
    CPU_LOWERING,
    GPU_LOWERING,
    SIMPLIFICATION,
    Simplification,
    run_stages,
    stages_before,
)
from hemstitch.targets.cpu.description import CPULowering, Target
from hemstitch.targets.cpu.kernel import LLVMProgram
from hemstitch.targets.gpu.description import GPULowering
from hemstitch.targets.gpu.kernel import TritonProgram

TARGET = Target(lanes=8, threads=4, parallel=False)


def llvm(kernel: Kernel, target: Target = TARGET) -> LLVMProgram:
    program = run_stages(CPU_LOWERING, kernel, CPULowering(target), check=True)
    assert isinstance(program, LLVMProgram)
    return program


def triton(kernel: Kernel, hint: Callable[[Dim], int], programs: int) -> TritonProgram:
    program = run_stages(GPU_LOWERING, kernel, GPULowering(hint, programs), check=True)
    assert isinstance(program, TritonProgram)
    return program


def until_blocking(kernel: Kernel) -> Kernel:
    """As the stage finds it that blocks matmuls."""
    lowered = run_stages(stages_before(CPU_LOWERING, "block matmuls"), kernel, CPULowering(TARGET))
    assert isinstance(lowered, Kernel)
    return lowered


def optimize(graph: Graph, builder: Builder, *, is_exact: bool = True) -> Graph:
    options = Options(reassociate=not is_exact)
    told = Simplification(builder, options)
    simplified = run_stages(SIMPLIFICATION, graph, told, check=True)
    assert isinstance(simplified, Graph)
    return simplified
