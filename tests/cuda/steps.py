"""Steps of plans for a GPU, each made once a session, and launchers on the stub's devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from hemstitch.planning.plan import KernelStep
from hemstitch.runtime.gpu.launch import Launcher
from hemstitch.targets.gpu.description import generic_gpu
from hemstitch.targets.gpu.kernel import TritonProgram
from tests.compiled import plans_of
from tests.lowered import triton

PROGRAMS = 132


def step_of(function: Callable[..., Any], *arguments: torch.Tensor) -> KernelStep:
    """Of the only kernel of a function."""
    ((_, plan),) = plans_of(function, arguments, generic_gpu())
    (step,) = plan.kernels
    return step


def program_of(step: KernelStep) -> TritonProgram:
    return triton(step.stitched.kernel, step.groups[0].hint, PROGRAMS)


def launcher_of(program: TritonProgram, driver: Any) -> Launcher:
    """Tensors in this machine's memory say that they are on device -1: the stub's first."""
    return Launcher(program, lambda index: driver.device(max(index, 0)))


@cache
def pointwise() -> TritonProgram:
    x, y = torch.randn(1000, 37), torch.randn(1000, 37)
    return program_of(step_of(lambda x, y: torch.relu(x) + y, x, y))


@cache
def pointwise_of_any_size() -> TritonProgram:
    x = torch.randn(4096, 256)
    torch._dynamo.mark_dynamic(x, 0)
    return program_of(step_of(lambda x: torch.relu(x) * 2, x))


@cache
def centred() -> TritonProgram:
    """Sums of columns behind a barrier."""
    return program_of(step_of(lambda x: x - x.sum(0), torch.randn(8192, 128)))


@cache
def centred_of_any_size() -> TritonProgram:
    x = torch.randn(8192, 128)
    torch._dynamo.mark_dynamic(x, 0)
    return program_of(step_of(lambda x: x - x.sum(0), x))


@cache
def loss() -> TritonProgram:
    """A number, behind a ticket."""
    x, y = torch.randn(4096, 256), torch.randn(4096, 256)
    return program_of(step_of(lambda x, y: ((x - y) ** 2).mean(), x, y))


@cache
def loss_of_any_size() -> TritonProgram:
    x = torch.randn(4096, 256)
    torch._dynamo.mark_dynamic(x, 0)
    return program_of(step_of(lambda x: x.exp().sum(), x))


@cache
def gathered() -> TritonProgram:
    """Checks its indices."""
    x = torch.randn(4096, 256)
    return program_of(step_of(lambda x, i: x[i] * 2, x, torch.randint(0, 10, (77,))))
