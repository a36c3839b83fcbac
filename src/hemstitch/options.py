"""All options, and the only reader of the environment. Takes the arguments of `torch.compile`,
gives one checked `Options` record."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields

from hemstitch.errors import OptionError, near_match
from hemstitch.gpu_vendors import VENDORS

PREFIX = "HEMSTITCH_"
CHOICES: dict[str, tuple[str, ...]] = {
    "target": ("auto", "cpu", *VENDORS, "interpret"),
    "planner": ("auto", "conservative", "greedy", "beam", "ilp"),
}
SHARES = ("memory_budget",)  # numbers from 0 to 1
COUNTS = ("loss_every",)  # whole numbers from 0 on
Function = Callable[..., object]
Rewrites = tuple[tuple[Function, Function], ...]
EXCLUDING = {
    ("exact", "reassociate"): "reassociation is not exact",
    ("asynchronous", "cuda_graphs"): "a graph is recorded where all that it is among is compiled",
    ("freeze", "cuda_graphs"): "a replay would not see that a weight has changed",
}
# PyTorch's modes trade compile time for speed. Hemstitch accepts them and uses its defaults.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
SWITCH_WORDS = {
    **dict.fromkeys(("1", "true", "on", "yes"), True),
    **dict.fromkeys(("0", "false", "off", "no", ""), False),
}


@dataclass(frozen=True, slots=True)
class Options:
    """A value given in the call takes precedence over HEMSTITCH_<NAME>, which takes precedence over
    the default."""

    # auto: by the tensors' device. interpret: Triton kernels as for a GPU, run on CPU tensors by
    # the emulator of the source tree.
    target: str = "auto"
    # conservative: elementwise fusion, and a reduction only at a kernel's end. greedy: every legal
    # fusion, in the order of the bytes it saves. beam, ilp: a search on top of that. auto: greedy.
    planner: str = "auto"
    products: bool = True  # matmuls may be inlined into kernels, where that beats the library
    global_stitching: bool = True  # kernels may have grid-wide barriers and last-block reductions
    pack: bool = True  # independent kernels may share a launch
    recycle: bool = True  # large results reuse the memory of earlier ones that are dead
    # The share that forward may save for backward of the bytes that it would save; the rest is
    # recomputed. 0: as little as possible.
    memory_budget: float = 1.0
    # Training: the loss's value is computed in every n-th call only, and NaN in others; 0: never.
    # Gradients are the same.
    loss_every: int = 1
    # No rewrite that rounds differently from eager, or propagates infinities and NaN differently.
    exact: bool = False
    # Rewrites that hold for real numbers: they hold up to rounding, and assume finite values.
    reassociate: bool = False
    # In inference, weights and buffers are constant: their packing and constant folding happen
    # once.
    freeze: bool = False
    # Pairs of a pattern and its replacement, functions of ATen operations, for the traced graph; in
    # training for the joint graph.
    rewrites: Rewrites = ()
    # Time a few tile shapes on a GPU, single operations on a processor; the result is cached.
    tune: bool = False
    cache: bool = True  # plans and machine code are cached on disk for later processes
    asynchronous: bool = False  # calls run the traced graph until it is compiled
    cuda_graphs: bool = False  # calls of known sizes are recorded once and replayed
    verify: bool = False  # run eager beside every compiled call and compare
    strict: bool = False  # a failure inside Hemstitch raises rather than falls back
    check: bool = False  # check every intermediate form after every stage

    @property
    def inlines_matmuls(self) -> bool:
        """Whether planning looks for matmuls that kernels can inline."""
        return self.products and self.planner != "conservative"

    @staticmethod
    def parse(
        options: Mapping[str, object] | None = None,
        mode: str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> Options:
        """From the arguments of `torch.compile`; `environment` stands in for the process's."""
        if mode is not None and mode not in MODES:
            raise OptionError(
                f'there is no mode "{mode}"',
                hint=near_match(mode, MODES) or f"the modes are {', '.join(MODES)}",
            )
        values = _from_environment(os.environ if environment is None else environment)
        values.update(options or {})
        parsed = Options(**{name: _checked(name, value) for name, value in values.items()})  # type: ignore[arg-type]
        for (name, other), why in EXCLUDING.items():
            if getattr(parsed, name) and getattr(parsed, other):
                raise OptionError(
                    f'the options "{name}" and "{other}" exclude each other',
                    hint=f"leave one out: {why}",
                )
        return parsed

    def __str__(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in NAMES)


NAMES = tuple(field.name for field in fields(Options))
SWITCHES = tuple(name for name in NAMES if name not in (*CHOICES, *SHARES, *COUNTS, "rewrites"))


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in NAMES:
            values[name] = _read(name, variable, text)
        elif hint := near_match(name, NAMES):
            raise OptionError(f"there is no environment variable {variable}", hint=hint)
    return values


def _read(name: str, variable: str, text: str) -> object:
    if name in CHOICES:
        return text
    if name in (*SHARES, *COUNTS):
        with suppress(ValueError):
            return float(text) if name in SHARES else int(text)
        return text
    return _switch(variable, text)


def _switch(variable: str, text: str) -> bool:
    if text.lower() not in SWITCH_WORDS:
        raise OptionError(f'{variable} is a switch, not "{text}"', hint="set it to 1 or 0")
    return SWITCH_WORDS[text.lower()]


def _checked(name: str, value: object) -> object:
    if name not in NAMES:
        raise OptionError(
            f'there is no option "{name}"',
            hint=near_match(name, NAMES) or f"the options are {', '.join(NAMES)}",
        )
    if name in CHOICES and value not in CHOICES[name]:
        raise OptionError(
            f'option "{name}" cannot be {value!r}',
            hint=near_match(str(value), CHOICES[name])
            or f"it can be {', '.join(map(repr, CHOICES[name]))}",
        )
    if name == "rewrites":
        return _rewrites(value)
    hint = "it can be True or False"
    if name in CHOICES or (name in SWITCHES and isinstance(value, bool)):
        return value
    if name in SHARES:
        hint = "it can be a number from 0 to 1"
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
    if name in COUNTS:
        hint = "it can be a whole number from 0 on"
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    raise OptionError(f'option "{name}" cannot be {value!r}', hint=hint)


def _rewrites(value: object) -> Rewrites:
    message = 'option "rewrites" takes pairs of functions, a pattern and its replacement'
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise OptionError(message, hint=f"not {value!r}")
    for pair in value:
        match pair:
            case (pattern, replacement) if callable(pattern) and callable(replacement):
                counts = [len(inspect.signature(function).parameters) for function in pair]
            case _:
                raise OptionError(message, hint=f"not {pair!r}")
        if counts[0] != counts[1]:
            raise OptionError(
                f'option "rewrites": the pattern {pattern} takes {counts[0]} arguments, '
                f"its replacement {replacement} {counts[1]}",
                hint="both stand for the same tensors, in the same order",
            )
    return tuple(value)
