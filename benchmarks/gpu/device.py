"""What GPU and emulator differ in: the clock, CUDA graphs, how Hemstitch is asked for, what is on
the machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import testing.interpret_target  # noqa: F401  registers the emulator
from benchmarks import machine
from benchmarks.timing import Function, host_clock
from hemstitch.options import NAMES

CUDA, INTERPRET = "cuda", "interpret"
KINDS = (CUDA, INTERPRET)
WARM_UP_BEFORE_CAPTURE = 3
CUDA_HOME = Path("/usr/local/cuda")


def torch_device(kind: str) -> str:
    return "cuda" if kind == CUDA else "cpu"


def event_clock(run: Callable[[], None]) -> float:
    """Seconds from the device's first work to its last."""
    start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()  # what was begun before is none of it
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def clock_of(kind: str) -> Callable[[Callable[[], None]], float]:
    return event_clock if kind == CUDA else host_clock


def captured(function: Function, arguments: tuple[Any, ...]) -> Function:
    """The call on these arguments as a CUDA graph, to be called with any."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_BEFORE_CAPTURE):
            function(*arguments)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = function(*arguments)

    def replay(*_: object) -> object:
        graph.replay()
        return held

    return replay


def options(kind: str, **more: object) -> dict[str, object]:
    """Of Hemstitch. A failure is a result here, so it must not be hidden by a fallback."""
    if kind == INTERPRET:
        return {"strict": True, "target": "interpret", "check": True, **more}
    graphs = {"cuda_graphs": False} if has_option("cuda_graphs") else {}  # asked for where wanted
    return {"strict": True, **graphs, **more}


def has_option(name: str) -> bool:
    return name in NAMES


def program(name: str) -> str | None:
    """Where a program of the CUDA toolkit is."""
    places = [CUDA_HOME / "bin" / name, CUDA_HOME / "compute-sanitizer" / name]
    return shutil.which(name) or next((str(place) for place in places if place.exists()), None)


def l2_bytes(kind: str) -> int:
    if kind == INTERPRET:
        return machine.cache_bytes(2)
    return int(torch.cuda.get_device_properties(0).L2_cache_size)


def describe(kind: str) -> dict[str, object]:
    """The machine with its device and driver."""
    found = {**machine.describe(), "device": kind, "triton": machine.version_of("triton")}
    if kind == INTERPRET:
        return found
    properties = torch.cuda.get_device_properties(0)
    return found | {
        "device": properties.name,
        "capability": f"sm_{properties.major}{properties.minor}",
        "SMs": properties.multi_processor_count,
        "device bytes": properties.total_memory,
        "L2 bytes of the device": properties.L2_cache_size,
        "CUDA": torch.version.cuda,
        **_driver(),
        "jax": machine.version_of("jax"),
    }


def _driver() -> dict[str, str]:
    names = ["driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit"]
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader", "-i", "0"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {"driver_version": "unknown"}
    return dict(zip(names, (part.strip() for part in told.split(","))))
