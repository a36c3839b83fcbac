"""A printed kernel on a device. Takes a `TritonProgram` and what is known of its arguments, gives
machine code that is loaded and ready to be launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hemstitch.errors import KernelBuildError
from hemstitch.runtime.gpu.device import Device, resident_blocks
from hemstitch.targets.gpu.kernel import TritonProgram
from hemstitch.toolchain.triton_cross import ALIGNMENT, NotKept, build_for, relaxed
from hemstitch.toolchain.triton_signature import signature
from hemstitch.toolchain.triton_source import kernel_of
from hemstitch.toolchain.triton_workers import compile_elsewhere

CHECK = "tl.device_assert"
# Programs on a multiprocessor, where they meet: each leaves sums that are read again behind the
# barrier. On an H200 more gained at most 1 %, and took up to 1.7 times as long
# (docs/design/code-generation-for-gpus.md).
MOST_MEETING = 4


@dataclass(frozen=True, slots=True)
class Variant:
    """What machine code may rely on. `aligned`: all tensors are to 16 bytes; `divisible`: of each
    size, whether it is a multiple of 16."""

    aligned: bool
    divisible: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class GPUKernel:
    """`run(grid x, y, z, stream, function, packed, None, None, None, *arguments)` launches it."""

    run: Callable[..., object]
    function: int
    packed: object
    resident: int | None  # programs that the device holds at a time; None where nobody asks
    owner: Any  # unloads the machine code when it goes


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
    """Triton's CompiledKernel; `cache`: whether other processes learn of what does not compile.
    Raises KernelBuildError."""
    divisible = [str(size) for size, each in zip(program.sizes, variant.divisible) if each]
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
        return make(if_kept=True)
    except NotKept:
        compile_elsewhere(text, entry, types, target, choices, cache=cache)
        return make()  # it is kept now; where nothing can be, it has survived at least


def load(
    program: TritonProgram, variant: Variant, device: Device, *, cache: bool = False
) -> GPUKernel:
    """Raises KernelBuildError, also for a kernel of which the device cannot hold one program."""
    built = build(program, variant, device.target, cache=cache)
    # With barriers more programs than fit at a time would deadlock, else they only cost scratch.
    is_bounded = program.barriers > 0 or bool(program.scratch)
    with device.as_current():
        try:
            run = built.run  # loads it
            if built.n_spills and device.target.startswith("sm_"):
                registers = relaxed(program.warps)
                built = build(program, variant, device.target, registers, cache=cache)
                run = built.run
        except Exception as error:
            raise KernelBuildError(f"{program.entry} cannot be loaded: {error}") from error
        resident = _resident(program, built, device) if is_bounded else None
    return GPUKernel(run, built.function, built.packed_metadata, resident, built)


def _resident(program: TritonProgram, built: Any, device: Device) -> int:
    blocks = resident_blocks(built.function, program.warps, built.metadata.shared)
    if not blocks:
        raise KernelBuildError(f"no program of {program.entry} fits on a {device.name}")
    return at_a_time(program, blocks) * device.processors


def at_a_time(program: TritonProgram, blocks: int) -> int:
    """Programs on a multiprocessor that has room for so many."""
    return min(blocks, MOST_MEETING) if program.barriers else blocks
