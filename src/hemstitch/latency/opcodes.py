"""Classifies NVIDIA opcodes. Takes an opcode as the disassembler prints it, gives the pipe that it
occupies and the latency class of its result.

Opcodes: "Instruction Set Reference" of NVIDIA's CUDA Binary Utilities, for Ampere, Hopper and
Blackwell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Pipe(Enum):
    """An execution unit with a throughput of its own."""

    FMA = "fma"
    MULTIPLY = "integer multiply"
    INTEGER = "integer"
    SPECIAL = "special function"
    DOUBLE = "double"
    MEMORY = "load/store"
    MATRIX = "matrix"
    ISSUE = "issue"  # only the issue slot that every instruction takes


class Wait(Enum):
    """The latency class of a result. FIXED: the stall count of the instruction covers it."""

    FIXED = "fixed"
    MEMORY = "memory"
    ATOMIC = "atomic"
    LOCAL = "local"  # spilled registers, mostly in L1
    STORE = "store"  # until its registers have been read
    SHARED = "shared"
    SHUFFLE = "shuffle"
    SPECIAL = "special"
    CONSTANT = "constant"
    SYSTEM = "system register"
    MATRIX = "matrix"
    WARPGROUP = "warpgroup matrix"
    BARRIER = "barrier"  # of a block


@dataclass(frozen=True, slots=True)
class OpcodeKind:
    pipe: Pipe
    wait: Wait


_GROUPS: tuple[tuple[Pipe, Wait, str], ...] = (
    (
        *(Pipe.FMA, Wait.FIXED),
        "FADD FFMA FMUL FADD2 FFMA2 FMUL2 FADD32I FFMA32I FMUL32I FSWZADD FHADD FHFMA "
        "HADD2 HFMA2 HMUL2 HADD2_32 HFMA2_MMA",
    ),
    (Pipe.MULTIPLY, Wait.FIXED, "IMAD IDP IDP4A IMUL IMUL32I"),
    (
        *(Pipe.INTEGER, Wait.FIXED),
        "IADD IADD3 IADD32I VIADD LOP LOP3 LOP32I SHF SHL SHR LEA ISETP IMNMX VIMNMX VIMNMX3 "
        "VIADDMNMX VABSDIFF VABSDIFF4 VHMNMX FMNMX FMNMX3 FSETP FSET FSEL FCHK SEL PRMT MOV MOV32I "
        "MOVM BMSK SGXT PLOP3 P2R R2P IABS ISCADD HSETP2 HSET2 HMNMX2 I2FP F2FP F2IP I2IP PSETP "
        "CS2R VOTE VOTEU LEPC",
    ),
    (Pipe.SPECIAL, Wait.SPECIAL, "MUFU F2F F2I I2F I2I FRND FLO POPC BREV REDUX CREDUX"),
    (Pipe.DOUBLE, Wait.SPECIAL, "DADD DMUL DFMA DSETP DMNMX"),
    (Pipe.MEMORY, Wait.MEMORY, "LDG LD LDGSTS LDGMC MEMBAR"),
    (Pipe.MEMORY, Wait.ATOMIC, "ATOM ATOMG"),
    (Pipe.MEMORY, Wait.LOCAL, "LDL"),
    (Pipe.MEMORY, Wait.STORE, "STG ST STL RED REDG REDAS STAS"),
    (
        Pipe.MEMORY,
        Wait.SHARED,
        "LDS LDSM STS STSM ATOMS LDT LDTM STT STTM QSPC FENCE CCTL CCTLL CCTLT",
    ),
    (Pipe.MEMORY, Wait.SHUFFLE, "SHFL MATCH"),
    (Pipe.ISSUE, Wait.CONSTANT, "LDC LDCU ULDC"),
    (Pipe.ISSUE, Wait.SYSTEM, "S2R S2UR B2R R2B R2UR"),
    (Pipe.MATRIX, Wait.MATRIX, "HMMA IMMA BMMA DMMA QMMA OMMA"),
    (Pipe.MATRIX, Wait.WARPGROUP, "HGMMA IGMMA BGMMA QGMMA"),
    (Pipe.ISSUE, Wait.BARRIER, "BAR"),
    (Pipe.ISSUE, Wait.SHARED, "SYNCS"),
    (
        *(Pipe.ISSUE, Wait.FIXED),
        "BRA BRX BRXU BSSY BSYNC BREAK BMOV CALL RET JMP JMX JMXU EXIT NOP WARPSYNC WARPGROUP "
        "WARPGROUPSET YIELD NANOSLEEP DEPBAR LDGDEPBAR ARRIVES KILL BPT RPCMOV ELECT ENDCOLLECTIVE "
        "PREEXIT ACQBULK ACQSHMINIT PMTRIG ERRBAR CGAERRBAR SETCTAID SETLMEMBASE GETLMEMBASE",
    ),
)
KINDS: Mapping[str, OpcodeKind] = {
    opcode: OpcodeKind(pipe, wait) for pipe, wait, opcodes in _GROUPS for opcode in opcodes.split()
}
BULK_LOADS = ("UTMALDG", "UBLKCP")
_UNIFORM = {
    "UTC": OpcodeKind(Pipe.MATRIX, Wait.WARPGROUP),  # matrix instructions of Blackwell
    "UTMALDG": OpcodeKind(Pipe.ISSUE, Wait.MEMORY),
    "UBLKCP": OpcodeKind(Pipe.ISSUE, Wait.MEMORY),
    "U": OpcodeKind(Pipe.ISSUE, Wait.FIXED),  # the uniform datapath
}


def kind_of(opcode: str) -> OpcodeKind | None:
    """The class of `opcode`; None for an unknown one."""
    base = opcode.partition(".")[0]
    if base in KINDS:
        return KINDS[base]
    return next((kind for start, kind in _UNIFORM.items() if base.startswith(start)), None)


def width_bits(opcode: str) -> int:
    """Bits that each thread loads or stores."""
    match = re.search(r"\.(?:[US])?(8|16|64|128|256)(?=\.|$)", opcode)
    return int(match[1]) if match else 32


def matrix_flops(opcode: str) -> int | None:
    """Flops of one warp's MMA instruction, counted as if its inputs had 16 bits: 32-bit inputs are
    half as many and take as long. None where the opcode has no shape."""
    if match := re.search(r"\.64x(\d+)x\d+", opcode):
        return 2 * 64 * int(match[1]) * 16 // 4  # four warps share it
    if match := re.match(r"[HI]MMA\.(?:SP\.)?168(\d+)", opcode):
        inner_bytes = int(match[1]) * (4 if "TF32" in opcode else 1 if "8" in _types(opcode) else 2)
        return 2 * 16 * 8 * inner_bytes // 2
    return None


def _types(opcode: str) -> str:
    return "".join(part[1:] for part in opcode.split(".") if re.fullmatch(r"[US]\d+", part))
