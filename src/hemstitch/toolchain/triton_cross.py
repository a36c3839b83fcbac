"""Cross-compiles a Triton kernel for a GPU that need not be present. Takes the kernel and the types
of its parameters, gives machine code and assembly text. The only user of Triton's compiler; 3.6 to
3.9.

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
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.toolchain.compile_lock import Quiet, SharedExclusiveLock

LANGUAGE_LOCK = SharedExclusiveLock()  # Triton's: many may compile shared; who changes it is alone
QUIET = Quiet()
ALIGNMENT = 16  # bytes of a pointer, or the divisor of an integer, that Triton's compiler can use


@dataclass(frozen=True, slots=True)
class Backend:
    """`name`: Triton's. `target`: names of its targets; a number in it is all that Triton takes.
    `warp`: threads. `binary` and `assembly`: the suffixes of what Triton makes."""

    name: str
    target: re.Pattern[str]
    warp: int
    binary: str
    assembly: str


BACKENDS = (
    Backend("cuda", re.compile(r"sm_(\d+)"), GPU.warp_threads, "cubin", "ptx"),
    Backend("hip", re.compile(r"gfx\w+"), GPU.wavefront_threads, "hsaco", "amdgcn"),
)


class NotCached(Exception):
    """Triton's cache does not have this kernel."""


class _CachedSource(ASTSource):  # type: ignore[misc]
    """A source that is only looked up in Triton's cache."""

    def make_ir(self, *_: object, **__: object) -> Any:
        raise NotCached


@dataclass(frozen=True, slots=True)
class CrossCompiled:
    """Machine code and assembly, for reports and lints."""

    name: str
    target: str
    binary: bytes  # cubin or hsaco
    assembly: str  # PTX or amdgcn
    shared_bytes: int  # dynamic, for each program
    warps: int
    cooperative: bool


def tools_folder() -> Path:
    """Triton's folder with nvdisasm and cuobjdump."""
    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def gpu_target(target: str) -> GPUTarget:
    """Triton's target for `sm_90` or `gfx942`."""
    backend = backend_of(target)
    number = backend.target.sub(r"\1", target) if backend.target.groups else ""
    return GPUTarget(backend.name, int(number) if number else target, backend.warp)


def backend_of(target: str) -> Backend:
    backend = next((backend for backend in BACKENDS if backend.target.fullmatch(target)), None)
    if backend is None:
        raise ValueError(f'no target "{target}": sm_<number> or gfx<number>')
    return backend


def compile_for(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    target: str,
    **choices: Any,
) -> CrossCompiled:
    """The result of `build_for`, which has the same parameters, for reports and lints."""
    built = build_for(kernel, signature, constants, target, **choices)
    backend = backend_of(target)
    return CrossCompiled(
        name=built.metadata.name,
        target=target,
        binary=built.asm[backend.binary],
        assembly=built.asm[backend.assembly],
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
    if_cached: bool = False,
) -> Any:
    """Triton's CompiledKernel, not yet loaded. `signature`: the types of the parameters that are
    not constants. Pointers are assumed to be aligned as PyTorch's allocator aligns them, except
    those in `unaligned`; `divisible_by_16` names such integers. `checked`: device asserts trap.
    `if_cached`: only look in Triton's cache.

    Raises KernelBuildError with the end of the compiler's message, NotCached with `if_cached`.
    """
    source = (_CachedSource if if_cached else ASTSource)(
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
        with LANGUAGE_LOCK.shared(), QUIET.here():  # a ptxas that fails prints the whole PTX
            return triton.compile(source, target=machine, options=options)
    except NotCached:
        raise
    except Exception as error:
        raise KernelBuildError(
            f"{kernel.__name__} does not compile for {target}: {_last_words(error)}"
        ) from error


def relaxed_register_limit(warps: int) -> int:
    """The limit of registers for each thread if NVIDIA's assembler spilled with its own, which
    favours many resident programs (AStitch, section 4.4: assume, then relax)."""
    return min(GPU.thread_registers, GPU.multiprocessor_registers // (GPU.warp_threads * warps))


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
    messages = [line for line in lines if not line.startswith("Repro command")]
    return " | ".join(messages[-3:]) or type(error).__name__
