"""A random program: lines of Python, the arguments that it is called with, and how."""

from __future__ import annotations

import contextlib
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.random_functions.arguments import Argument, Memory, resized

NAME = re.compile(r"\b([av])(\d+)\b")


def namespace() -> dict[str, Any]:
    return {"torch": torch, "F": F}


@dataclass(frozen=True, slots=True)
class Line:
    """`operand`: the value that takes its place where it is left out. `rounds`, `adds`: see
    `Family`.
    `is_assigned`: `text` is a statement that writes to the operand."""

    target: str
    text: str
    operand: str
    rounds: bool
    adds: bool
    is_assigned: bool

    @property
    def writes(self) -> bool:
        return self.is_assigned or "_(" in self.text or "inplace" in self.text

    @property
    def statement(self) -> str:
        if self.is_assigned:
            return f"{self.text}; {self.target} = {self.operand}"
        return f"{self.target} = {self.text}"


@dataclass(frozen=True, slots=True)
class Program:
    """`asks_for_written`: gradients of zeros come in for the arguments, too. `has_backward`: it is
    asked for gradients, where it has any."""

    memories: tuple[Memory, ...]
    arguments: tuple[Argument, ...]
    lines: tuple[Line, ...]
    returned: tuple[str, ...]
    gradients: bool
    dynamic: bool
    autocast: bool
    asks_for_written: bool = False
    has_backward: bool = True

    @property
    def parameters(self) -> list[str]:
        return [f"a{place}" for place in range(len(self.arguments))]

    def replaced(self, **changes: Any) -> Program:
        return replace(self, **changes)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.autocast)

    def tensors(self) -> list[Tensor]:
        return arguments_in(self.arguments, [memory.tensor() for memory in self.memories])

    def with_other_sizes(self, random: Random) -> Program | None:
        """None where arguments share memory."""
        other = resized(random, self.memories, self.arguments)
        if other is None:
            return None
        return self.replaced(memories=tuple(other[0]), arguments=tuple(other[1]))

    @property
    def settings(self) -> tuple[bool, ...]:
        return self.gradients, self.dynamic, self.autocast

    @property
    def writes(self) -> bool:
        """Whether values may be written to, arguments among them."""
        return any(line.writes for line in self.lines)

    @property
    def source(self) -> str:
        lines = [f"def program({', '.join(self.parameters)}):"]
        lines += [f"    {line.statement}" for line in self.lines]
        return "\n".join([*lines, f"    return [{', '.join(self.returned)}]", ""])

    def function(self) -> Callable[..., list[Tensor]]:
        """A new one each time, so that no compiled code is used again."""
        source = self.source
        name = f"<random program {hash(source)}>"
        linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
        scope = namespace()
        exec(compile(source, name, "exec"), scope)
        function: Callable[..., list[Tensor]] = scope["program"]
        return function

    def by_lines(self, disturb: Callable[[Tensor, bool], Tensor]) -> Callable[..., list[Tensor]]:
        """The same function, in which operands and results of what is rounded are disturbed;
        signs of their zeros too where that is asked for."""

        def disturbed(value: Any, signs: bool = False) -> Any:
            is_rounded = isinstance(value, Tensor) and value.is_floating_point()
            return disturb(value, signs) if is_rounded else value

        def disturb_memory(value: Any) -> None:
            # An element that has several places, eager would not have written to.
            if isinstance(value, Tensor) and torch._debug_has_internal_overlap(value) != 1:
                value.data.copy_(disturbed(value.data))

        def function(*arguments: Tensor) -> list[Tensor]:
            values: dict[str, Any] = namespace() | dict(zip(self.parameters, arguments))
            for line in self.lines:
                if line.rounds and not line.writes:
                    scope = {
                        name: disturbed(value) if re.search(rf"\b{name}\b", line.text) else value
                        for name, value in values.items()
                    }
                    exec(line.statement, scope)
                    values[line.target] = disturbed(scope[line.target], line.adds)
                else:
                    if line.rounds:
                        disturb_memory(values[line.operand])
                    exec(line.statement, values)
                    if line.rounds:
                        disturb_memory(values[line.target])
            return [values[name] for name in self.returned]

        return function


def combined(programs: Sequence[Program]) -> Program:
    """All of them as one; their settings are the same."""
    memories: list[Memory] = []
    arguments: list[Argument] = []
    lines: list[Line] = []
    returned: list[str] = []
    for program in programs:
        first = {"a": len(arguments), "v": len(lines)}
        renamed = partial(_renamed, first)
        lines += [
            replace(
                line,
                target=renamed(line.target),
                text=renamed(line.text),
                operand=renamed(line.operand),
            )
            for line in program.lines
        ]
        returned += map(renamed, program.returned)
        arguments += [
            replace(
                argument,
                memory=argument.memory + len(memories),
                same=None if argument.same is None else argument.same + first["a"],
            )
            for argument in program.arguments
        ]
        memories += program.memories
    return programs[0].replaced(
        memories=tuple(memories),
        arguments=tuple(arguments),
        lines=tuple(lines),
        returned=tuple(returned),
    )


def _renamed(first: Mapping[str, int], text: str) -> str:
    return NAME.sub(lambda name: f"{name[1]}{int(name[2]) + first[name[1]]}", text)


def arguments_in(arguments: Sequence[Argument], memories: Sequence[Tensor]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for argument in arguments:
        same = argument.same
        tensors.append(argument.of(memories) if same is None else tensors[same])
    return tensors


def described(program: Program) -> str:
    """As a script of its own."""
    lines = ["import torch", "import torch.nn.functional as F", "from math import inf, nan", ""]
    lines += [program.source]
    for place, memory in enumerate(program.memories):
        values = memory.tensor().tolist()
        lines.append(f"m{place} = torch.tensor({values}, dtype={memory.dtype})")
    for name, argument in zip(program.parameters, program.arguments):
        strided = f"{argument.shape}, {argument.strides}, {argument.offset}"
        text = f"m{argument.memory}.as_strided({strided})"
        lines.append(f"{name} = {text if argument.same is None else f'a{argument.same}'}")
    settings: Mapping[str, bool] = {
        name: getattr(program, name) for name in ("gradients", "dynamic", "autocast")
    }
    return "\n".join([*lines, f"# {settings}"])
