"""A compiled graph that checks itself: every call also runs the graph as it was captured, op by op,
and raises at the first result that differs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hemstitch.errors import DifferenceError
from hemstitch.fusion.plan import Plan
from hemstitch.ir.graph import Graph, Output
from hemstitch.runtime.executable import Executable
from hemstitch.runtime.interpret import run
from hemstitch.runtime.returned import Result, Returned

# Largest relative error norms that reordered sums and unrounded intermediates explain.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}

TAIL = 6.0  # an element may be so many times as wrong as all of them are by the mean


class Verified:
    """Stands in for an `Executable`; calls cost a multiple of eager's time and memory."""

    def __init__(
        self,
        executable: Executable,
        graph: Graph,
        plan: Plan,
        returns: Sequence[Returned],
        constants: Sequence[torch.Tensor],
        device: torch.device,
    ) -> None:
        self._boxed_call = True
        self._executable = executable
        self._graph = graph
        self._plan = plan
        self._returns = returns
        self._constants = constants
        self._device = device

    def __call__(self, arguments: list[object]) -> tuple[object, ...]:
        copies = [_copy(argument) for argument in [*arguments, *self._constants]]
        held = list(arguments)
        gpus = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(gpus):  # the same seeds for both
            expected = run(self._graph, copies, device=self._device)  # type: ignore[arg-type]
        results = self._executable(arguments)
        for number, (output, value) in enumerate(zip(self._graph.outputs, expected)):
            found = self._found(number, output, results, held)
            if isinstance(found, torch.Tensor):
                self._compare(number, found, value)
        return results

    def _found(
        self, number: int, output: Output, results: Sequence[object], held: Sequence[object]
    ) -> object:
        if output.mutates is not None:
            return held[output.mutates.attr.position]  # type: ignore[union-attr]
        places = [k for k, r in enumerate(self._returns) if r == Result(number)]
        return results[places[0]] if places else None

    def _compare(self, number: int, found: torch.Tensor, expected: torch.Tensor) -> None:
        why = disagreement(found, expected)
        if why is None:
            return
        tensor = self._plan.outputs[number].tensor
        makers = [s.stitched.kernel.name for s in self._plan.kernels if tensor in s.writes]
        origin = self._graph.origins.get(self._graph.outputs[number].value)
        raise DifferenceError(
            f"result {number} of {', '.join(makers) or 'a library call'} ({origin or '?'}) differs "
            f"from eager: {why}"
        )


def disagreement(found: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Where two tensors differ by more than rounding. NaN equals NaN, infinities must be the same.

    An element may be off by `TOLERANCE * TAIL` of itself or of the tensor's root mean square,
    whichever is larger, all of them together by `TOLERANCE`, as norms. Whole numbers and
    conditions are equal.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype} {[*found.shape]} in place of {expected.dtype} {[*expected.shape]}"
    if not found.dtype.is_floating_point:
        return _worst(found, expected, (found != expected).double(), 0.0)
    ours, exact = found.double(), expected.double()
    finite = exact.isfinite()
    same = (ours == exact) | (ours.isnan() & exact.isnan())
    wrong = torch.where(same, 0.0, torch.inf).double()
    error = torch.where(finite & ours.isfinite(), (ours - exact).abs(), wrong)
    known = exact[finite]
    scale = float(known.square().mean().sqrt()) if known.numel() else 0.0
    bound = TOLERANCE[found.dtype] * TAIL * exact.abs().clamp_min(max(scale, 1e-6)).nan_to_num(1.0)
    worst = _worst(found, expected, error / bound, 1.0)
    if worst is not None:
        return worst
    by_norm = difference(found[finite], expected[finite])
    return f"{by_norm:.1e} by the norm" if by_norm > TOLERANCE[found.dtype] else None


def _worst(
    found: torch.Tensor, expected: torch.Tensor, excess: torch.Tensor, most: float
) -> str | None:
    """`excess`: of each element's error over what it may be."""
    if not excess.numel() or float(excess.max()) <= most:
        return None
    flat = int(excess.argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), found.shape))
    ours, theirs = (x.reshape(-1)[flat].item() for x in (found, expected))
    count, total = int((excess > most).sum()), excess.numel()
    return f"{count} of {total} elements, the worst at {place}: {ours} in place of {theirs}"


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """|found - expected| / |expected|, as norms, in float64."""
    error = (found.double() - expected.double()).norm()
    return float(error / expected.double().norm().clamp_min(1e-6))


def _copy(argument: object) -> object:
    return argument.clone() if isinstance(argument, torch.Tensor) else argument
