"""A Triton kernel compiled for a GPU that need not be there. Takes the kernel and what its
parameters are, gives machine code and assembly text, or what a launch needs. The only user of
Triton's compiler; 3.6 to 3.9.

Imported only where Triton is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hemstitch.errors import KernelBuildError
from hemstitch.toolchain.compile_lock import Quiet, SharedExclusiveLock

WARP = {"cuda": 32, "hip": 64}  # threads
LANGUAGE = SharedExclusiveLock()  # Triton's: many may compile together; who changes it is alone
QUIET = Quiet()
REGISTERS, MOST_REGISTERS = 65536, 255  # of a multiprocessor, and of a thread, NVIDIA's
ALIGNMENT = 16  # bytes of a pointer, or the divisor of an integer, that Triton's compiler can use


class NotKept(Exception):
    """Triton's cache does not have this kernel."""


class _Kept(ASTSource):  # type: ignore[misc]
    """What Triton finds in its cache, or does not compile."""

    def make_ir(self, *_: object, **__: object) -> Any:
        raise NotKept


@dataclass(frozen=True, slots=True)
class CrossCompiled:
    """What a target runs, and what a report or a lint reads."""

    name: str
    target: str
    binary: bytes  # cubin or hsaco
    assembly: str  # PTX or amdgcn
    shared_bytes: int  # dynamic, for each program
    warps: int
    cooperative: bool


def tools_folder() -> Path:
    """Where Triton keeps nvdisasm and cuobjdump."""
    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def gpu_target(target: str) -> GPUTarget:
    """`sm_90` or `gfx942` in Triton's own words."""
    if found := re.fullmatch(r"sm_(\d+)", target):
        return GPUTarget("cuda", int(found[1]), WARP["cuda"])
    if target.startswith("gfx"):
        return GPUTarget("hip", target, WARP["hip"])
    raise ValueError(f'no target "{target}": sm_<number> or gfx<number>')


def compile_for(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    target: str,
    **choices: Any,
) -> CrossCompiled:
    """What reports and lints read of `build_for`, which has the same parameters."""
    built = build_for(kernel, signature, constants, target, **choices)
    is_nvidia = gpu_target(target).backend == "cuda"
    return CrossCompiled(
        name=built.metadata.name,
        target=target,
        binary=built.asm["cubin" if is_nvidia else "hsaco"],
        assembly=built.asm["ptx" if is_nvidia else "amdgcn"],
        shared_bytes=built.metadata.shared,
        warps=built.metadata.num_warps,
        cooperative=built.metadata.launch_cooperative_grid,
    )


def build_for(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    target: str,
    *,
    warps: int,
    stages: int = 1,
    divisible_by_16: Iterable[str] = (),
    unaligned: Iterable[str] = (),
    cooperative: bool = False,
    checked: bool = False,
    fuse_multiply_add: bool = True,
    most_registers: int | None = None,
    if_kept: bool = False,
) -> Any:
    """Triton's own CompiledKernel, not yet loaded. `signature` has the type of every parameter
    that is no constant. Pointers are taken to be aligned as PyTorch's allocator aligns them, but
    for those in `unaligned`; `divisible_by_16` names the integers that are. `checked`: device
    asserts trap. `if_kept`: nothing is compiled.

    Raises KernelBuildError with the compiler's last words, NotKept for what is not kept.
    """
    source = (_Kept if if_kept else ASTSource)(
        kernel,
        {name: signature.get(name, "constexpr") for name in kernel.arg_names},
        dict(constants),
        _alignments(kernel.arg_names, signature, frozenset(divisible_by_16), frozenset(unaligned)),
    )
    options = {
        "num_warps": warps,
        "num_stages": stages,
        "enable_fp_fusion": fuse_multiply_add,
        "launch_cooperative_grid": cooperative,
        "debug": checked,
        "sanitize_overflow": False,  # integers wrap, as PyTorch's do
    }
    if most_registers is not None:
        options["maxnreg"] = most_registers
    machine = gpu_target(target)
    try:
        with LANGUAGE.together(), QUIET.here():  # a ptxas that fails prints the whole PTX
            return triton.compile(source, target=machine, options=options)
    except NotKept:
        raise
    except Exception as error:
        raise KernelBuildError(
            f"{kernel.__name__} does not compile for {target}: {_last_words(error)}"
        ) from error


def relaxed(warps: int) -> int:
    """Registers of a thread that NVIDIA's assembler may use where it spilled by its own guess,
    which favours many resident programs (AStitch, section 4.4: assume, then relax)."""
    return min(MOST_REGISTERS, REGISTERS // (32 * warps))


def _alignments(
    parameters: Iterable[str],
    signature: Mapping[str, str],
    divisible: frozenset[str],
    unaligned: frozenset[str],
) -> dict[tuple[int], list[list[object]]]:
    return {
        (position,): [["tt.divisibility", ALIGNMENT]]
        for position, name in enumerate(parameters)
        if name in divisible or (signature.get(name, "").startswith("*") and name not in unaligned)
    }


def _last_words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("Repro command")]
    return " | ".join(told[-3:]) or type(error).__name__
