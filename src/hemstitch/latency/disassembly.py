"""Reads a cubin: takes its bytes and the folder of NVIDIA's disassemblers, gives instructions with
their control bits and source lines, and the resources of the kernel.

The 21 control bits of an instruction (bits 105 to 125 of 128, since Volta): clocks until the next
issue (4), whether the scheduler may yield, the scoreboards that its result (3) and its last operand
(3) release, and the scoreboards that it waits for (6).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hemstitch.errors import InternalError
from hemstitch.machine.gpu_numbers import GPU

SCOREBOARDS = 6
NO_SCOREBOARD = 7
FIRST_WITH_RESERVED = 90

_TARGET = re.compile(r"\.target\s+sm_(\d+)|EF_CUDA_SM(\d+)")
_COMMENT = re.compile(r'"([^"]+)", line (\d+)')
_LABEL = re.compile(r"^([.$\w]+):\s*$")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([$\w]+)", re.MULTILINE)
_INSTRUCTION = re.compile(
    r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;"
    r"\s*/\* 0x[0-9a-f]+ \*/"
)
_UPPER_HALF = re.compile(r"^\s*/\* (0x[0-9a-f]{16}) \*/\s*$")
_RESOURCES = re.compile(r"REG:(\d+)\s+STACK:(\d+)\s+SHARED:(\d+)\s+LOCAL:(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class SourceLine:
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Control:
    stall: int  # clocks before the warp's next instruction
    may_yield: bool
    write_scoreboard: int | None  # released when the result is there
    read_scoreboard: int | None  # released when the operands have been read
    waits_for: tuple[int, ...]  # scoreboards


@dataclass(frozen=True, slots=True)
class Instruction:
    address: int
    opcode: str  # with all its suffixes
    predicate: str | None
    operands: tuple[str, ...]
    control: Control
    lines: tuple[SourceLine, ...]  # its source line, then its call sites, outwards
    target: int | None = None  # of a branch

    @property
    def base(self) -> str:
        return self.opcode.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Resources:
    registers: int  # of a thread
    stack_bytes: int  # of a thread
    shared_bytes: int  # static, of a block, without what the driver reserves
    local_bytes: int  # of a thread


@dataclass(frozen=True, slots=True)
class Disassembly:
    name: str
    target: str  # such as sm_90
    instructions: tuple[Instruction, ...]
    resources: Resources


def disassemble(cubin: bytes, tools: Path) -> Disassembly:
    """`tools`: the folder of nvdisasm and cuobjdump. Raises InternalError where they are missing or
    cannot read the cubin."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = _output(tools / "nvdisasm", "-c", "-gi", "-hex", path)
        usage = _output(tools / "cuobjdump", "-res-usage", path)
    return parse(text, usage)


def parse(text: str, usage: str) -> Disassembly:
    """Parses the output of `nvdisasm -c -gi -hex` and `cuobjdump -res-usage`. Raises InternalError
    where there is no kernel."""
    target = _TARGET.search(text)
    section = _SECTION.search(text)
    resources = _RESOURCES.search(usage)
    instructions = tuple(_instructions(text))
    if target is None or section is None or resources is None or not instructions:
        raise InternalError("the disassemblers printed no kernel")
    registers, stack, shared, local = map(int, resources.groups())
    number = int(target[1] or target[2])
    if number >= FIRST_WITH_RESERVED:
        shared = max(0, shared - GPU.reserved_shared_bytes)
    return Disassembly(
        name=section[1],
        target=f"sm_{number}",
        instructions=instructions,
        resources=Resources(registers, stack, shared, local),
    )


def _output(tool: Path, *arguments: str | Path) -> str:
    try:
        done = subprocess.run([tool, *arguments], capture_output=True, text=True)
    except OSError as error:
        raise InternalError(f"{tool.name} cannot be run: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise InternalError(f"{tool.name} cannot read the kernel: {' | '.join(lines[-2:])}")
    return done.stdout


def _instructions(text: str) -> Iterator[Instruction]:
    """Of the first section of code, which is the kernel's."""
    encoded: list[tuple[re.Match[str], tuple[SourceLine, ...], int]] = []
    labels: dict[str, int] = {}
    pending_labels: list[str] = []  # of the next instruction
    lines: tuple[SourceLine, ...] = ()
    is_new_chain = True
    half: tuple[re.Match[str], tuple[SourceLine, ...]] | None = None
    for row in _kernel_section(text):
        if half is not None and (upper := _UPPER_HALF.match(row)):
            encoded.append((*half, int(upper[1], 16)))
            half = None
        elif "//## File" in row:
            lines = _chain(row) if is_new_chain else lines[:-1] + _chain(row)
            is_new_chain = False
        elif label := _LABEL.match(row):
            pending_labels.append(label[1])
        elif instruction := _INSTRUCTION.match(row):
            labels |= dict.fromkeys(pending_labels, int(instruction[1], 16))
            pending_labels.clear()
            half, is_new_chain = (instruction, lines), True
    for match, chain, upper_half in encoded:
        yield _instruction(match, chain, upper_half, labels)


def _kernel_section(text: str) -> Iterator[str]:
    rows = iter(text.splitlines())
    for row in rows:
        if _SECTION.match(row):
            break
    for row in rows:
        if row.split()[:1] == [".section"]:
            return
        yield row


def _chain(comment: str) -> tuple[SourceLine, ...]:
    """The line that a comment names, and where it was inlined. The next comment begins with the
    latter."""
    return tuple(SourceLine(file, int(line)) for file, line in _COMMENT.findall(comment))


def _instruction(
    match: re.Match[str],
    chain: tuple[SourceLine, ...],
    upper_half: int,
    labels: dict[str, int],
) -> Instruction:
    address, predicate, opcode, operands = match.groups()
    label = re.search(r"`\(([.$\w]+)\)", operands)
    return Instruction(
        address=int(address, 16),
        opcode=opcode,
        predicate=predicate,
        operands=tuple(part.strip() for part in operands.split(",") if part.strip()),
        control=_control(upper_half),
        lines=chain,
        target=labels.get(label[1]) if label and opcode.startswith("BRA") else None,
    )


def _control(upper_half: int) -> Control:
    """`upper_half`: bits 64 to 127 of the instruction."""
    write, read = upper_half >> 46 & 7, upper_half >> 49 & 7
    return Control(
        stall=upper_half >> 41 & 15,
        may_yield=not upper_half >> 45 & 1,
        write_scoreboard=None if write == NO_SCOREBOARD else write,
        read_scoreboard=None if read == NO_SCOREBOARD else read,
        waits_for=tuple(bit for bit in range(SCOREBOARDS) if upper_half >> 52 + bit & 1),
    )
