"""The estimated time of a candidate. Takes a program and its launch, gives the estimate of
`hemstitch.latency` from its machine code; needs no GPU."""

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
from hemstitch.runtime.gpu.loaded_kernel import build, resident_programs, variant_of
from hemstitch.targets.gpu.kernel import TritonProgram
from hemstitch.toolchain.triton_cross import tools_folder
from hemstitch.toolchain.triton_source import kernel_of

_CALLED, _FUNCTION = re.compile(r"(\w+)\("), re.compile(r"def (\w+)\(")
_LAST_BLOCK = "device.is_last("
_LOOP = re.compile(r"^\s*for \w+ in tl\.range\((.*)\):")


def _trips(
    first: float, last: float, step: float = 1, loop_unroll_factor: int = 1, **hints: object
) -> float:
    """The trips of a loop after the compiler's unrolling."""
    return (last - first) / (step * loop_unroll_factor)


_NAMES = {"__builtins__": {}, "min": min, "max": max, "trips": _trips}


def estimate(
    program: TritonProgram, sizes: tuple[int, ...], memory_bytes: int, architecture: Architecture
) -> Estimate:
    """The time of a launch, with all tensors aligned."""
    built = build(program, variant_of(True, sizes), architecture.target)
    code = disassemble(built.asm["cubin"], tools_folder())
    shared = built.metadata.shared
    resident = occupancy(
        architecture, registers=code.resources.registers, shared_bytes=shared, warps=program.warps
    )
    is_bounded = program.barriers > 0 or bool(program.scratch)
    most = resident_programs(program, resident.blocks) * architecture.sms if is_bounded else None
    programs = grid_of(program, sizes, most).programs
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
    """The trips of each loop whose bounds depend only on the sizes, for an average program."""
    names: dict[str, Any] = {str(name): size for name, size in zip(program.sizes, sizes)}
    names |= _NAMES | {"program": 0, "programs": max(1, programs)}
    counts: dict[int, float] = {}
    for number, row in enumerate(program.text.splitlines(), start=1):
        if loop := _LOOP.match(row):
            count = _count(loop[1], names)
            if count is not None:
                counts[number] = count
    return {line: counts[line.line] for line in _lines(program, code) if line.line in counts}


def shares(program: TritonProgram, code: Disassembly, programs: int) -> Mapping[SourceLine, float]:
    """The share of programs that run a line. One program runs all lines after a last-block
    reduction begins, and the functions that these call. Triton 3.6 names only the innermost line of
    an instruction, later versions also its callers."""
    text = program.text.splitlines()
    last_block = next(
        (number for number, row in enumerate(text, start=1) if _LAST_BLOCK in row), None
    )
    if last_block is None:
        return {}
    after_last_block = {*range(last_block + 1, len(text) + 1)}
    called = {name for row in text[last_block:] for name in _CALLED.findall(row)}
    function = ""
    for number, row in enumerate(text, start=1):
        head = _FUNCTION.match(row)
        function = head[1] if head else function
        if function in called:
            after_last_block.add(number)
    return {line: 1 / programs for line in _lines(program, code) if line.line in after_last_block}


def _lines(program: TritonProgram, code: Disassembly) -> set[SourceLine]:
    """The lines of the program's text that the machine code names."""
    # Machine code from Triton's cache may name a folder of another process.
    file = Path(kernel_of(program.text, program.entry).fn.__code__.co_filename).name
    lines = {line for row in code.instructions for line in row.lines}
    return {line for line in lines if Path(line.file).name == file}


def _count(bounds: str, names: Mapping[str, Any]) -> float | None:
    """None for bounds that depend on computed values."""
    try:
        count = eval(f"trips({bounds})", dict(names))
    except (NameError, AttributeError):
        return None
    return max(0.0, float(count))


def bytes_of(program: TritonProgram, sizes: tuple[int, ...]) -> int:
    """The bytes of its tensors, each counted once."""
    values = {str(name): size for name, size in zip(program.sizes, sizes)}
    return sum(
        evaluate_size(buffer.size, values) * buffer.dtype.bytes for buffer in program.parameters
    )
