"""Descriptions of GPU vendors. Takes the name of a target, gives what Triton's backends differ
in."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.machine.gpu_numbers import GPU


@dataclass(frozen=True, slots=True)
class Vendor:
    """`backend`, `binary`, `assembly`: Triton's names. `prefix`: of names of targets. `can_relax`:
    whether the assembler spills less with a higher limit of registers."""

    backend: str
    prefix: str
    has_numbered_targets: bool  # `sm_90` is 90 to Triton, `gfx942` a name
    warp_threads: int
    binary: str
    assembly: str
    can_relax: bool = False


CUDA = Vendor("cuda", "sm_", True, GPU.warp_threads, "cubin", "ptx", can_relax=True)
ROCM = Vendor("hip", "gfx", False, GPU.wavefront_threads, "hsaco", "amdgcn")
VENDORS = (CUDA, ROCM)


def vendor_of(target: str) -> Vendor:
    """Of `sm_90` or `gfx942`."""
    for vendor in VENDORS:
        number = target.removeprefix(vendor.prefix)
        if number != target and (number.isdecimal() or not vendor.has_numbered_targets):
            return vendor
    raise ValueError(f'no target "{target}": sm_<number> or gfx<number>')
