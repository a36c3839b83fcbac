"""Launches a Triton kernel on the device and says how long it takes; in the emulator the seconds
mean nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.device import CUDA, captured, event_clock, torch_device
from hemstitch.latency.architecture import ARCHITECTURES, HOPPER, Architecture
from testing.emulator import emulate

ROUNDS, LAUNCHES = 5, 4
PROCESSORS_EMULATED = 2


@dataclass(frozen=True, slots=True)
class Launcher:
    kind: str

    @property
    def is_real(self) -> bool:
        return self.kind == CUDA

    @property
    def device(self) -> str:
        return torch_device(self.kind)

    @property
    def processors(self) -> int:
        if not self.is_real:
            return PROCESSORS_EMULATED
        return int(torch.cuda.get_device_properties(0).multi_processor_count)

    @property
    def architecture(self) -> Architecture:
        """Its constants for what is not measured; those of Hopper for a GPU without a table."""
        if not self.is_real:
            return HOPPER
        major, minor = torch.cuda.get_device_capability()
        return ARCHITECTURES.get(f"sm_{major}{minor}", HOPPER)

    def choose(self, real: int, emulated: int) -> int:
        """A size for the device, and one that the emulator can do."""
        return real if self.is_real else emulated

    def launch(
        self,
        kernel: Any,
        programs: int,
        arguments: Mapping[str, object],
        *,
        warps: int = 4,
        cooperative: bool = False,
    ) -> None:
        if not self.is_real:
            emulate(kernel, programs, arguments)
            return
        options = {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": True}
        if cooperative:
            options["launch_cooperative_grid"] = True
        kernel[(programs,)](**arguments, **options)

    def seconds(
        self, kernel: Any, programs: int, arguments: Mapping[str, object], **options: Any
    ) -> float:
        """Of one launch, the device's time: the median of a few rounds of a CUDA graph."""

        def run() -> None:
            self.launch(kernel, programs, arguments, **options)

        return self.seconds_of(run)

    def seconds_of(self, run: Callable[[], object]) -> float:
        if not self.is_real:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        def several() -> None:
            for _ in range(LAUNCHES):
                run()

        graph = captured(several, ())

        def replay() -> None:
            graph()

        replay()
        return statistics.median(event_clock(replay) for _ in range(ROUNDS)) / LAUNCHES

    def per_step(
        self,
        kernel: Any,
        programs: int,
        arguments: Mapping[str, object],
        steps: int,
        **options: Any,
    ) -> float:
        """Seconds of one of its steps, from two launches of which one has twice as many.

        Raises ValueError where that one takes no longer: no constant may come of it."""
        few, many = (
            self.seconds(kernel, programs, {**arguments, "steps": count}, **options)
            for count in (steps, 2 * steps)
        )
        if self.is_real and many <= few:
            raise ValueError(f"{2 * steps} steps of {kernel.__name__} take no longer than {steps}")
        return max(many - few, 1e-12) / steps
