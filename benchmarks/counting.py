"""What a program launches on a GPU that is not there, by Hemstitch and by Inductor: what the
commands that count have in common. Everything is traced with fake tensors on an H200."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from benchmarks import stand_in
from benchmarks.inductor_kernels import Generated, generated
from benchmarks.machine import version_of
from hemstitch.report.explain import Report, explain

MEGABYTE = 1e6
NAMES = ("inductor", "hemstitch")
Made = tuple[Callable[..., Any], Sequence[Any]]  # a function and its arguments


@dataclass(frozen=True, slots=True)
class Program:
    """`make` gives the function and its arguments; called where tensors are fake."""

    name: str
    make: Callable[[], Made]
    backward: bool = False

    def made(self) -> Made:
        with torch.device("cuda"):
            return self.make()


def learn(value: object) -> None:
    """Ask for gradients of all floating-point tensors."""
    for tensor in tree_leaves(value):
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            tensor.requires_grad_()


def fake(program: Program) -> FakeTensorMode:
    """To count a program in; gradients are traced where it has a backward pass."""
    torch.set_grad_enabled(program.backward)
    return FakeTensorMode(allow_non_fake_inputs=True)


def ours(program: Program) -> Report:
    with fake(program):
        function, arguments = program.made()
        return explain(function, *arguments, backward=program.backward, options={"strict": True})


def theirs(program: Program) -> Generated:
    with fake(program):
        return generated(*program.made())


def line(counted: Report | Generated) -> dict[str, Any]:
    return {
        "kernels": len(counted.kernels),
        "library_calls": len(counted.library_calls),
        "calls": sorted(set(counted.library_calls)),
        "bytes_read": counted.bytes_read,
        "bytes_written": counted.bytes_written,
    }


def launches(counts: dict[str, Any]) -> int:
    return int(counts["kernels"] + counts["library_calls"])


def moved(counts: dict[str, Any]) -> int:
    return int(counts["bytes_read"] + counts["bytes_written"])


def pretend() -> None:
    """Once a process, which the stand-in was loaded into."""
    stand_in.pretend()
    warnings.simplefilter("ignore")


def about() -> dict[str, str]:
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    names = ("hemstitch", "torch", "triton")
    return {"date": today, "device": f"{stand_in.PROPERTIES.name}, not there"} | {
        name: version_of(name) for name in names
    }


def with_stand_in(module: str) -> None:
    """Returns in a process with the stand-in for a GPU; in another one, starts such a process with
    the same arguments and ends with it."""
    environment = stand_in.preload()
    if environment is None:
        sys.exit("needs a PyTorch built without CUDA, and a C++ compiler: g++ or clang++")
    if environment.get("LD_PRELOAD") != os.environ.get("LD_PRELOAD"):
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment).returncode)
