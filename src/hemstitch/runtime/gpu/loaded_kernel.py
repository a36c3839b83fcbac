"""Compiles and loads a printed kernel. Takes a `TritonProgram` and the variant of its arguments,
gives loaded machine code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hemstitch.errors import KernelBuildError
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.runtime.gpu.device import Device
from hemstitch.targets.gpu.kernel import TritonProgram
from hemstitch.toolchain.triton_cross import ALIGNMENT, NotCached, build_for, relaxed_register_limit
from hemstitch.toolchain.triton_signature import signature
from hemstitch.toolchain.triton_source import kernel_of
from hemstitch.toolchain.triton_workers import compile_in_worker

CHECK = "tl.device_assert"


@dataclass(frozen=True, slots=True)
class Variant:
    """What machine code may assume. `aligned`: all tensors are aligned to 16 bytes; `divisible`:
    whether each size is a multiple of 16."""

    aligned: bool
    divisible: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class GPUKernel:
    """`run(grid x, y, z, stream, function, packed, None, None, None, *arguments)` launches it."""

    run: Callable[..., object]
    function: int
    packed: object
    resident: int | None  # programs on the whole device; None where it does not matter
    owner: Any  # unloads the machine code when it is freed


def variant_of(aligned: bool, sizes: tuple[int, ...]) -> Variant:
    return Variant(aligned, tuple(size % ALIGNMENT == 0 for size in sizes))


def build(
    program: TritonProgram,
    variant: Variant,
    target: str,
    most_registers: int | None = None,
    *,
    cache: bool = False,
) -> Any:
    """Triton's CompiledKernel; `cache`: failures to compile are recorded for other processes.
    Raises KernelBuildError."""
    divisible = [
        str(size) for size, is_multiple in zip(program.sizes, variant.divisible) if is_multiple
    ]
    parameters = [] if variant.aligned else [buffer.name for buffer in program.parameters]
    text, entry, types = program.text, program.entry, signature(program)
    choices: dict[str, Any] = {
        "warps": program.warps,
        "divisible_by_16": divisible,
        "unaligned": parameters,
        "cooperative": program.barriers > 0,
        "checked": CHECK in program.text,
        "fuse_multiply_add": False,  # eager rounds after each operation
        "most_registers": most_registers,
    }
    make = partial(build_for, kernel_of(text, entry), types, {}, target, **choices)
    try:
        return make(if_cached=True)
    except NotCached:
        compile_in_worker(text, entry, types, target, choices, cache=cache)
        return make()  # from the cache; without a cache it compiles here, which a worker survived


def load(
    program: TritonProgram, variant: Variant, device: Device, *, cache: bool = False
) -> GPUKernel:
    """Raises KernelBuildError, also for a kernel with no resident program on the device."""
    built = build(program, variant, device.target, cache=cache)
    # With barriers more programs than are resident would deadlock, else they only cost scratch.
    is_bounded = program.barriers > 0 or bool(program.scratch)
    with device.as_current():
        try:
            run = built.run  # loads it
            if built.n_spills and device.may_relax_registers:
                registers = relaxed_register_limit(program.warps)
                built = build(program, variant, device.target, registers, cache=cache)
                run = built.run
        except Exception as error:
            raise KernelBuildError(f"{program.entry} cannot be loaded: {error}") from error
        resident = _resident(program, built, device) if is_bounded else None
    return GPUKernel(run, built.function, built.packed_metadata, resident, built)


def _resident(program: TritonProgram, built: Any, device: Device) -> int:
    blocks = device.resident_blocks(built.function, program.warps, built.metadata.shared)
    if not blocks:
        raise KernelBuildError(f"no program of {program.entry} fits on a {device.name}")
    return resident_programs(program, blocks) * device.processors


def resident_programs(program: TritonProgram, blocks: int) -> int:
    """Programs on a multiprocessor that can hold `blocks` thread blocks."""
    return min(blocks, GPU.cooperative_programs) if program.barriers else blocks
