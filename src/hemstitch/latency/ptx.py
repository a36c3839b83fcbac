"""Parses PTX for what machine code no longer shows: which accesses release and acquire, and how
often an instruction occurs in a loop before ptxas unrolls it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from hemstitch.latency.disassembly import SourceLine

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
_LOCATION = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_LABEL = re.compile(r"^\s*(\$[\w$]+):")
_INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)(?:\s+([^/]*))?")
_ARRIVE = re.compile(r"(?:atom|red)\b.*\.(?:release|acq_rel)\b")
_ACQUIRE = re.compile(r"(?:ld|atom)\b.*\.acquire\b")
_ACCESS = re.compile(r"(?:ld|st|atom|red)\.(?:\w+\.)*global\b|cp\.async")


class SynchronisationRole(Enum):
    """The role of an access in a device-wide barrier or a last-block reduction."""

    ARRIVE = "arrive"
    ACQUIRE = "acquire"
    ACCESS = "access"  # to global memory, of data
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class PtxInstruction:
    opcode: str
    role: SynchronisationRole
    line: SourceLine | None
    is_in_loop: bool


def parse_ptx(text: str) -> tuple[PtxInstruction, ...]:
    files = {int(number): path for number, path in _FILE.findall(text)}
    rows: list[tuple[str, SourceLine | None]] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    line: SourceLine | None = None
    for row in text.splitlines():
        if location := _LOCATION.match(row):
            line = SourceLine(files.get(int(location[1]), ""), int(location[2]))
        elif label := _LABEL.match(row):
            labels[label[1]] = len(rows)
        elif instruction := _INSTRUCTION.match(row):
            opcode, operands = instruction[1], (instruction[2] or "").strip().rstrip(";").strip()
            if opcode.startswith("bra") and operands in labels:
                loops.append((labels[operands], len(rows)))
            rows.append((opcode, line))
    return tuple(
        PtxInstruction(
            opcode,
            _role(opcode),
            source_line,
            any(first <= position <= last for first, last in loops),
        )
        for position, (opcode, source_line) in enumerate(rows)
    )


def _role(opcode: str) -> SynchronisationRole:
    if _ARRIVE.match(opcode):
        return SynchronisationRole.ARRIVE
    if _ACQUIRE.match(opcode):
        return SynchronisationRole.ACQUIRE
    return SynchronisationRole.ACCESS if _ACCESS.match(opcode) else SynchronisationRole.OTHER
