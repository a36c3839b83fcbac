"""Builds the steps of a plan: machine code, or the library form where that fails."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from typing import Any

import torch

from hemstitch.driver.cpu_kernels import cpu_launches
from hemstitch.driver.external_targets import external_target
from hemstitch.driver.progress import with_bar
from hemstitch.errors import KernelBuildError, KernelBuildWarning, UnsupportedError
from hemstitch.gpu_vendors import VENDORS
from hemstitch.ir.dims import Dim, evaluate, symbol, symbols
from hemstitch.ir.graph import Node
from hemstitch.ir.types import DType
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep, LibraryStep, Plan, Step
from hemstitch.planning.program import Program
from hemstitch.runtime.assembly import Launch
from hemstitch.runtime.interpreter import evaluate as evaluate_nodes
from hemstitch.stitching.group import Group, Tensor
from hemstitch.toolchain.compile_lock import CODE_GENERATOR
from hemstitch.toolchain.llvm_workers import compilers


def build_first_buildable(
    program: Program[Plan], options: Options, device: torch.device
) -> tuple[Program[Plan], list[list[Launch | None]]]:
    """The program, or the first of its alternatives whose kernels can be built, with the launches
    of each part."""
    if program.otherwise is not None:
        with suppress(KernelBuildError):
            return program, [build(part, options, device) for part in program.parts]
        return build_first_buildable(program.otherwise, options, device)
    return program, [build(part, options, device) for part in program.parts]


def expect_kernels(arguments: Sequence[object], options: Options) -> None:
    """Start a worker process of the compiler while PyTorch traces the graph."""
    tensors = (argument for argument in arguments if isinstance(argument, torch.Tensor))
    if any(tensor.device.type in VENDORS for tensor in tensors):
        if importlib.util.find_spec("triton") is not None:
            importlib.import_module("hemstitch.toolchain.triton_workers").compilers().start()
    elif options.target != "interpret":
        compilers().start()


def build(plan: Plan, options: Options, device: torch.device | None = None) -> list[Launch | None]:
    """A launch for each step, None for library calls. `device`: the GPU, if not the current one.

    Raises KernelBuildError for a kernel that packs panels for others: its library form cannot.
    """
    index = None if device is None else device.index
    is_tuned = options.tune and options.target != "interpret"
    steps = with_bar(plan.steps, "tuning kernels", sys.stderr) if is_tuned else plan.steps
    with ExitStack() as stack:
        make = stack.enter_context(_launches(plan.kernels, options, index))
        return [
            None if isinstance(step, LibraryStep) else _build_step(step, make, options.strict)
            for step in steps
        ]


def _launches(
    kernels: Sequence[KernelStep], options: Options, index: int | None
) -> AbstractContextManager[Callable[[KernelStep], Launch]]:
    """A context in which kernel steps become launches. Triton is not among the requirements, so
    what imports it is imported here."""
    if options.target not in (*VENDORS, "interpret") or not kernels:
        return cpu_launches(kernels, options)
    if options.target == "interpret":
        emulator = external_target(options.target)
        _check_triton(options.target)
        return emulator(kernels, options, index)
    _check_triton(options.target)
    gpu_kernels: Any = importlib.import_module("hemstitch.driver.gpu_kernels")
    launches: AbstractContextManager[Callable[[KernelStep], Launch]] = gpu_kernels.launches(
        kernels, options, index
    )
    return launches


def _check_triton(target: str) -> None:
    if importlib.util.find_spec("triton") is None:
        raise UnsupportedError(
            f'kernels for the target "{target}" need Triton, which is not installed',
            hint="pip install 'triton>=3.6,<4'",
        )


def _build_step(step: Step, make: Callable[[KernelStep], Launch], strict: bool) -> Launch:
    assert not isinstance(step, LibraryStep)
    if not isinstance(step, KernelStep):
        if not step.is_meant:
            ops = ", ".join(node.op.value for node in step.group.members) or "a copy"
            _report(ops, str(step.why), strict)
        return library_form((step.group,), _tensors_of(step.group))
    try:
        with CODE_GENERATOR:
            return make(step)
    except Exception as error:
        is_needed = strict or bool(step.panels)
        _report(step.stitched.kernel.name, str(error), is_needed, error)
        return replace(library_form(step.groups, step.stitched.tensors), failure=str(error))


def _report(name: str, why: str, strict: bool, cause: Exception | None = None) -> None:
    if strict:
        raise KernelBuildError(f"{name} could not be built: {why}") from cause
    warnings.warn(KernelBuildWarning(name, why), stacklevel=2)


def _tensors_of(group: Group) -> tuple[Tensor, ...]:
    return tuple(dict.fromkeys([*group.reads.values(), *(w.tensor for w in group.writes)]))


def library_form(groups: Sequence[Group], tensors: Sequence[Tensor]) -> Launch:
    """A launch that computes the same values op by op with PyTorch and writes them to the same
    tensors."""
    sizes = _symbols_of(groups)

    def run(*arguments: object) -> None:
        arguments_of = dict(zip(tensors, arguments))
        numbers = arguments[len(tensors) : len(tensors) + len(sizes)]
        values = {name: number for name, number in zip(sizes, numbers) if isinstance(number, int)}
        stores = [store for group in groups for store in _computed(group, arguments_of, values)]
        # A target may also be an input, and a value may be a view of an input.
        for target, value in [(target, value.clone()) for target, value in stores]:
            target.copy_(value)

    return Launch(run, tuple(tensors), tuple(symbol(name) for name in sizes), 0)


def _computed(
    group: Group, arguments: Mapping[Tensor, object], values: Mapping[str, int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    values_of_nodes: dict[Node, torch.Tensor] = {}
    for node, tensor in group.reads.items():
        argument = arguments.get(tensor)
        if isinstance(argument, torch.Tensor):
            values_of_nodes[node] = argument
    results = evaluate_nodes([write.value for write in group.writes], values_of_nodes, values)
    stores = []
    for write in group.writes:
        target, value = arguments[write.tensor], results[write.value]
        assert isinstance(target, torch.Tensor)
        if write.value.type.dtype is DType.OPAQUE:  # always written as a whole
            stores.append((target, value))
            continue
        strides = [evaluate(step, values) for step in write.strides]
        offset = target.storage_offset() + evaluate(write.offset, values)
        stores.append((target.as_strided(value.shape, strides, offset), value))
    return stores


def _symbols_of(groups: Sequence[Group]) -> list[str]:
    names: dict[str, None] = {}
    for group in groups:
        for dim in _dims_of(group):
            names |= dict.fromkeys(sorted(symbols(dim)))
    return list(names)


def _dims_of(group: Group) -> list[Dim]:
    writes = [d for w in group.writes for d in (*w.strides, w.offset, *w.value.shape)]
    return [*writes, *(d for node in group.members for d in node.shape)]
