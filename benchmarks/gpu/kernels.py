"""Where a call's time goes on the device, kernel by kernel: a transformer block, forward and
backward in a CUDA graph, by Inductor and by Hemstitch. For what `speed` cannot show: one of many
kernels that is slow."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import torch
from torch._C._autograd import DeviceType

from benchmarks.block import HALF, Block
from benchmarks.gpu import device
from benchmarks.gpu.phase import Phase
from benchmarks.gpu.speed import CONTENDERS, OURS
from benchmarks.gpu.worker import READY, Job, Line
from benchmarks.timing import Function, paired

WIDTH, HEADS, DROPOUT = 768, 12, 0.1
SHAPES = ((8, 512), (64, 128))  # batch, sequence
REPLAYS, ROUNDS = 11, 15

Event = tuple[float, str, float]  # start, name, microseconds


def jobs(kind: str, _: list[Line]) -> list[Job]:
    """None in the emulator, whose times say nothing."""
    if kind == device.INTERPRET:
        return []
    return [
        {"device": kind, "case": "transformer block", "batch": batch, "sequence": sequence}
        | {"contender": name}
        for batch, sequence in SHAPES
        for name in ("inductor", OURS)
    ]


PHASES = (Phase(jobs, job_seconds=120.0, in_turns=True),)


def run(job: Job) -> Iterator[Line]:
    replay = device.captured(_training(job), ())
    yield {READY: True}
    timing = paired({"replay": replay}, [()], ROUNDS, device.event_clock)["replay"]
    kernels = in_order(_events(replay), REPLAYS)
    yield {
        **job,
        "microseconds": round(timing.median * 1e6, 1),
        "spread": round(timing.spread, 3),
        "kernels": [[name, round(taken, 1)] for name, taken in kernels],
    }
    torch._dynamo.reset()


def _training(job: Job) -> Callable[[], object]:
    torch.manual_seed(0)
    shape = (job["batch"], job["sequence"], WIDTH)
    with torch.device(device.torch_device(job["device"])):
        block = Block(WIDTH, HEADS, DROPOUT)
        x, gradient = (torch.randn(shape, dtype=HALF) for _ in range(2))
    function = torch.compile(block, dynamic=False, **CONTENDERS[job["device"]][job["contender"]])
    inputs = [x.requires_grad_(), *block.parameters()]
    return lambda: torch.autograd.grad(function(x), inputs, gradient)


def _events(replay: Function) -> list[Event]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(REPLAYS):
            replay()
        torch.cuda.synchronize()
    return [
        (event.time_range.start, event.name, event.time_range.elapsed_us())
        for event in profile.events()
        if event.device_type == DeviceType.CUDA
    ]


def in_order(events: Sequence[Event], replays: int) -> list[tuple[str, float]]:
    """The kernels of one replay as they begin, with the medians of what each took."""
    count, rest = divmod(len(events), replays)
    if rest:
        raise ValueError(f"{len(events)} events do not make {replays} equal replays")
    ordered = sorted(events)
    turns = [ordered[place::count] for place in range(count)]
    return [(turn[0][1], statistics.median(taken for *_, taken in turn)) for turn in turns]
