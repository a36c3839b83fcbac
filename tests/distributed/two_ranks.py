"""What two ranks do under torchrun for `test_ranks.py`: train a small model in every way that
splits the work, and run collectives inside a graph. Each rank writes what it found to a file.

torchrun --nproc-per-node 2 two_ranks.py FOLDER
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

from hemstitch.backend import compile_with
from hemstitch.driver.compiler import Compiled
from hemstitch.ir.printer import show
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.printer import show as show_kernel
from hemstitch.machine.probes import Probe, RateProbe
from hemstitch.measure import matmul_units
from hemstitch.measure import performance_library as performance
from hemstitch.options import Options
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.toolchain.jit import host_target, threads_now

WIDTH, SEQUENCE, BATCH = 32, 8, 8
BUCKET_BYTES = 30_000  # of gradients, so that Dynamo cuts the model in two
LATE_SECONDS = 0.3  # enough for the other rank to read what has not come yet
COLLECTIVES = [
    f"_c10d_functional::{name}"
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
]


class Block(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, _ = x.shape
        parts = self.project(self.before(x)).split(WIDTH, -1)
        q, k, v = (y.view(batch, rows, self.heads, -1).transpose(1, 2) for y in parts)
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, rows, WIDTH))
        return x + self.narrow(F.gelu(self.widen(self.behind(x))))


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Rank:
    """One process of the job. `plans`: what each graph that was compiled so far became; `kinds`:
    which those were lately."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.number = dist.get_rank()
        self.plans: list[str] = []
        self.kinds: list[str] = []

    def compile(self, function: Any, **options: Any) -> Any:
        return torch.compile(function, backend=self.backend(**options))

    def backend(self, **options: Any) -> Callable[..., Any]:
        return partial(
            compile_with, options=Options(cache=False, strict=True, **options), observe=self.observe
        )

    def observe(self, kind: str, compiled: Compiled) -> None:
        kernels = [show_kernel(step.stitched.kernel) for step in compiled.plan.kernels]
        assert compiled.executable is not None
        text = [kind, show(compiled.graph), *kernels, compiled.executable.assembly.source]
        self.plans.append("\n".join(text))
        self.kinds.append(kind)

    # --- who multiplies faster

    def measure(self, probe: Probe) -> dict[Probe, float]:
        """A clock as on another host for each rank: on rank 0 kernels multiply in no time."""
        assert isinstance(probe, RateProbe)
        return {probe: 1.0 if (probe.by == "library") == (self.number == 0) else 1e-6}

    def matmul_units(self) -> dict[str, float]:
        """Rank 1 looks at its clock first. By how much kernels are faster."""
        performance.measure = self.measure
        used = threads_now(), host_target().lanes
        nominal = generic_cpu(*used).matrix_units
        own = matmul_units.MeasuredUnits(nominal, *used, performance.library())[DType.F32].share
        with in_turn(self.number, first=1):
            return {"own": own, "taken": matmul_units.measured_units(*used)[DType.F32].share}

    # --- training

    def error(self, wrap: Callable[[nn.Module], nn.Module], layers: int, graphs: int) -> float:
        """Of this rank's gradients, from its half of the batch, beside one process's from all.
        `graphs`: compiled in each direction."""
        torch._dynamo.reset()
        self.kinds.clear()
        torch.manual_seed(0)
        model = Model(layers)
        x, y = torch.randn(2, BATCH, SEQUENCE, WIDTH)
        mine = slice(self.number * BATCH // 2, (self.number + 1) * BATCH // 2)
        single = copy.deepcopy(model)
        F.mse_loss(single(x), y).backward()
        wrapped = wrap(model)
        for _ in range(2):  # from the second on backward is called without AOTAutograd
            wrapped.zero_grad()
            F.mse_loss(wrapped(x[mine]), y[mine]).backward()
        assert sorted(self.kinds) == ["backward"] * graphs + ["forward"] * graphs, self.kinds
        found = [_whole(parameter.grad) for parameter in wrapped.parameters()]
        wanted = [parameter.grad for parameter in single.parameters()]
        return max(_difference(f, w) for f, w in zip(found, wanted, strict=True))

    def ddp_compiled(self, model: nn.Module) -> nn.Module:
        dist._DEFAULT_FIRST_BUCKET_BYTES = BUCKET_BYTES  # no option says it
        buckets = BUCKET_BYTES / 2**20
        return self.compile(DistributedDataParallel(model, bucket_cap_mb=buckets))

    def compiled_in_ddp(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(self.compile(model))

    def fsdp_of_compiled_blocks(self, model: nn.Module) -> nn.Module:
        for block in model.blocks:
            block.compile(backend=self.backend())
            fully_shard(block)
        return fully_shard(model)

    def fsdp_compiled(self, model: nn.Module) -> nn.Module:
        for block in model.blocks:
            fully_shard(block)
        return self.compile(fully_shard(model))

    # --- collectives in the graph

    def collectives(self) -> dict[str, Any]:
        """As eager makes them, and as the compiled graph does; how far its results are off."""
        torch._dynamo.reset()
        compiled = self.compile(exchange, check=True)
        found: dict[str, Any] = {}
        for name, trains in (("inference", False), ("training", True)):
            torch.manual_seed(self.number)
            given = [torch.randn(4, 6, requires_grad=trains) for _ in range(2)]
            eager, wanted = called(exchange, given)
            called(compiled, given)  # compiles backward
            ours, results = called(compiled, given)
            error = max(map(_difference, results, wanted))
            found[name] = {"eager": eager, "compiled": ours, "error": error}
        return found

    def late(self) -> dict[str, bool]:
        """Rank 0 comes late to a collective; rank 1 must not read before it has come."""
        torch._dynamo.reset()
        x = torch.arange(6.0).reshape(2, 3)
        sent = self.compile(lambda x: functional.broadcast(x.t() * 1, 0, dist.group.WORLD) + 1)
        waited = self.compile(squared)
        sent(x)
        with functional.allow_inflight_collective_as_graph_input_ctx():
            waited(x)
            self._come_late()
            found = sent(x + self.number)
            self._come_late()
            sum_ = x.clone()
            dist.all_reduce(sum_, async_op=True)
            square = waited(sum_)
        return {
            "sent": torch.equal(found, x.t() + 1),
            "begun before the call": torch.equal(square, 4 * x * x),
        }

    def _come_late(self) -> None:
        dist.barrier()
        time.sleep(LATE_SECONDS * (self.number == 0))


def exchange(x: Tensor, y: Tensor) -> Tensor:
    group = dist.group.WORLD
    first = functional.all_reduce(x * 2, "sum", group)
    gathered = functional.all_gather_tensor(y.sin(), 0, group)
    scattered = functional.reduce_scatter_tensor(gathered.cos(), "sum", 0, group)
    again = functional.all_reduce(x * 2, "sum", group)  # equal to the first, and not the first
    functional.all_reduce(y + 1, "sum", group)  # read by nobody
    return (first * again).sin() + scattered


def squared(x: Tensor) -> Tensor:
    torch.ops._c10d_functional.wait_tensor(x)
    return x * x


def called(function: Callable[..., Tensor], given: list[Tensor]) -> tuple[list[str], list[Tensor]]:
    """The collectives that it begins, and its result with its gradients."""
    for x in given:
        x.grad = None
    with profile() as recorded:
        result = function(*given)
        if result.requires_grad:
            (result * result).sum().backward()
        dist.barrier()  # a collective that ends behind the profile writes to its freed memory
    events = sorted(recorded.events(), key=lambda event: event.time_range.start)
    begun = [event.name for event in events if event.name in COLLECTIVES]
    return begun, [result.detach(), *(x.grad for x in given if x.grad is not None)]


@contextmanager
def in_turn(rank: int, first: int) -> Iterator[None]:
    """One rank before the other."""
    if rank != first:
        dist.barrier()
    yield
    if rank == first:
        dist.barrier()


def _whole(gradient: Tensor) -> Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def _difference(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def main(folder: Path) -> None:
    rank = Rank()
    place = folder / str(rank.number)
    os.environ["HOME"] = str(place)  # a host of its own, on which nothing was measured
    found: dict[str, Any] = {"matmul_units": rank.matmul_units()}
    found["errors"] = {
        "ddp, compiled": rank.error(rank.ddp_compiled, layers=1, graphs=2),
        "compiled, in ddp": rank.error(rank.compiled_in_ddp, layers=1, graphs=2),
        "fsdp of compiled blocks": rank.error(rank.fsdp_of_compiled_blocks, layers=2, graphs=2),
        "fsdp, compiled": rank.error(rank.fsdp_compiled, layers=1, graphs=1),
    }
    found["collectives"] = rank.collectives()
    found["late"] = rank.late()
    found["plans"] = rank.plans
    place.with_suffix(".json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
