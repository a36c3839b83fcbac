"""Kernels of known work, timed and estimated: does the latency evaluator put them in the order that
the device does?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.gpu import microkernels
from benchmarks.gpu.device import CUDA
from benchmarks.gpu.launcher import Launcher
from benchmarks.gpu.worker import Job, Line
from hemstitch.latency.architecture import from_json
from hemstitch.latency.disassembly import SourceLine, disassemble
from hemstitch.latency.evaluate import LaunchFacts, evaluate
from hemstitch.latency.ptx import parse_ptx
from hemstitch.toolchain.triton_cross import ALIGNMENT, compile_for, tools_folder

ROWS, COLUMNS = 65536, 1024
ROWS_EMULATED = 8
TYPES = {torch.float32: "*fp32", torch.int32: "*i32"}


@dataclass(frozen=True, slots=True)
class Candidate:
    kernel: Any
    programs: int
    arguments: Mapping[str, Any]  # tensors, numbers and constants (in capitals)
    warps: int
    memory_bytes: float
    trips: float = 1.0  # of its one loop


def _copy(block: int, warps: int, less: int = 0) -> Callable[[Launcher], Candidate]:
    """`less`: elements at the end that are not copied; 1 makes their number no multiple of 16."""

    def make(launcher: Launcher) -> Candidate:
        count = _rows(launcher) * COLUMNS
        arguments = {**_tensors(launcher, count, count), "count": count - less, "BLOCK": block}
        return Candidate(microkernels.copy, count // block, arguments, warps, 8.0 * count)

    return make


def _row_sums(per_processor: int, warps: int) -> Callable[[Launcher], Candidate]:
    def make(launcher: Launcher) -> Candidate:
        rows, programs = _rows(launcher), launcher.processors * per_processor
        arguments = _tensors(launcher, rows * COLUMNS, rows)
        arguments |= {"rows": rows, "N": COLUMNS, "PROGRAMS": programs}
        read = 4.0 * rows * COLUMNS
        return Candidate(
            *(microkernels.row_sums, programs, arguments, warps, read, rows / programs)
        )

    return make


def _column_sums(height: int, per_processor: int, warps: int) -> Callable[[Launcher], Candidate]:
    def make(launcher: Launcher) -> Candidate:
        rows, programs = _rows(launcher), launcher.processors * per_processor
        rows = rows // (programs * height) * programs * height or programs * height
        arguments = _tensors(launcher, rows * COLUMNS, programs * COLUMNS)
        arguments |= {"rows": rows, "N": COLUMNS, "BM": height, "PROGRAMS": programs}
        trips = rows / (programs * height)
        return Candidate(
            *(microkernels.column_sums, programs, arguments, warps, 4.0 * rows * COLUMNS, trips)
        )

    return make


def _exponentials(per_processor: int, warps: int) -> Callable[[Launcher], Candidate]:
    def make(launcher: Launcher) -> Candidate:
        programs, block, steps = launcher.processors * per_processor, 32 * warps, 1000
        steps = launcher.choose(steps, 2)
        arguments = {"result": torch.ones(programs * block, device=launcher.device)}
        numbers = {"steps": steps, "BLOCK": block}
        return Candidate(
            *(microkernels.exponential_chain, programs, {**arguments, **numbers}, warps, 0.0),
            steps,
        )

    return make


def _dropout(block: int, warps: int) -> Callable[[Launcher], Candidate]:
    def make(launcher: Launcher) -> Candidate:
        count = _rows(launcher) * COLUMNS
        arguments = {**_tensors(launcher, count, count), "seed": 7, "BLOCK": block}
        return Candidate(microkernels.dropout_each, count // block, arguments, warps, 8.0 * count)

    return make


CANDIDATES: Mapping[str, Callable[[Launcher], Candidate]] = {
    "copy, vectors": _copy(1024, 4),
    "copy, single words": _copy(1024, 4, less=1),
    "copy, large blocks": _copy(8192, 8),
    "row sums, 1 program of 4 warps per SM": _row_sums(1, 4),
    "row sums, 4 programs of 4 warps per SM": _row_sums(4, 4),
    "row sums, 16 programs of 4 warps per SM": _row_sums(16, 4),
    "row sums, 4 programs of 1 warp per SM": _row_sums(4, 1),
    "column sums, 1 program of 4 warps per SM": _column_sums(4, 1, 4),
    "column sums, 4 programs of 4 warps per SM": _column_sums(4, 4, 4),
    "column sums, 1 program of 8 warps per SM": _column_sums(8, 1, 8),
    "column sums, 2 programs of 16 warps per SM": _column_sums(8, 2, 16),
    "exponentials, 1 warp per SM": _exponentials(1, 1),
    "exponentials, 16 warps per SM": _exponentials(4, 4),
    "exponentials, 64 warps per SM": _exponentials(8, 8),
    "dropout": _dropout(1024, 4),
    "dropout, large blocks": _dropout(4096, 4),
}
FEW = ("copy, vectors", "row sums, 1 program of 4 warps per SM")


def _rows(launcher: Launcher) -> int:
    return launcher.choose(ROWS, ROWS_EMULATED)


def _tensors(launcher: Launcher, read: int, written: int) -> dict[str, Any]:
    return {
        "source": torch.zeros(read, device=launcher.device),
        "result": torch.empty(written, device=launcher.device),
    }


def jobs(kind: str, fitted: str) -> list[Job]:
    names = CANDIDATES if kind == CUDA else FEW
    return [{"device": kind, "candidate": name, "fitted": fitted} for name in names]


def line_of(launcher: Launcher, job: Job) -> Line:
    candidate = CANDIDATES[job["candidate"]](launcher)
    architecture = replace(launcher.architecture, fitted=from_json(job["fitted"]))
    numbers = {n: v for n, v in candidate.arguments.items() if n.islower()}
    constants = {n: v for n, v in candidate.arguments.items() if not n.islower()}
    compiled = compile_for(
        candidate.kernel,
        {n: TYPES[v.dtype] if isinstance(v, torch.Tensor) else "i32" for n, v in numbers.items()},
        constants,
        architecture.target,
        warps=candidate.warps,
        divisible_by_16=[n for n, v in numbers.items() if _is_multiple(v)],
    )
    launch = LaunchFacts(
        programs=candidate.programs,
        warps=candidate.warps,
        shared_bytes=compiled.shared_bytes,
        memory_bytes=candidate.memory_bytes,
        trips=dict.fromkeys(_loops(candidate.kernel), candidate.trips),
    )
    code = disassemble(compiled.binary, tools_folder())
    estimate = evaluate(code, launch, architecture, parse_ptx(compiled.assembly))
    seconds = launcher.seconds(
        candidate.kernel, candidate.programs, candidate.arguments, warps=candidate.warps
    )
    return {
        "device": launcher.kind,
        "candidate": job["candidate"],
        "estimate": estimate.seconds,
        "bound": estimate.bound.value,
        "measured": seconds,
    }


def _is_multiple(value: object) -> bool:
    """As Triton's launcher, which is what is timed, looks at numbers."""
    return isinstance(value, int) and value % ALIGNMENT == 0


def _loops(kernel: Any) -> list[SourceLine]:
    rows = inspect.getsource(kernel.fn).splitlines()
    file, first = kernel.fn.__code__.co_filename, kernel.starting_line_number
    return [
        SourceLine(file, first + n) for n, row in enumerate(rows) if row.strip().startswith("for ")
    ]
