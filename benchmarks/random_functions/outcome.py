"""What a call of a program leaves: results, where they lie, what arguments hold, gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.random_functions.program import Program, arguments_in

Function = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`layout`: of each result its type, shape and whether it has gradients; `places`: with which
    arguments and results it shares memory. `values` are named by what they are; `absent` names
    gradients that there are none of, for which they have zeros."""

    layout: list[tuple[torch.dtype, tuple[int, ...], bool]]
    strides: list[tuple[int, ...]]
    places: list[tuple[object, ...]]
    values: dict[str, Tensor]
    absent: frozenset[str]
    warned: list[str]


@dataclass(frozen=True, slots=True)
class Raised:
    kind: type[BaseException]
    message: str


def outcome(program: Program, function: Function, change: Any = None) -> Outcome | Raised:
    """`change`: what is done to floating memory first."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = _outcome(program, function, change)
        result.warned.extend(str(warning.message) for warning in caught)
        return result
    except Exception as error:
        return Raised(type(error), f"{error}"[:600])


def _outcome(program: Program, function: Function, change: Any) -> Outcome:
    memories = [memory.tensor() for memory in program.memories]
    if change is not None:
        memories = [change(memory) for memory in memories]
    leaves, arguments = _leaves(program, memories)
    with torch.set_grad_enabled(program.gradients), program.context():
        results = list(function(*arguments))
    written = arguments if program.asks_for_written else []
    is_asked = program.gradients and program.has_backward
    gradients = _gradients(results, written, leaves) if is_asked else []
    values = {f"result {place}": x.detach() for place, x in enumerate(results)}
    absent = frozenset(f"gradient {place}" for place, x in enumerate(gradients) if x is None)
    for place, (leaf, gradient) in enumerate(zip(leaves, gradients)):
        zeros = torch.zeros_like(leaf)
        values[f"gradient {place}"] = zeros if gradient is None else gradient
    held = _memories(program, arguments)
    values |= {f"argument memory {place}": x for place, x in enumerate(held)}
    layout = [(x.dtype, tuple(x.shape), x.requires_grad) for x in results]
    return Outcome(
        layout, [*map(_strides, results)], _places(arguments, results), values, absent, []
    )


def _leaves(program: Program, memories: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """With gradients, arguments are parts of what was computed, so that they can be written to; or
    leaves, where nothing is written."""
    if not program.gradients:
        return [], arguments_in(program.arguments, memories)
    if program.writes:
        leaves = [m.requires_grad_() for m in memories if m.is_floating_point()]
        bases = [m.clone() for m in memories]
        return leaves, arguments_in(program.arguments, bases)
    arguments: list[Tensor] = []
    for argument in program.arguments:
        if argument.same is not None:
            arguments.append(arguments[argument.same])
        else:
            x = argument.of(memories)
            arguments.append(x.requires_grad_() if x.is_floating_point() else x)
    leaves = [x for x in arguments if x.requires_grad]
    return list(dict.fromkeys(leaves)), arguments


def _gradients(
    results: Sequence[Tensor], written: Sequence[Tensor], leaves: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    trained = [x for x in results if x.requires_grad]
    if not trained or not leaves:
        return []
    unasked = [x for x in written if x.requires_grad]
    directions = [*map(_waves, trained), *map(torch.zeros_like, unasked)]
    return torch.autograd.grad(trained + unasked, leaves, directions, allow_unused=True)


def _waves(x: Tensor) -> Tensor:
    waves = torch.arange(x.numel(), dtype=torch.float64).cos() + 0.25
    return waves.view(x.shape).to(x.dtype)


def _memories(program: Program, arguments: Sequence[Tensor]) -> list[Tensor]:
    """All of it, with what lies between and behind the arguments."""
    held: dict[int, Tensor] = {}
    for described, x in zip(program.arguments, arguments):
        count = program.memories[described.memory].count
        held[described.memory] = x.detach().as_strided((count,), (1,), 0).clone()
    return [held[place] for place in sorted(held)]


def _strides(x: Tensor) -> tuple[int, ...]:
    """Those that say where elements are."""
    return tuple(s for n, s in zip(x.shape, x.stride()) if n > 1) if x.numel() else ()


def _places(arguments: Sequence[Tensor], results: Sequence[Tensor]) -> list[tuple[object, ...]]:
    memory = [x.untyped_storage().data_ptr() for x in (*arguments, *results)]
    count = len(arguments)
    return [
        (
            *(pointer == other for other in memory),
            x.storage_offset() if pointer in memory[:count] else 0,
        )
        for x, pointer in zip(results, memory[count:])
        if x.numel()
    ]
