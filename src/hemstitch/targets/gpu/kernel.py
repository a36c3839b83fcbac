"""A whole kernel as the text of a Python module: a function for each nest, and one that runs them
phase by phase with barriers of the whole device between, the last ones behind a ticket."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hemstitch.errors import KernelBuildError
from hemstitch.ir.dims import Dim, choice, evaluate, product, symbol, symbols, total
from hemstitch.kernel_ir.index import Index, largest
from hemstitch.kernel_ir.lifetime import Life, phase_lifetimes
from hemstitch.kernel_ir.nodes import (
    THREADS,
    Accumulate,
    Begin,
    Buffer,
    Kernel,
    Nest,
    Phase,
    Position,
    Role,
    walk,
)
from hemstitch.kernel_ir.placement import Lifetime, place
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.targets.gpu import tiling
from hemstitch.targets.gpu.description import GPULowering
from hemstitch.targets.gpu.function_merging import canonical_text, parameters_of
from hemstitch.targets.gpu.nest import TritonNestPrinter, is_mergeable
from hemstitch.targets.gpu.scope import TritonScope
from hemstitch.targets.gpu.tiling import Tiling
from hemstitch.targets.gpu.vectorised_access import is_vectorisable
from hemstitch.targets.gpu.writer import STEP

HEAD = '''"""{why}"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from hemstitch.targets.gpu import device_functions as device

'''
SEMAPHORE = "semaphore"  # where programs meet; zero before the first launch
MOST_INT32 = (1 << 31) - 1
_BEGIN = {
    Begin.BARRIER: f"{STEP}device.grid_barrier({SEMAPHORE}, programs)",
    Begin.LAST_BLOCK: f"{STEP}if device.is_last({SEMAPHORE}, programs):",
    Begin.ALONE: f"{STEP}{STEP}tl.debug_barrier()",
}


@dataclass(frozen=True, slots=True)
class TritonProgram:
    """Source and what its caller must know. Arguments in order: `parameters`, `scratch` (elements
    in terms of "threads", the programs of the launch), a semaphore if programs meet, `sizes`.

    `lives`: the first and last phase of each scratch buffer. `tiles`: how many programs have work
    in the largest phase; fewer take several each. `barriers`: at which all programs wait for all.
    `has_last_block`: the last to come goes on alone, and leaves the semaphore at zero.
    `is_vectorised`: nothing stands in the way of accesses of 16 bytes (vectorised_access.py).
    """

    text: str
    entry: str
    parameters: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    lives: tuple[Life, ...]
    sizes: tuple[Dim, ...]
    tiles: Dim
    barriers: int
    has_last_block: bool
    warps: int
    is_vectorised: bool

    @property
    def has_semaphore(self) -> bool:
        return self.barriers > 0 or self.has_last_block

    def scratch_layout(self, sizes: Mapping[str, int]) -> tuple[list[int], int]:
        """Where each scratch buffer starts, in bytes, and how many they take together: those that
        no phase has both of share memory. Inside a phase nothing orders different threads."""
        bytes_ = [evaluate(b.size, sizes) * b.dtype.bytes for b in self.scratch]
        return place([Lifetime(n, *life) for n, life in zip(bytes_, self.lives)], GPU.line_bytes)


@dataclass(frozen=True, slots=True)
class _Function:
    """Nests that are alike, printed. `buffers`: of each, in the same order."""

    name: str
    why: str
    lines: tuple[str, ...]
    buffers: tuple[tuple[Buffer, ...], ...]
    sizes: tuple[str, ...]
    tiles: Dim
    warps: int

    @property
    def key(self) -> Hashable:
        """Equal for nests that are alike; of one nest."""
        (buffers,) = self.buffers
        body = canonical_text("\n".join(self.lines), [buffer.name for buffer in buffers])
        kinds = tuple((buffer.dtype, buffer.role) for buffer in buffers)
        return body, kinds, self.sizes, self.tiles, self.warps


def print_triton(kernel: Kernel, lowering: GPULowering) -> TritonProgram:
    """A kernel that all stages of GPUs have lowered."""
    hint, programs, shape = lowering.hint, lowering.programs, lowering.shape
    needs_64_bits = _needs_64_bits(kernel)
    chosen_tilings = [
        tiling.choose(nest, hint, 1 if phase.is_alone else programs, shape)
        for phase in kernel.phases
        for nest in phase.nests
    ]
    tilings_left = iter(tiling.distribute_warps(chosen_tilings, programs))
    phases: list[list[_Function]] = []
    for number, phase in enumerate(kernel.phases):
        tilings = [next(tilings_left) for _ in phase.nests]
        names = [f"{kernel.name}_{number}_{position}" for position in range(len(phase.nests))]
        phases.append(list(_functions(names, phase, tilings, needs_64_bits)))
    functions = [function for phase in phases for function in phase]
    touched = {
        buffer for function in functions for buffers in function.buffers for buffer in buffers
    }
    lives = phase_lifetimes(kernel)
    scratch = [buffer for buffer in kernel.buffers if buffer in touched and buffer in lives]
    sizes = tuple(dict.fromkeys(name for function in functions for name in function.sizes))
    names = [buffer.name for buffer in (*kernel.parameters, *scratch)]
    if len(kernel.phases) > 1:
        names.append(SEMAPHORE)
    shared_phases = [printed for phase, printed in zip(kernel.phases, phases) if not phase.is_alone]
    text = HEAD.format(why=f"{kernel.name}, printed by Hemstitch.")
    text += (
        "\n\n".join([*map(_nest_text, functions), _main(kernel, phases, [*names, *sizes])]) + "\n"
    )
    return TritonProgram(
        text,
        kernel.name,
        kernel.parameters,
        tuple(map(_for_all, scratch)),
        tuple(lives[buffer] for buffer in scratch),
        tuple(symbol(name) for name in sizes),
        choice("max", [total(function.tiles for function in phase) for phase in shared_phases]),
        kernel.barriers,
        kernel.has_last_block,
        max(function.warps for function in functions),
        len(kernel.phases) == 1 and all(is_vectorisable(n) for n in kernel.phases[0].nests),
    )


def _needs_64_bits(kernel: Kernel) -> bool:
    """Of addresses, of the numbers of rows, or of positions, which may be of more elements than
    are in memory anywhere: 32 are not enough, or may not be."""
    nests = [nest for phase in kernel.phases for nest in phase.nests]
    largest_values = [buffer.size for buffer in kernel.parameters]
    largest_values += [product(axis.extent for axis in nest.rows) for nest in nests]
    largest_values += [largest(index) for nest in nests for index in _positions(nest)]
    return any(
        bool(symbols(size) - {str(THREADS)}) or (isinstance(size, int) and size > MOST_INT32)
        for size in largest_values
    )


def _positions(nest: Nest) -> Iterator[Index]:
    """Indices that are values."""
    for statement in walk(nest.body):
        match statement:
            case Position(index=index) | Accumulate(position=Index() as index):
                yield index


def _for_all(buffer: Buffer) -> Buffer:
    """A row buffer has one copy for each program."""
    if buffer.role is not Role.TASK:
        return buffer
    return replace(buffer, size=buffer.size * symbol("threads"))


def _functions(
    names: Sequence[str], phase: Phase, tilings: Sequence[Tiling], needs_64_bits: bool
) -> Iterator[_Function]:
    """The nests of one phase: their tiles are numbered one after the other."""

    def printed(number: int, shift: Dim, nests: Sequence[tuple[Buffer, ...]] = ()) -> _Function:
        nest, nest_tiling = phase.nests[number], tilings[number]
        scope = TritonScope(nest_tiling.rows, needs_64_bits)
        printer = TritonNestPrinter(nest, nest_tiling, shift, scope, phase.is_alone, nests)
        return _function(names[number], printer)

    # By its number, or what it has in common with others, each one's buffers.
    groups: dict[Hashable, tuple[int, list[tuple[Buffer, ...]]]] = {}
    for number, nest in enumerate(phase.nests):
        if len(phase.nests) == 1 or not is_mergeable(nest):
            groups[number] = (number, [])
            continue
        separate = printed(number, 0)
        groups.setdefault(separate.key, (number, []))[1].extend(separate.buffers)
    shift: Dim = 0
    for number, merged_buffers in groups.values():
        function = printed(number, shift, merged_buffers if len(merged_buffers) > 1 else ())
        shift = shift + function.tiles
        yield function


def _function(name: str, printer: TritonNestPrinter) -> _Function:
    """Rows that keep something in memory for later cannot share a tile: there is one copy."""
    nest, nest_tiling, scope = printer.nest, printer.tiling, printer.scope
    lines = printer.print()
    if printer.memory.in_memory and nest_tiling.k_tiles:
        names = ", ".join(sorted(f"{b.name} ({b.why})" for b in printer.memory.in_memory))
        raise KernelBuildError(f"matrix units take many rows at once, but one has all of {names}")
    if printer.memory.in_memory and nest_tiling.rows > 1:
        single = TritonScope(1, scope.needs_64_bits)
        return _function(name, replace(printer, tiling=replace(nest_tiling, rows=1), scope=single))
    buffers = tuple(buffer for buffer in scope.buffers if buffer not in printer.memory.dead)
    several = f"{len(printer.merged)} times " if printer.merged else ""
    why = f"{several}{nest.why}; tiles of {nest_tiling.rows} rows"
    return _Function(
        name,
        why,
        tuple(lines),
        tuple(printer.merged) or (buffers,),
        tuple(scope.sizes),
        printer.tiles,
        nest_tiling.warps,
    )


def _arguments(function: _Function) -> str:
    """Of a call: what all nests have in one place stands together."""
    names = [buffer.name for place in zip(*function.buffers) for buffer in place]
    return ", ".join(["program", "programs", *names, *function.sizes])


def _parameters(function: _Function) -> str:
    first, *rest = function.buffers
    if not rest:
        return _arguments(function)
    names = [n for b in first for n in parameters_of(b.name, len(function.buffers))]
    return ", ".join(["program", "programs", *names, *function.sizes])


def _nest_text(function: _Function) -> str:
    head = f"@triton.jit\ndef {function.name}({_parameters(function)}):"
    return "\n".join([head, f'    """{function.why}"""', *function.lines]) + "\n"


def _main(kernel: Kernel, phases: list[list[_Function]], arguments: list[str]) -> str:
    lines = [f"@triton.jit\ndef {kernel.name}({', '.join(arguments)}):"]
    lines += ["    program = tl.program_id(0)", "    programs = tl.num_programs(0)"]
    for phase, functions in zip(kernel.phases, phases):
        if phase is not kernel.phases[0]:
            lines.append(f"{_BEGIN[phase.begin]}  # {phase.why}")
        step = STEP * (2 if phase.is_alone else 1)
        lines += [f"{step}{function.name}({_arguments(function)})" for function in functions]
    return "\n".join(lines)
