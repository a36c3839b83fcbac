"""Counts what an AMD kernel does: reads the amdgcn assembly that LLVM prints, gives `Facts` and the
occupancy of a compute unit.

Sources: "CDNA3 Instruction Set Architecture" for opcodes; the footer of the assembly for resources.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType

from hemstitch.errors import InternalError
from hemstitch.latency.facts import Accesses, Facts

_OPCODE = re.compile(r"^\t([a-z]\w+)", re.MULTILINE)
_GLOBAL = re.compile(r"(?:buffer|global|flat)_(load|store)_(\w+)")
_ACCESS_BITS = {
    "dword": 32,
    "ushort": 16,
    "short": 16,
    "sshort": 16,
    "ubyte": 8,
    "sbyte": 8,
    "byte": 8,
}
_SPECIAL = re.compile(r"v_(?:exp|log|rcp|rsq|sqrt|sin|cos)_")
_SHUFFLE = re.compile(r"ds_(?:bpermute|permute|swizzle)_|v_permlane|v_\w+_dpp")


@dataclass(frozen=True, slots=True)
class ComputeUnit:
    """A compute unit of CDNA3 (white paper of the MI300X); `units`: on the device."""

    units: int = 304
    simds: int = 4
    waves_per_simd: int = 8
    shared_bytes: int = 64 << 10


MI300X = ComputeUnit()


def amd_facts(text: str) -> Facts:
    """The facts of one kernel. Raises InternalError for assembly without LLVM's footer."""
    opcodes = _OPCODE.findall(text[: text.find(".amdhsa_kernel")])

    def matching(pattern: str) -> int:
        return sum(1 for opcode in opcodes if re.match(pattern, opcode))

    return Facts(
        registers=_number(text, "TotalNumVgprs"),
        stack_bytes=_number(text, "ScratchSize"),
        shared_bytes=_number(text, "LDSByteSize"),
        spills=_spilled(text) or matching("scratch_"),
        loads=_accesses(opcodes, "load"),
        stores=_accesses(opcodes, "store"),
        asynchronous_copies=sum(
            1 for row in text.splitlines() if "buffer_load" in row and row.rstrip().endswith(" lds")
        ),
        bulk_copies=0,
        matrix=matching("v_mfma|v_smfmac|v_wmma"),
        warpgroup_matrix=0,
        special=sum(1 for opcode in opcodes if _SPECIAL.match(opcode)),
        shuffles=sum(1 for opcode in opcodes if _SHUFFLE.match(opcode)),
        barriers=matching("s_barrier"),
        atomics=matching("(?:global|buffer|flat)_atomic"),
        instructions=len(opcodes),
    )


def amd_blocks(text: str, *, shared_bytes: int, warps: int, unit: ComputeUnit = MI300X) -> int:
    """How many blocks of `warps` waves and `shared_bytes` of LDS one compute unit holds. LLVM's
    footer says how many waves the registers allow."""
    waves = min(_number(text, "Occupancy"), unit.waves_per_simd) * unit.simds
    by_shared = unit.shared_bytes // shared_bytes if shared_bytes else waves
    return min(waves // warps, by_shared)


def _number(text: str, name: str) -> int:
    match = re.search(rf"^; {name}: (\d+)", text, re.MULTILINE)
    if match is None:
        raise InternalError(f"the assembly does not say its {name}")
    return int(match[1])


def _spilled(text: str) -> int:
    """Vector registers spilled to memory. (Scalar registers spill to lanes of vector registers.)"""
    return sum(int(count) for count in re.findall(r"\.vgpr_spill_count:\s*(\d+)", text))


def _accesses(opcodes: list[str], direction: str) -> Accesses:
    widths: Counter[int] = Counter()
    for opcode in opcodes:
        access = _GLOBAL.match(opcode)
        if access and access[1] == direction:
            widths[_width(access[2])] += 1
    return Accesses(MappingProxyType(dict(sorted(widths.items()))))


def _width(suffix: str) -> int:
    """Bits of an access by its opcode suffix: `dwordx4`, `ushort`, `short_d16_hi`, ..."""
    element = suffix.partition("_")[0]
    vector = re.fullmatch(r"dwordx(\d+)", element)
    return 32 * int(vector[1]) if vector else _ACCESS_BITS[element]
