"""How long a candidate takes, before it runs. Takes a program and its launch, gives the estimate of
`hemstitch.latency` from the machine code that would run; needs no GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hemstitch.ir.dims import evaluate as evaluate_size
from hemstitch.latency.architecture import Architecture
from hemstitch.latency.disassembly import Disassembly, SourceLine, disassemble
from hemstitch.latency.evaluate import Estimate, LaunchFacts, evaluate
from hemstitch.latency.occupancy import occupancy
from hemstitch.latency.ptx import parse_ptx
from hemstitch.runtime.gpu.grid import grid_of
from hemstitch.runtime.gpu.loaded_kernel import at_a_time, build, variant_of
from hemstitch.targets.gpu.kernel import TritonProgram
from hemstitch.toolchain.triton_cross import tools_folder
from hemstitch.toolchain.triton_source import kernel_of

_CALLED, _FUNCTION = re.compile(r"(\w+)\("), re.compile(r"def (\w+)\(")
_TICKET = "device.is_last("
_LOOP = re.compile(r"^\s*for \w+ in tl\.range\((.*)\):")


def _trips(
    first: float, last: float, step: float = 1, loop_unroll_factor: int = 1, **hints: object
) -> float:
    """Of the loop that Triton's compiler leaves."""
    return (last - first) / (step * loop_unroll_factor)


_NAMES = {"__builtins__": {}, "min": min, "max": max, "trips": _trips}


def estimate(
    program: TritonProgram, sizes: tuple[int, ...], memory_bytes: int, architecture: Architecture
) -> Estimate:
    """With all tensors aligned."""
    built = build(program, variant_of(True, sizes), architecture.target)
    code = disassemble(built.asm["cubin"], tools_folder())
    shared = built.metadata.shared
    held = occupancy(
        architecture, registers=code.resources.registers, shared_bytes=shared, warps=program.warps
    )
    is_bounded = program.barriers > 0 or bool(program.scratch)
    resident = at_a_time(program, held.blocks) * architecture.sms if is_bounded else None
    programs = grid_of(program, sizes, resident).programs
    launch = LaunchFacts(
        programs=programs,
        warps=program.warps,
        shared_bytes=shared,
        memory_bytes=memory_bytes,
        barriers=program.barriers,
        trips=trips(program, code, sizes, programs),
        shares=shares(program, code, programs),
    )
    return evaluate(code, launch, architecture, parse_ptx(built.asm["ptx"]))


def trips(
    program: TritonProgram, code: Disassembly, sizes: tuple[int, ...], programs: int
) -> Mapping[SourceLine, float]:
    """Of the loops whose bounds follow from the sizes, for an average program."""
    names: dict[str, Any] = {str(name): size for name, size in zip(program.sizes, sizes)}
    names |= _NAMES | {"program": 0, "programs": max(1, programs)}
    counts: dict[int, float] = {}
    for number, row in enumerate(program.text.splitlines(), start=1):
        if found := _LOOP.match(row):
            count = _count(found[1], names)
            if count is not None:
                counts[number] = count
    return {line: counts[line.line] for line in _lines(program, code) if line.line in counts}


def shares(program: TritonProgram, code: Disassembly, programs: int) -> Mapping[SourceLine, float]:
    """Of the programs that run a line: one of them all that follows a ticket, to the end of the
    text, and the functions that are called there. Triton 3.6 names only the innermost line of an
    instruction, later ones also those that call it."""
    text = program.text.splitlines()
    ticket = next((number for number, row in enumerate(text, start=1) if _TICKET in row), None)
    if ticket is None:
        return {}
    behind = {*range(ticket + 1, len(text) + 1)}
    called = {name for row in text[ticket:] for name in _CALLED.findall(row)}
    function = ""
    for number, row in enumerate(text, start=1):
        head = _FUNCTION.match(row)
        function = head[1] if head else function
        if function in called:
            behind.add(number)
    return {line: 1 / programs for line in _lines(program, code) if line.line in behind}


def _lines(program: TritonProgram, code: Disassembly) -> set[SourceLine]:
    """Of the program's text, that the machine code names."""
    # Machine code from Triton's cache may name another folder than this process's.
    file = Path(kernel_of(program.text, program.entry).fn.__code__.co_filename).name
    lines = {line for row in code.instructions for line in row.lines}
    return {line for line in lines if Path(line.file).name == file}


def _count(bounds: str, names: Mapping[str, Any]) -> float | None:
    """None where they depend on what the kernel computes."""
    try:
        found = eval(f"trips({bounds})", dict(names))
    except (NameError, AttributeError):
        return None
    return max(0.0, float(found))


def bytes_of(program: TritonProgram, sizes: tuple[int, ...]) -> int:
    """Of its tensors, each once."""
    values = {str(name): size for name, size in zip(program.sizes, sizes)}
    return sum(
        evaluate_size(buffer.size, values) * buffer.dtype.bytes for buffer in program.parameters
    )
