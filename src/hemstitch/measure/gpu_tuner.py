"""Which of a few candidates runs. Takes programs that compute the same, gives one: the best by the
estimate, or, with `tune`, by the clock among the best estimates. The winner is remembered on disk,
and is that of all ranks of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch
import triton
from torch.utils._python_dispatch import _disable_current_modes
from triton.testing import do_bench

from hemstitch.cache.records import recall, remember
from hemstitch.errors import HemstitchError
from hemstitch.latency.architecture import Architecture
from hemstitch.latency.evaluate import Estimate
from hemstitch.measure.gpu_estimate import bytes_of, estimate
from hemstitch.measure.ranks import agreed
from hemstitch.runtime.gpu.device import Device
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES
from hemstitch.targets.gpu.kernel import TritonProgram

# 7 us of an H200's memory: a smaller kernel is not worth seconds of compiling.
LEAST_BYTES = 1 << 25
MOST_TIMED = 3
CLEARLY = 0.9  # of the usual one's estimated time: what is nearer may be an error of the estimate
Launcher = Callable[[TritonProgram], Callable[..., object]]
Programs = Iterator[TritonProgram]  # that compute the same; the usual one first


@dataclass(frozen=True, slots=True)
class _Candidates:
    programs: tuple[TritonProgram, ...]
    sizes_of: Callable[[TritonProgram], tuple[int, ...]]
    extents: Sequence[int]
    device: Device


def best(
    programs: Programs,
    sizes_of: Callable[[TritonProgram], tuple[int, ...]],
    extents: Sequence[int],
    device: Device,
    tune: bool,
    launcher: Launcher,
    memory: Path,
) -> TritonProgram:
    """`sizes_of`: likely ones. `extents`: elements that each argument's memory holds. `launcher`
    gives what a clock is held to; `memory`: a folder."""
    usual, architecture = next(programs), device.architecture
    bytes_ = bytes_of(usual, sizes_of(usual))
    if bytes_ < LEAST_BYTES or architecture is None:
        return usual
    known = _Candidates((usual, *programs), sizes_of, extents, device)
    key = _key(known, tune)

    def own() -> int:
        """What this process, or an earlier one, chose."""
        path = memory / f"{key}.json"
        chosen = _recalled(path, len(known.programs))
        if chosen is None:
            estimates = _estimates(known, architecture, bytes_, tune)
            order = sorted(estimates, key=lambda number: estimates[number].rank)
            seconds = _timed(known, order[:MOST_TIMED], launcher) if tune else {}
            chosen = min(seconds, key=seconds.__getitem__, default=_clearly_best(order, estimates))
            remember(path, {"chosen": chosen, "seconds": {str(n): s for n, s in seconds.items()}})
        return chosen

    return known.programs[agreed(f"tiles {key}", own)]


def _estimates(
    known: _Candidates, architecture: Architecture, memory_bytes: int, all_of_them: bool
) -> dict[int, Estimate]:
    """By number; none for what does not compile. Each costs a second: only the first one's where no
    other can be clearly better, since all move the same bytes through the same barriers."""
    found: dict[int, Estimate] = {}
    for number, program in enumerate(known.programs):
        with suppress(HemstitchError):
            sizes = known.sizes_of(program)
            found[number] = estimate(program, sizes, memory_bytes, architecture)
        first = found.get(0)
        if not all_of_them and first is not None and _floor(first) >= CLEARLY * first.seconds:
            break
    return found


def _floor(estimate: Estimate) -> float:
    return estimate.memory_seconds + estimate.barrier_seconds


def _clearly_best(order: Sequence[int], estimates: dict[int, Estimate]) -> int:
    if not order or 0 not in estimates:
        return order[0] if order else 0
    is_clear = estimates[order[0]].seconds < CLEARLY * estimates[0].seconds
    return order[0] if is_clear else 0


def _timed(known: _Candidates, numbers: Sequence[int], launcher: Launcher) -> dict[int, float]:
    """Medians; nothing of what cannot be loaded, or where there is no room for the tensors."""
    seconds: dict[int, float] = {}
    # PyTorch compiles among fake tensors, which take no time.
    with suppress(torch.OutOfMemoryError), known.device.as_current(), _disable_current_modes():
        usual = known.programs[0]
        tensors = _tensors(usual, known.extents, known.device)
        for number in numbers:
            program = known.programs[number]
            launch = partial(launcher(program), *tensors, *known.sizes_of(program), 0)
            with suppress(HemstitchError):
                milliseconds = do_bench(launch, warmup=5, rep=20, return_mode="median")
                seconds[number] = float(milliseconds) / 1e3
    return seconds


def _tensors(program: TritonProgram, extents: Sequence[int], device: Device) -> list[torch.Tensor]:
    """Zeros: as indices they are in range."""
    found = []
    for buffer, count in zip(program.parameters, extents):
        words = -(-count * buffer.dtype.bytes // 4)
        found.append(device.zeros(words).view(TORCH_DTYPES[buffer.dtype])[:count])
    return found


def _key(known: _Candidates, tune: bool) -> str:
    """Of all that the choice depends on."""
    device = known.device
    facts = (device.name, device.target, triton.__version__, torch.__version__, tune)
    texts = [(each.text, each.warps, known.sizes_of(each)) for each in known.programs]
    return sha256(repr((facts, texts)).encode()).hexdigest()[:32]


def _recalled(path: Path, count: int) -> int | None:
    try:
        chosen = recall(path)["chosen"]
    except (KeyError, TypeError):
        return None
    return chosen if type(chosen) is int and 0 <= chosen < count else None
