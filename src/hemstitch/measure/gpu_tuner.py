"""Autotuning of GPU kernels. Takes equivalent programs, gives the best one by the estimate or, with
`tune`, the fastest of the best estimates. The choice is cached on disk and shared by all ranks of a
job.
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

from hemstitch.cache.records import load_record, store_record
from hemstitch.errors import HemstitchError
from hemstitch.latency.architecture import Architecture
from hemstitch.latency.evaluate import Estimate
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.measure.gpu_estimate import bytes_of, estimate
from hemstitch.measure.ranks import agreed
from hemstitch.runtime.gpu.device import Device
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES
from hemstitch.targets.gpu.kernel import TritonProgram

MOST_TIMED = 3
CLEARLY = 0.9  # of the default's estimated time: smaller gains may be errors of the estimate
Launcher = Callable[[TritonProgram], Callable[..., object]]
Programs = Iterator[TritonProgram]  # equivalent ones; the default first


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
    cache_folder: Path,
) -> TritonProgram:
    """`sizes_of`: likely sizes. `extents`: elements of each argument's memory. `launcher` builds
    the launch that is timed; `cache_folder`: of the choices."""
    default, architecture = next(programs), device.architecture
    bytes_ = bytes_of(default, sizes_of(default))
    if bytes_ < GPU.tuned_bytes or architecture is None:
        return default
    candidates = _Candidates((default, *programs), sizes_of, extents, device)
    key = _key(candidates, tune)

    def choose() -> int:
        """The cached choice, or a new one."""
        path = cache_folder / f"{key}.json"
        chosen = _cached_choice(path, len(candidates.programs))
        if chosen is None:
            estimates = _estimates(candidates, architecture, bytes_, tune)
            order = sorted(estimates, key=lambda number: estimates[number].rank)
            seconds = _timed(candidates, order[:MOST_TIMED], launcher) if tune else {}
            chosen = min(seconds, key=seconds.__getitem__, default=_clearly_best(order, estimates))
            store_record(
                path, {"chosen": chosen, "seconds": {str(n): s for n, s in seconds.items()}}
            )
        return chosen

    return candidates.programs[agreed(f"tiles {key}", choose)]


def _estimates(
    candidates: _Candidates, architecture: Architecture, memory_bytes: int, all_of_them: bool
) -> dict[int, Estimate]:
    """By number; without candidates that do not compile. An estimate costs a second. All candidates
    move the same bytes and have the same barriers: if those take nearly all of the first one's
    time, no other can be clearly better."""
    estimates: dict[int, Estimate] = {}
    for number, program in enumerate(candidates.programs):
        with suppress(HemstitchError):
            sizes = candidates.sizes_of(program)
            estimates[number] = estimate(program, sizes, memory_bytes, architecture)
        first = estimates.get(0)
        if not all_of_them and first is not None and _floor(first) >= CLEARLY * first.seconds:
            break
    return estimates


def _floor(estimate: Estimate) -> float:
    return estimate.memory_seconds + estimate.barrier_seconds


def _clearly_best(order: Sequence[int], estimates: dict[int, Estimate]) -> int:
    if not order or 0 not in estimates:
        return order[0] if order else 0
    is_clear = estimates[order[0]].seconds < CLEARLY * estimates[0].seconds
    return order[0] if is_clear else 0


def _timed(candidates: _Candidates, numbers: Sequence[int], launcher: Launcher) -> dict[int, float]:
    """Median times; without candidates that cannot be loaded or whose tensors do not fit."""
    seconds: dict[int, float] = {}
    # PyTorch compiles with fake tensors, which cannot be timed.
    with suppress(torch.OutOfMemoryError), candidates.device.as_current(), _disable_current_modes():
        default = candidates.programs[0]
        tensors = _tensors(default, candidates.extents, candidates.device)
        for number in numbers:
            program = candidates.programs[number]
            launch = partial(launcher(program), *tensors, *candidates.sizes_of(program), 0)
            with suppress(HemstitchError):
                milliseconds = do_bench(launch, warmup=5, rep=20, return_mode="median")
                seconds[number] = float(milliseconds) / 1e3
    return seconds


def _tensors(program: TritonProgram, extents: Sequence[int], device: Device) -> list[torch.Tensor]:
    """Zeros, which are in range as indices too."""
    tensors = []
    for buffer, count in zip(program.parameters, extents):
        count_i32 = -(-count * buffer.dtype.bytes // 4)
        tensors.append(device.zeros(count_i32).view(TORCH_DTYPES[buffer.dtype])[:count])
    return tensors


def _key(candidates: _Candidates, tune: bool) -> str:
    """A digest of all that the choice depends on."""
    device = candidates.device
    facts = (device.name, device.target, triton.__version__, torch.__version__, tune)
    texts = [
        (program.text, program.warps, candidates.sizes_of(program))
        for program in candidates.programs
    ]
    return sha256(repr((facts, texts)).encode()).hexdigest()[:32]


def _cached_choice(path: Path, count: int) -> int | None:
    try:
        chosen = load_record(path)["chosen"]
    except (KeyError, TypeError):
        return None
    return chosen if type(chosen) is int and 0 <= chosen < count else None
