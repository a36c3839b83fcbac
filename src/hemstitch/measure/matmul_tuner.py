"""Autotuning of a kernel's matmul blocking on the CPU. Takes a step of a plan, gives a blocking.

In two stages, as EVT tunes (2024, section 5): first all candidates for the largest matmul alone,
then the best of them, with several row block sizes, for the fused kernel. The choice is cached on
disk by kernel, processor and number of threads, and shared by all ranks of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from itertools import product
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from hemstitch.cache.records import load_record, store_record
from hemstitch.ir.graph import Node, Op
from hemstitch.kernel_ir.nodes import Contract, statements
from hemstitch.machine.probes import MatmulProbe
from hemstitch.matmul.lowering.blocking import USUAL, Blocking
from hemstitch.measure.ranks import agreed
from hemstitch.measure.timing import seconds_of, unfused_matmul
from hemstitch.pipeline import CPU_LOWERING, run_stages
from hemstitch.planning.plan import KernelStep
from hemstitch.stitching.group import Group
from hemstitch.targets.cpu.description import CPULowering
from hemstitch.toolchain.jit import host_target, processor, threads_now
from hemstitch.workers.worker import WorkerDied

UNFUSED = tuple(Blocking(columns=c, steps=s) for c, s in product((32, 48, 64), (256, 384, 512)))
ROW_BLOCKS = (32, 64, 128)
FINALISTS = 2  # candidates of the first stage that reach the second
MOST_SECONDS = 20.0  # for a kernel
Clock = Callable[[KernelStep, int, Blocking], float]


class Tuner:
    """For the kernels of one plan. After Ctrl-C the best candidate so far is taken, and no other
    kernel is tuned."""

    def __init__(self, place: Path, clock: Clock = seconds_of, most: float = MOST_SECONDS) -> None:
        self.place = place
        self.clock = clock
        self.most = most
        self.is_stopped = False

    def blocking(self, step: KernelStep) -> Blocking:
        """The default for kernels without matmuls, and for those whose panels fix the blocking."""
        has_matmuls = any(isinstance(s, Contract) for s in statements(step.stitched.kernel))
        if step.panels or not has_matmuls:
            return USUAL
        key = _key(step)
        record = agreed(
            f"blocking {key}", partial(self._cached_or_chosen, step, self.place / f"{key}.json")
        )
        return _read(record) or USUAL

    def _cached_or_chosen(self, step: KernelStep, path: Path) -> dict[str, int]:
        """The cached choice, or a new one."""
        return asdict(_read(load_record(path)) or self._chosen(step, path))

    def _chosen(self, step: KernelStep, path: Path) -> Blocking:
        if self.is_stopped:
            return USUAL
        blocking = self._searched(step)
        if not self.is_stopped:
            store_record(path, asdict(blocking))
        return blocking

    def _searched(self, step: KernelStep) -> Blocking:
        """The best candidate within the time limit."""
        times: dict[Blocking, float] = {}
        end = monotonic() + self.most
        with suppress(_OutOfTime):
            for blocking in self._candidates(step, end):
                self._timed(times, step, blocking, end)
        return min(times, key=times.__getitem__, default=USUAL)

    def _candidates(self, step: KernelStep, end: float) -> Iterator[Blocking]:
        """The candidates of the second stage, the default first."""
        yield USUAL
        unfused: dict[Blocking, float] = {}
        largest = _largest_matmul(step)
        if largest is not None:
            for blocking in UNFUSED:
                self._timed(unfused, largest, blocking, end)
        best = sorted(unfused, key=unfused.__getitem__)[:FINALISTS] or [USUAL]
        for blocking, rows in product(best, ROW_BLOCKS):
            yield replace(blocking, rows=rows)

    def _timed(
        self, times: dict[Blocking, float], step: KernelStep, blocking: Blocking, end: float
    ) -> None:
        if monotonic() > end:
            raise _OutOfTime
        if blocking in times:
            return
        try:
            times[blocking] = self.clock(step, threads_now(), blocking)
        except WorkerDied:  # of the compiler: the candidate is dropped
            times[blocking] = inf
        except KeyboardInterrupt:
            self.is_stopped = True
            raise _OutOfTime from None


class _OutOfTime(Exception):
    """No further candidate is timed."""


def _largest_matmul(step: KernelStep) -> KernelStep | None:
    """As a kernel without fusion; of a batch, one matrix. None for symbolic sizes."""
    dots = [(group, node) for group in step.groups for node in group.members if node.op is Op.DOT]
    _, node = max(dots, key=lambda pair: _work(*pair))
    rows, columns = node.shape[-2:]
    steps = node.inputs[0].shape[-1]
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(steps, int)):
        return None
    dtype = node.inputs[0].type.dtype
    threads, lanes = threads_now(), host_target().lanes
    probe = MatmulProbe("kernel", dtype, rows, steps, columns, threads, lanes)
    return unfused_matmul(probe)


def _work(group: Group, node: Node) -> int:
    return group.hint(node.type.size) * group.hint(node.inputs[0].shape[-1])


def _key(step: KernelStep) -> str:
    """A digest of all that the choice depends on."""
    kernel = replace(step.stitched.kernel, name="kernel")
    text = run_stages(CPU_LOWERING, kernel, CPULowering(host_target())).text
    hints: Sequence[object] = [sorted(group.hints.items()) for group in step.groups]
    facts = (processor(), threads_now(), hints, text)
    return sha256(repr(facts).encode()).hexdigest()[:32]


def _read(record: Any) -> Blocking | None:
    try:
        blocking = Blocking(**record)
    except TypeError:
        return None
    return (
        blocking
        if all(type(size) is int and size > 0 for size in asdict(blocking).values())
        else None
    )
