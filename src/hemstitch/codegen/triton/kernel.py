"""A whole kernel as the text of a Python module: a function for each nest, and one that runs them
phase by phase with barriers of the whole device between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hemstitch.codegen.triton import tiling
from hemstitch.codegen.triton.nest import NestPrinter
from hemstitch.codegen.triton.scope import Scope
from hemstitch.codegen.triton.tiling import Tiling
from hemstitch.ir.dims import Dim, choice, symbol, total
from hemstitch.kernel.nodes import Buffer, Kernel, Nest, Role

HEAD = '''"""{why}"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from hemstitch.runtime import device

'''
SEMAPHORE = "semaphore"  # counts arrivals at barriers; zero before a launch's first one
MOST_32_BIT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Program:
    """Source and what its caller must know. Arguments in order: `parameters`, `scratch` (elements
    in terms of "threads", the programs of the launch), a semaphore if there are barriers, `sizes`.

    `tiles`: how many programs have work in the largest phase; `programs` more than once around
    take the rest."""

    text: str
    entry: str
    parameters: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    sizes: tuple[Dim, ...]
    tiles: Dim
    barriers: int
    warps: int

    @property
    def is_contiguous(self) -> bool:
        """No phase gathers what programs left for each other, in narrow loads."""
        return not self.barriers


@dataclass(frozen=True, slots=True)
class _Function:
    """A printed nest."""

    name: str
    why: str
    lines: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    tiles: Dim
    warps: int


def print_kernel(kernel: Kernel, hint: Callable[[Dim], int], programs: int) -> Program:
    """`hint`: a likely value of a size; `programs`: so many run at once. Both for tiles."""
    is_wide = any(not isinstance(b.size, int) or b.size > MOST_32_BIT for b in kernel.parameters)
    phases: list[list[_Function]] = []
    for number, phase in enumerate(kernel.phases):
        tilings = [tiling.choose(nest, hint, programs) for nest in phase.nests]
        names = [f"{kernel.name}_{number}_{position}" for position in range(len(phase.nests))]
        phases.append(list(_functions(names, phase.nests, tilings, is_wide)))
    functions = [function for phase in phases for function in phase]
    touched = {buffer for function in functions for buffer in function.buffers}
    scratch = tuple(
        _for_all(b) for b in kernel.buffers if b in touched and b.role in (Role.SHARED, Role.TASK)
    )
    sizes = tuple(dict.fromkeys(name for function in functions for name in function.sizes))
    names = [buffer.name for buffer in (*kernel.parameters, *scratch)]
    if kernel.barriers:
        names.append(SEMAPHORE)
    text = HEAD.format(why=f"{kernel.name}, printed by Hemstitch.")
    text += (
        "\n\n".join([*map(_nest_text, functions), _main(kernel, phases, [*names, *sizes])]) + "\n"
    )
    return Program(
        text,
        kernel.name,
        kernel.parameters,
        scratch,
        tuple(symbol(name) for name in sizes),
        choice("max", [total(function.tiles for function in phase) for phase in phases]),
        kernel.barriers,
        max(function.warps for function in functions),
    )


def _for_all(buffer: Buffer) -> Buffer:
    """A row buffer has one copy for each program."""
    if buffer.role is not Role.TASK:
        return buffer
    return replace(buffer, size=buffer.size * symbol("threads"))


def _functions(
    names: Sequence[str], nests: Sequence[Nest], tilings: Sequence[Tiling], is_wide: bool
) -> Iterator[_Function]:
    """The nests of one phase: their tiles are numbered one after the other."""
    shift: Dim = 0
    for name, nest, chosen in zip(names, nests, tilings):
        function = _function(name, nest, chosen, shift, is_wide)
        shift = shift + function.tiles
        yield function


def _function(name: str, nest: Nest, chosen: Tiling, shift: Dim, is_wide: bool) -> _Function:
    """Rows that keep something in memory for later cannot share a tile: there is one copy."""
    scope = Scope(chosen.rows, is_wide)
    printer = NestPrinter(nest, chosen, shift, scope)
    lines = printer.print()
    if printer.memory.in_memory and chosen.rows > 1:
        return _function(name, nest, Tiling(1, chosen.lanes), shift, is_wide)
    buffers = [buffer for buffer in scope.buffers if buffer not in printer.memory.dead]
    why = f"{nest.why}; tiles of {chosen.rows} rows"
    return _Function(
        name, why, tuple(lines), tuple(buffers), tuple(scope.sizes), printer.tiles, chosen.warps
    )


def _arguments(function: _Function) -> str:
    return ", ".join(["program", "programs", *(b.name for b in function.buffers), *function.sizes])


def _nest_text(function: _Function) -> str:
    head = f"@triton.jit\ndef {function.name}({_arguments(function)}):"
    return "\n".join([head, f'    """{function.why}"""', *function.lines]) + "\n"


def _main(kernel: Kernel, phases: list[list[_Function]], arguments: list[str]) -> str:
    lines = [f"@triton.jit\ndef {kernel.name}({', '.join(arguments)}):"]
    lines += ["    program = tl.program_id(0)", "    programs = tl.num_programs(0)"]
    for phase, functions in zip(kernel.phases, phases):
        if phase is not kernel.phases[0]:
            lines.append(f"    device.grid_barrier({SEMAPHORE}, programs)  # {phase.why}")
        lines += [f"    {function.name}({_arguments(function)})" for function in functions]
    return "\n".join(lines)
