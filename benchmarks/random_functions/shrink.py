"""Makes a program that differs from eager shorter, as long as it differs in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.random_functions.arguments import Argument
from benchmarks.random_functions.judge import Difference, difference, is_runnable
from benchmarks.random_functions.program import NAME, Line, Program


def shrunk(program: Program, seen: Difference, seconds: float) -> tuple[Program, Difference]:
    deadline = time.monotonic() + seconds
    is_shorter = True
    while is_shorter and time.monotonic() < deadline:
        is_shorter = False
        for shorter in _shorter(program):
            if time.monotonic() > deadline:
                break
            if not is_runnable(shorter):
                continue
            differs = difference(shorter)
            if differs is not None and not differs.is_pytorch and differs.kind == seen.kind:
                program, seen, is_shorter = shorter, differs, True
                break
    return program, seen


def _shorter(program: Program) -> Iterator[Program]:
    """With one thing less, what helps most first."""
    used = _used(program)
    if len(used) < len(program.lines):
        yield program.replaced(lines=used)
    if len(program.returned) > 1:
        for name in program.returned:
            yield program.replaced(returned=(name,))
            yield program.replaced(returned=tuple(x for x in program.returned if x != name))
    for setting in ("dynamic", "autocast", "gradients"):
        if getattr(program, setting):
            yield program.replaced(**{setting: False})
    for place in reversed(range(len(program.lines))):
        yield _without(program, place)
    for place, argument in enumerate(program.arguments):
        plain = _plain(argument)
        count = program.memories[argument.memory].count
        if plain != argument and (argument.same is not None or plain.end <= count):
            arguments = [*program.arguments]
            arguments[place] = plain
            yield program.replaced(arguments=tuple(arguments))


def _used(program: Program) -> tuple[Line, ...]:
    """Lines that results come from, and those that write."""
    wanted, kept = set(program.returned), []
    for line in reversed(program.lines):
        if line.target in wanted or line.writes:
            kept.append(line)
            wanted |= {name[0] for name in NAME.finditer(line.text)}
    return tuple(reversed(kept))


def _without(program: Program, place: int) -> Program:
    """The line's operand stands for its result."""
    left_out = program.lines[place]

    def renamed(text: str) -> str:
        return re.sub(rf"\b{left_out.target}\b", left_out.operand, text)

    lines = [
        replace(line, text=renamed(line.text), operand=renamed(line.operand))
        for line in program.lines
        if line is not left_out
    ]
    returned = tuple(dict.fromkeys(map(renamed, program.returned)))
    return program.replaced(lines=tuple(lines), returned=returned)


def _plain(argument: Argument) -> Argument:
    """Contiguous, from the first element."""
    strides, step = [], 1
    for n in reversed(argument.shape):
        strides.append(step)
        step *= max(n, 1)
    return Argument(argument.memory, argument.shape, tuple(reversed(strides)), 0)
