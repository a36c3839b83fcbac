"""Compares a compiled program with eager: what has no rounding is equal, NaN, infinities and signs
of zeros included; the rest is as near as eager is to float64, and to itself where each line's
operands and results are off by a rounding, or its loops and orders are others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.random_functions.otherwise import Otherwise
from benchmarks.random_functions.outcome import Outcome, Raised, outcome
from benchmarks.random_functions.program import Program

FALLBACKS = ("H007", "H008")
PYTORCHS = ("aot_eager", "aot_eager_decomp_partition")  # either may save what is written to later
CALLS = 2  # of what is compiled: the second one finds what the first one left
STRICT_ULPS, LOOSE_ULPS = 4.0, 16.0
OF_EAGER = 4.0  # times the distance of float64, or of a disturbed run, from eager
RUNS = 6  # disturbed
WAYS = 8  # of `Otherwise`
WIDE = (torch.float32, torch.bfloat16)  # in range, f16 is computed in f32
ULPS = 2  # by which operands and results of lines are disturbed


@dataclass(frozen=True, slots=True)
class Difference:
    """`is_pytorch`: `aot_eager` differs in the same way."""

    kind: str
    text: str
    is_pytorch: bool


def is_runnable(program: Program) -> bool:
    """Whether eager runs it, and gives the same when it is run again."""
    first, again = (outcome(program, program.function()) for _ in range(2))
    if isinstance(first, Raised) or isinstance(again, Raised):
        return False
    pairs = zip(first.values.values(), again.values.values())
    return all(not _apart(x, y, 0.0).any() for x, y in pairs)


def difference(program: Program, options: Any = None) -> Difference | None:
    """Of what is compiled, called twice; where sizes are symbols, and of other sizes then."""
    seen = _difference((program,) * CALLS, options)
    if seen is None and program.dynamic:
        later = program.with_other_sizes(Random(program.source))
        if later is not None and is_runnable(later):
            seen = _difference((program, later), options)
    return seen


def _difference(calls: Sequence[Program], options: Any) -> Difference | None:
    """Of the last call of them, all of which have one source."""
    program = calls[-1]
    reference = Reference(program)
    ours = _compiled(calls, "hemstitch", options)
    apart = reference.compared(ours)
    if apart is None:
        return None
    kinds = {kind for backend in PYTORCHS for kind in _kinds(calls, backend)}
    # What AOTAutograd refuses, or gets wrong, runs in eager, with a warning.
    is_pytorch = bool(kinds) if apart[0] == "falls back" else apart[0] in kinds
    return Difference(*apart, is_pytorch=is_pytorch or _is_of_zeros(program, apart[0], ours))


def _kinds(calls: Sequence[Program], backend: str) -> list[str]:
    """How the last call differs with a backend of PyTorch's, and how before its backward, if that
    raises."""
    seen = Reference(calls[-1]).compared(_compiled(calls, backend, None))
    if seen is None:
        return []
    is_whole = seen[0] != "raises" or not (calls[-1].gradients and calls[-1].has_backward)
    forward = [program.replaced(has_backward=False) for program in calls]
    return [seen[0], *([] if is_whole else _kinds(forward, backend))]


def _is_of_zeros(program: Program, kind: str, ours: Outcome | Raised) -> bool:
    """To AOTAutograd arguments that are written to are results, of which backward has gradients of
    zeros where nobody asks for any; and zero times infinity is NaN. `aot_eager` cannot tell: it
    raises where backward reads what was written to."""
    if kind != "gradient" or not program.writes:
        return False
    return Reference(program.replaced(asks_for_written=True)).compared(ours) is None


def _compiled(calls: Sequence[Program], backend: str, options: Any) -> Outcome | Raised:
    """The last one's outcome, with the warnings of all."""
    torch._dynamo.reset()
    function, dynamic = calls[0].function(), calls[0].dynamic
    compiled = torch.compile(function, backend=backend, dynamic=dynamic, options=options)
    seen = [outcome(program, compiled) for program in calls]
    outcomes = [x for x in seen if isinstance(x, Outcome)]
    if len(outcomes) < len(seen):
        return next(x for x in seen if isinstance(x, Raised))
    return replace(outcomes[-1], warned=[text for x in outcomes for text in x.warned])


class Reference:
    """Eager's outcome, and how far it is from others that are as right."""

    def __init__(self, program: Program) -> None:
        self.program = program
        eager = outcome(program, program.function())
        assert isinstance(eager, Outcome), f"eager does not run it: {eager}"
        self.eager = eager
        self.others: list[Outcome] | None = None
        self.exact: Outcome | None = None

    def compared(self, ours: Outcome | Raised) -> tuple[str, str] | None:
        if isinstance(ours, Raised):
            return "raises", f"{ours.kind.__name__}: {ours.message}"
        apart = self._apart(ours)
        fallbacks = [text for text in ours.warned if text.startswith(FALLBACKS)]
        if not fallbacks:
            return apart
        text = fallbacks[0][:1500]
        return ("falls back", text) if apart is None else (apart[0], f"{apart[1]}; {text}")

    def _apart(self, ours: Outcome) -> tuple[str, str] | None:
        for name in ("layout", "strides", "places"):
            mine, wanted = getattr(ours, name), getattr(self.eager, name)
            if mine != wanted:
                return name, f"{mine}, eager {wanted}"
        for name, wanted in self.eager.values.items():
            text = self._compared(name, ours.values[name], wanted)
            if text is not None:
                return name.rpartition(" ")[0], f"{name}: {text}"
        return None

    def _compared(self, name: str, mine: Tensor, wanted: Tensor) -> str | None:
        if name in self.eager.absent:
            mine = mine + 0.0  # AOTAutograd gives zeros, whose sign is nobody's
        elif self.program.writes and name.startswith("gradient"):
            # AOTAutograd writes to arguments by a copy, whose gradient is added: it has zeros too.
            mine, wanted = mine + 0.0, wanted + 0.0
        if not _apart(mine, wanted, STRICT_ULPS).any():
            return None
        apart = _apart(mine, wanted, LOOSE_ULPS, self._distance(name, wanted))
        apart &= ~self._is_unstable(name, mine, wanted) & ~self._is_overflow(name, mine, wanted)
        if not apart.any():
            return None
        place = tuple(apart.nonzero()[0].tolist())
        others = [x.values[name][place].item() for x in self._references()]
        exact = self.exact.values[name][place].item() if self.exact is not None else None
        return (
            f"{int(apart.sum())} of {apart.numel()}, at {place} {mine[place].item()}, eager "
            f"{wanted[place].item()}, float64 {exact}, disturbed {others}"
        )

    def _references(self) -> list[Outcome]:
        if self.others is None:
            with torch.random.fork_rng():
                runs = [_disturbed(self.program, seed) for seed in range(RUNS)]
                runs += [_otherwise(self.program, seed) for seed in range(WAYS)]
            self.others = [x for x in runs if isinstance(x, Outcome)]
            double = outcome(self.program, self.program.function(), _double)
            self.exact = double if isinstance(double, Outcome) else None
        return self.others

    def _distance(self, name: str, wanted: Tensor) -> Tensor:
        """Of finite numbers."""
        others = [x.values[name] for x in self._references()]
        others += [self.exact.values[name]] if self.exact is not None else []
        distance = torch.zeros(wanted.shape, dtype=torch.float64)
        for other in others:
            if other.shape == wanted.shape:
                between = (other.double() - wanted.double()).abs()
                distance = torch.maximum(distance, between.nan_to_num(0.0, 0.0, 0.0))
        return distance

    def _is_unstable(self, name: str, mine: Tensor, wanted: Tensor) -> Tensor:
        """Where a rounding, or an order, decides whether there is a number, and ours is of the
        other kind, or none where eager's runs have both an infinity and a zero; the sign of a zero,
        and ours is one; or what a whole number is."""
        unstable = torch.zeros(wanted.shape, dtype=torch.bool)
        others = [run.values[name] for run in self._references()]
        if not wanted.is_floating_point():
            return reduce(or_, (other != wanted for other in others), unstable)
        for other in others:
            unstable |= _is_of_other_kind(other, wanted) & ~_is_of_other_kind(other, mine)
            unstable |= _other_sign(other, wanted) & (mine == 0)
        runs = torch.stack([wanted, *others])
        unstable |= runs.isinf().any(0) & (runs == 0).any(0) & mine.isnan()
        if self.exact is not None:
            unstable |= _other_sign(self.exact.values[name], wanted) & (mine == 0)
        return unstable

    def _is_overflow(self, name: str, mine: Tensor, wanted: Tensor) -> Tensor:
        """Where float64 gives no number, or does, as we and not as eager: products of many, say,
        whose order decides what overflows. In f16 it must overflow where eager rounds to it."""
        if self.exact is None or wanted.dtype not in WIDE:
            return torch.zeros(wanted.shape, dtype=torch.bool)
        exact = self.exact.values[name]
        return _is_of_other_kind(exact, wanted) & ~_is_of_other_kind(exact, mine)


def _is_of_other_kind(x: Tensor, y: Tensor) -> Tensor:
    return (x.isnan() != y.isnan()) | (x.isfinite() != y.isfinite()) | x.isinf() & (x == -y)


def _other_sign(x: Tensor, y: Tensor) -> Tensor:
    """Where `y` is zero, and `x` zero or not."""
    return (y == 0) & ~x.isnan() & (x.signbit() != y.signbit())


def _apart(mine: Tensor, wanted: Tensor, ulps: float, distance: Tensor | None = None) -> Tensor:
    """Where they are not the same, or further from each other than roundings."""
    if not wanted.is_floating_point():
        return mine != wanted
    same = (mine == wanted) & (mine.signbit() == wanted.signbit()) | mine.isnan() & wanted.isnan()
    limits = torch.finfo(wanted.dtype)
    x, y = mine.double(), wanted.double()
    allowed = ulps * (limits.eps * y.abs() + limits.smallest_normal * limits.eps)
    if distance is not None:
        allowed = allowed + OF_EAGER * distance
    near = mine.isfinite() & wanted.isfinite() & ((x - y).abs() <= allowed)
    near &= ~((mine == 0) & (wanted == 0))
    return ~(same | near) if ulps else ~same


def _disturbed(program: Program, seed: int) -> Outcome | Raised:
    torch.manual_seed(seed)
    return outcome(program, program.by_lines(_noisy))


def _otherwise(program: Program, seed: int) -> Outcome | Raised:
    function = program.function()
    with Otherwise(seed):
        return outcome(program, function)


def _noisy(x: Tensor, signs: bool) -> Tensor:
    steps = torch.randint(-ULPS, ULPS + 1, x.shape).double()
    disturbed = x * (1 + steps * torch.finfo(x.dtype).eps).to(x.dtype)
    return (
        torch.where(x == 0, steps.sign() * x.abs(), disturbed).to(x.dtype) if signs else disturbed
    )


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x
