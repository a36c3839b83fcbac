"""What only a measurement can say of a GPU: microkernels, the constants that they give to the
latency evaluator, and how well its order of kernels is the measured one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from benchmarks.gpu import estimates, microkernels
from benchmarks.gpu.device import describe, event_clock
from benchmarks.gpu.launcher import Launcher
from benchmarks.gpu.phase import Phase
from benchmarks.gpu.worker import Job, Line
from hemstitch.latency.architecture import Fitted, to_json
from hemstitch.latency.opcodes import Wait
from hemstitch.machine.gpu_numbers import GPU

Values = dict[str, float]
MEBIBYTE = 1 << 20
LINE_WORDS = 32  # of 4 bytes in a line of the cache
FULL_PROGRAMS, FULL_WARPS = 8, 8  # programs of an SM and warps of each that fill it
FULL_BLOCK = FULL_WARPS * GPU.warp_threads
FOUR_EACH = 4 * FULL_BLOCK  # so that one address is computed for four accesses
L1_SPAN, L2_SPAN = 1 << 14, 1 << 21  # elements of 4 bytes that fit: 64 KiB and 8 MiB


# --- memory


def copy_bandwidth(launcher: Launcher) -> Values:
    """Bytes per second, read and written, by size."""
    values = {}
    for size in (4, 16, 64, 256, 1024, 4096) if launcher.is_real else (1,):
        count = launcher.choose(size * MEBIBYTE // 8, 4096)
        source = torch.zeros(count, device=launcher.device)
        target = torch.empty_like(source)
        seconds = launcher.seconds_of(lambda a=source, b=target: b.copy_(a))  # type: ignore[misc]
        values[f"copy of {size} MiB, PyTorch"] = 8 * count / seconds
        block = 2048
        arguments = {"source": source, "result": target, "count": count, "BLOCK": block}
        seconds = launcher.seconds(microkernels.copy, -(-count // block), arguments)
        values[f"copy of {size} MiB, Triton"] = 8 * count / seconds
    return values


def _cycle(launcher: Launcher, lines: int) -> torch.Tensor:
    """For each word of each line the same word of the line that follows in one random cycle."""
    order = torch.randperm(lines, device=launcher.device)
    following = torch.empty_like(order)
    following[order] = order.roll(-1)
    words = torch.arange(LINE_WORDS, device=launcher.device)
    return (following[:, None] * LINE_WORDS + words).to(torch.int32).flatten()


def memory_latency(launcher: Launcher) -> Values:
    """Cycles of a load that waits for the one before, by where it hits and how many wait."""
    values = {}
    spans = {"memory": 1 << 22, "L2": 1 << 16, "L1": 1 << 9}  # lines of 128 bytes
    for name, lines in spans.items():
        lines = launcher.choose(lines, 64)
        places = _cycle(launcher, lines)
        programs = [1]
        if name == "memory" and launcher.is_real:
            programs += [launcher.processors * times for times in (1, 4, 8, 16, 32)]
        for count in programs:
            starts = torch.randint(lines, (count, 1), device=launcher.device) * LINE_WORDS
            result = (starts + torch.arange(GPU.warp_threads, device=launcher.device)).to(
                torch.int32
            )
            arguments = {"places": places, "result": result.flatten(), "BLOCK": GPU.warp_threads}
            steps = launcher.choose(1000, 2)
            seconds = launcher.per_step(microkernels.chase, count, arguments, steps, warps=1)
            label = f"latency of {name}, {count} warps"
            values[label] = seconds * launcher.architecture.clock_hertz
    return values


def _load_seconds(launcher: Launcher, span: int, cache: str) -> tuple[float, int]:
    """Of a step of all programs, and the elements that they load in it."""
    programs = launcher.processors * launcher.choose(FULL_PROGRAMS, 1)
    span = launcher.choose(span, FOUR_EACH)
    arguments = {
        "source": torch.zeros(span, device=launcher.device),
        "result": torch.empty(programs * FOUR_EACH, device=launcher.device),
        "span": span,
        "BLOCK": FOUR_EACH,
        "CACHE": cache,
    }
    steps = launcher.choose(1024, 8)
    seconds = launcher.per_step(
        microkernels.load_rate, programs, arguments, steps, warps=FULL_WARPS
    )
    return seconds, programs * FOUR_EACH


def cache_bandwidth(launcher: Launcher) -> Values:
    """Bytes per second out of L2: `.cg` passes L1 by."""
    seconds, elements = _load_seconds(launcher, L2_SPAN, ".cg")
    return {"bytes per second out of L2": 4 * elements / seconds}


def access_rate(launcher: Launcher) -> Values:
    """Words of 32 bits per clock and SM that are loaded from L1, or stored."""
    seconds, elements = _load_seconds(launcher, L1_SPAN, "")
    rates = {"lanes of loads": _lanes(launcher, elements, seconds)}
    programs = launcher.processors * launcher.choose(FULL_PROGRAMS, 1)
    result = torch.empty(programs * 8 * FULL_BLOCK, device=launcher.device)
    seconds = launcher.per_step(
        *(microkernels.store_rate, programs, {"result": result, "BLOCK": FULL_BLOCK}),
        launcher.choose(2048, 8),
        warps=FULL_WARPS,
    )
    return rates | {"lanes of stores": _lanes(launcher, FULL_BLOCK * programs, seconds)}


def _lanes(launcher: Launcher, elements: int, seconds: float) -> float:
    clocks = seconds * launcher.architecture.clock_hertz
    return elements / (clocks * launcher.processors)


# --- arithmetic


def chains(launcher: Launcher) -> Values:
    """Cycles of a step that waits for the one before, in one warp, or four where they exchange."""
    cycles = {}
    for name, kernel, warps in (
        ("two multiplications and additions", microkernels.multiply_chain, 1),
        ("two exponentials", microkernels.exponential_chain, 1),
        ("sum of a warp", microkernels.sum_chain, 1),
        ("sum of four warps", microkernels.sum_chain, 4),
    ):
        block = warps * GPU.warp_threads
        arguments = {"result": torch.ones(block, device=launcher.device), "BLOCK": block}
        steps = launcher.choose(4000, 2)
        seconds = launcher.per_step(kernel, 1, arguments, steps, warps=warps)
        cycles[name] = seconds * launcher.architecture.clock_hertz
    return cycles


def special_rate(launcher: Launcher) -> Values:
    """Threads per clock and SM in the unit of special functions."""
    programs = launcher.processors * launcher.choose(FULL_PROGRAMS, 1)
    result = torch.ones(programs * FULL_BLOCK, device=launcher.device)
    arguments = {"result": result, "BLOCK": FULL_BLOCK}
    seconds = launcher.per_step(
        *(microkernels.exponential_chain, programs, arguments, launcher.choose(2000, 2)),
        warps=FULL_WARPS,
    )
    return {"lanes of exponentials": _lanes(launcher, 2 * FULL_BLOCK * programs, seconds)}


# --- waiting for others


def barriers(launcher: Launcher) -> Values:
    """Cycles of a block's barrier; seconds of one of all programs, by how many there are."""
    result = torch.empty(1, device=launcher.device)
    steps = launcher.choose(2000, 2)
    seconds = launcher.per_step(microkernels.block_barriers, 1, {"result": result}, steps)
    values = {"barrier of a block": seconds * launcher.architecture.clock_hertz}
    for share in (0.25, 0.5, 1, 2, 4, 8) if launcher.is_real else (1,):
        programs = int(launcher.processors * share)
        semaphore = torch.zeros(1, dtype=torch.int32, device=launcher.device)
        seconds = launcher.per_step(
            *(microkernels.grid_barriers, programs, {"semaphore": semaphore}),
            launcher.choose(200, 2),
            cooperative=True,
        )
        values[f"seconds of a device-wide barrier, {share} programs per SM"] = seconds
    return values


def launches(launcher: Launcher) -> Values:
    """Seconds of a launch that does nothing: from the host, and in a CUDA graph."""
    count = launcher.choose(200, 2)
    result = torch.empty(1, device=launcher.device)

    def run() -> None:
        for _ in range(count):
            launcher.launch(microkernels.nothing, 1, {"result": result}, warps=1)

    values = {"seconds of a launch in a CUDA graph": launcher.seconds_of(run) / count}
    run()
    if launcher.is_real:
        torch.cuda.synchronize()
        times = [event_clock(run) / count for _ in range(5)]
        values["seconds of a launch by Triton"] = statistics.median(times)

        def library() -> None:
            for _ in range(count):
                result.relu_()

        library()
        times = [event_clock(library) / count for _ in range(5)]
        values["seconds of a launch by PyTorch"] = statistics.median(times)
        values["seconds of PyTorch's in a CUDA graph"] = launcher.seconds_of(library) / count
    return values


def atomics(launcher: Launcher) -> Values:
    counters = torch.zeros(2, dtype=torch.int32, device=launcher.device)
    result = torch.zeros(1, dtype=torch.int32, device=launcher.device)
    arguments: dict[str, object] = {"counters": counters, "result": result}
    steps = launcher.choose(1000, 2)
    seconds = launcher.per_step(microkernels.atomic_chain, 1, arguments, steps, warps=1)
    values = {"cycles of an atomic": seconds * launcher.architecture.clock_hertz}
    programs = launcher.processors * launcher.choose(4, 1)
    sums = torch.zeros(programs * FULL_BLOCK, device=launcher.device)
    for name, spread in (("one row", 0), ("rows of their own", FULL_BLOCK)):
        arguments = {"counters": sums, "spread": spread, "BLOCK": FULL_BLOCK}
        seconds = launcher.per_step(microkernels.atomic_rate, programs, arguments, steps)
        values[f"additions per second to {name}"] = FULL_BLOCK * programs / seconds
    return values


MEASUREMENTS: Mapping[str, Callable[[Launcher], Values]] = {
    function.__name__: function
    for function in (
        *(copy_bandwidth, memory_latency, cache_bandwidth, access_rate, chains, special_rate),
        *(barriers, launches, atomics),
    )
}


# --- jobs


def jobs(kind: str, _: list[Line]) -> list[Job]:
    return [{"device": kind, "measurement": name} for name in MEASUREMENTS]


def compare(kind: str, lines: list[Line]) -> list[Job]:
    """The evaluator against times, with the constants just found."""
    fitted = fitted_from(Launcher(kind), lines)
    return estimates.jobs(kind, to_json(fitted))


PHASES = (Phase(jobs, job_seconds=60.0), Phase(compare, job_seconds=40.0))


def run(job: Job) -> Iterator[Line]:
    launcher = Launcher(job["device"])
    if "candidate" in job:
        yield estimates.line_of(launcher, job)
        return
    yield {**job, "values": MEASUREMENTS[job["measurement"]](launcher)}


# --- constants


def fitted_from(launcher: Launcher, lines: Sequence[Line]) -> Fitted:
    """The guesses, with all that was measured in their place. It names what was not."""
    values: Values = {}
    for line in lines:
        values |= line.get("values", {})
    architecture, guess = launcher.architecture, launcher.architecture.fitted
    latencies = _latencies(values)
    constants: Values = {}
    copies = [rate for name, rate in values.items() if name.startswith("copy of")]
    if copies:
        constants["copy_share"] = max(copies[-4:]) / architecture.memory_bytes_per_second
    for field, name in (
        ("special_lanes", "lanes of exponentials"),
        ("memory_lanes", "lanes of loads"),
        ("cache_bytes_per_second", "bytes per second out of L2"),
        ("barrier_seconds", "seconds of a device-wide barrier, 1 programs per SM"),
    ):
        if name in values:
            constants[field] = values[name]
    known = {*constants, *(wait.value for wait in latencies)}
    names = {*Fitted.__slots__, *(wait.value for wait in Wait)} - {"source", "latency_cycles"}
    about = describe(launcher.kind)
    device, driver, date = (about.get(key, "-") for key in ("device", "driver_version", "date"))
    source = f"{device}, driver {driver}, {date}"
    source += f"; guessed: {', '.join(sorted(names - known)) or 'nothing'}"
    merged = MappingProxyType({**guess.latency_cycles, **latencies})
    return replace(guess, source=source, latency_cycles=merged, **constants)


def _latencies(values: Values) -> dict[Wait, float]:
    """Of a step's cycles, less those of its other instructions."""
    latencies: dict[Wait, float] = {}

    def take(wait: Wait, name: str, less: float = 0.0, share: float = 1.0) -> None:
        if name in values:
            latencies[wait] = max(1.0, (values[name] - less) * share)

    take(Wait.FIXED, "two multiplications and additions", share=1 / 2)
    fixed = latencies.get(Wait.FIXED, 4.0)
    take(Wait.MEMORY, "latency of memory, 1 warps", 2 * fixed)
    take(Wait.ATOMIC, "cycles of an atomic", 2 * fixed)
    take(Wait.SPECIAL, "two exponentials", 2 * fixed, 1 / 2)
    take(Wait.SHUFFLE, "sum of a warp", 7 * fixed, 1 / 5)  # five shuffles, five sums, two more
    take(Wait.BARRIER, "barrier of a block")
    others = (
        7 * latencies.get(Wait.SHUFFLE, 25.0) + 9 * fixed + 2 * latencies.get(Wait.BARRIER, 30.0)
    )
    take(Wait.SHARED, "sum of four warps", others)  # two shuffles more, one store, one load
    return latencies


def files(kind: str, lines: Sequence[Line]) -> dict[str, str]:
    """The constants, as the latency evaluator reads them."""
    return {"fitted": to_json(fitted_from(Launcher(kind), lines))}
