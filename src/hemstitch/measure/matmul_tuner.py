"""How the products of a kernel are cut, by the clock. Takes a step of a plan, gives a blocking.

In two stages, as EVT tunes (2024, section 5): all candidates for the largest product alone, then
the best of them, over blocks of more and fewer rows, for the kernel with all that is fused with it.
The winner is remembered on disk, by the kernel, the processor and the number of threads, and
is that of all ranks of a job.
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

from hemstitch.cache.records import recall, remember
from hemstitch.ir.graph import Node, Op
from hemstitch.kernel_ir.nodes import Contract, statements
from hemstitch.machine.probes import MatmulProbe
from hemstitch.matmul.lowering.blocking import USUAL, Blocking
from hemstitch.measure.ranks import agreed
from hemstitch.measure.timing import bare_product, seconds_of
from hemstitch.pipeline import CPU_LOWERING, run_stages
from hemstitch.planning.plan import KernelStep
from hemstitch.stitching.group import Group
from hemstitch.targets.cpu.description import CPULowering
from hemstitch.toolchain.jit import host_target, processor, threads_now
from hemstitch.workers.worker import Ended

ALONE = tuple(Blocking(columns=c, steps=s) for c, s in product((32, 48, 64), (256, 384, 512)))
ROWS = (32, 64, 128)
KEPT = 2  # of the candidates of the first stage
MOST_SECONDS = 20.0  # for a kernel
Clock = Callable[[KernelStep, int, Blocking], float]


class Tuner:
    """For the kernels of one plan. After Ctrl-C what was best so far is taken, and no other kernel
    is tuned; the plan is then built as ever."""

    def __init__(self, place: Path, clock: Clock = seconds_of, most: float = MOST_SECONDS) -> None:
        self.place = place
        self.clock = clock
        self.most = most
        self.is_stopped = False

    def blocking(self, step: KernelStep) -> Blocking:
        """The usual one for kernels without products, and for those that are cut already."""
        has_products = any(isinstance(s, Contract) for s in statements(step.stitched.kernel))
        if step.panels or not has_products:
            return USUAL
        key = _key(step)
        record = agreed(f"blocking {key}", partial(self._own, step, self.place / f"{key}.json"))
        return _read(record) or USUAL

    def _own(self, step: KernelStep, path: Path) -> dict[str, int]:
        """What this process, or an earlier one, chose."""
        return asdict(_read(recall(path)) or self._chosen(step, path))

    def _chosen(self, step: KernelStep, path: Path) -> Blocking:
        if self.is_stopped:
            return USUAL
        found = self._searched(step)
        if not self.is_stopped:
            remember(path, asdict(found))
        return found

    def _searched(self, step: KernelStep) -> Blocking:
        """The best that was met before time was up."""
        times: dict[Blocking, float] = {}
        end = monotonic() + self.most
        with suppress(_OutOfTime):
            for blocking in self._candidates(step, end):
                self._timed(times, step, blocking, end)
        return min(times, key=times.__getitem__, default=USUAL)

    def _candidates(self, step: KernelStep, end: float) -> Iterator[Blocking]:
        """Of the second stage, the usual one first."""
        yield USUAL
        alone: dict[Blocking, float] = {}
        largest = _largest_product(step)
        if largest is not None:
            for blocking in ALONE:
                self._timed(alone, largest, blocking, end)
        best = sorted(alone, key=alone.__getitem__)[:KEPT] or [USUAL]
        for blocking, rows in product(best, ROWS):
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
        except Ended:  # the compiler: this candidate is none
            times[blocking] = inf
        except KeyboardInterrupt:
            self.is_stopped = True
            raise _OutOfTime from None


class _OutOfTime(Exception):
    """No further candidate is looked at."""


def _largest_product(step: KernelStep) -> KernelStep | None:
    """Alone; of batches, one matrix. None where a size is known only to a call."""
    dots = [(group, node) for group in step.groups for node in group.members if node.op is Op.DOT]
    _, node = max(dots, key=lambda pair: _work(*pair))
    rows, columns = node.shape[-2:]
    steps = node.inputs[0].shape[-1]
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(steps, int)):
        return None
    dtype = node.inputs[0].type.dtype
    threads, lanes = threads_now(), host_target().lanes
    probe = MatmulProbe("kernel", dtype, rows, steps, columns, threads, lanes)
    return bare_product(probe)


def _work(group: Group, node: Node) -> int:
    return group.hint(node.type.size) * group.hint(node.inputs[0].shape[-1])


def _key(step: KernelStep) -> str:
    """Of all that the choice depends on."""
    kernel = replace(step.stitched.kernel, name="kernel")
    text = run_stages(CPU_LOWERING, kernel, CPULowering(host_target())).text
    hints: Sequence[object] = [sorted(group.hints.items()) for group in step.groups]
    facts = (processor(), threads_now(), hints, text)
    return sha256(repr(facts).encode()).hexdigest()[:32]


def _read(record: Any) -> Blocking | None:
    try:
        found = Blocking(**record)
    except TypeError:
        return None
    return found if all(type(size) is int and size > 0 for size in asdict(found).values()) else None
