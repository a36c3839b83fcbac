"""Kernels on a real GPU: they mean what the graph means, whatever the stream, the alignment, and
whether they are replayed. Skipped where there is no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import torch

from hemstitch.driver.builds import build
from hemstitch.driver.call_list import assemble
from hemstitch.ir.graph import Graph
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.options import Options
from hemstitch.planning.plan import Plan
from hemstitch.runtime import interpreter as interpret
from hemstitch.runtime.executable import Executable
from hemstitch.runtime.returned import Result
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import assert_close, has_halves, plan_for, plans_of
from tests.lowered import optimize
from tests.programs import Program, arguments_for

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROUNDED, HALVES = 1e-4, 3e-2
ON_GPU = torch.device("cuda", 0)


def executable_of(graph: Graph, plan: Plan, arguments: int) -> Executable:
    launches = build(plan, Options(target="cuda", strict=True))
    returns = [Result(k) for k, output in enumerate(graph.outputs) if output.mutates is None]
    return Executable(assemble(plan, launches, returns, arguments, ON_GPU), graph.symbols, ())


def moved(values: Sequence[object]) -> list[object]:
    """Tensors on the GPU, with the same strides."""
    return [_moved(value) if isinstance(value, torch.Tensor) else value for value in values]


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    flat = tensor.as_strided((count,), (1,), 0).to(ON_GPU)
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@pytest.mark.parametrize("seed", range(200))
def test_random_programs(seed):
    random = Random(seed)
    program = Program(
        random,
        steps=random.randint(2, 14),
        symbolic=random.random() < 0.3,
        mutating=False,
        empty=random.random() < 0.05,
        scattering=seed % 4 == 1,
    )
    arguments = arguments_for(program.graph, program.sizes, seed)
    graph = optimize(program.graph, program.builder)
    run = executable_of(graph, plan_for(graph, generic_gpu()), len(arguments))
    expected = interpret.run(graph, arguments)
    for _ in range(2):  # what the first leaves behind does not matter to the second
        found = [each.cpu() for each in run(moved(arguments))]
        assert_close(found, expected, HALVES if has_halves(graph) else ROUNDED)


def centred(rows: int) -> tuple[Executable, torch.Tensor, torch.Tensor]:
    """Sums of columns behind a barrier; an argument and what is to come out."""
    x = torch.randn(rows, 256)
    ((graph, plan),) = plans_of(lambda x: x - x.sum(0), [x], generic_gpu())
    assert sum(step.stitched.kernel.barriers for step in plan.kernels) > 0
    return executable_of(graph, plan, 1), x.to(ON_GPU), (x - x.double().sum(0)).to(ON_GPU).float()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)


def test_a_barrier_holds_at_every_launch():
    for rows in (300, 1000, 4096, 100_000):
        run, x, expected = centred(rows)
        for _ in range(200):
            (found,) = run([x])
        close(found, expected)


def test_barriers_on_two_streams():
    run, x, expected = centred(4096)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    found = []
    for number in range(100):
        with torch.cuda.stream(streams[number % 2]):
            found.append(run([x])[0])
    torch.cuda.synchronize()
    for each in found:
        close(each, expected)


def test_a_captured_barrier():
    run, x, expected = centred(4096)
    run([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = run([x])
    for _ in range(50):
        found.zero_()
        graph.replay()
        run([x])
    torch.cuda.synchronize()
    close(found, expected)


def loss(rows: int) -> tuple[Executable, torch.Tensor, torch.Tensor]:
    """A sum behind a ticket."""
    x = torch.randn(rows, 1000)
    ((graph, plan),) = plans_of(lambda x: (x * x).sum(), [x], generic_gpu())
    (step,) = plan.kernels
    assert step.stitched.kernel.has_last_block and not step.stitched.kernel.barriers
    return executable_of(graph, plan, 1), x.to(ON_GPU), (x * x).double().sum().to(ON_GPU).float()


def test_tickets_on_two_streams_and_in_a_graph():
    run, x, expected = loss(4000)
    run([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (captured,) = run([x])
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    found = []
    for number in range(300):
        with torch.cuda.stream(streams[number % 2]):
            found.append(run([x])[0])
        if number % 3 == 0:
            graph.replay()
    torch.cuda.synchronize()
    for each in (*found, captured):
        torch.testing.assert_close(each, expected, rtol=1e-5, atol=0)
    assert len({each.item() for each in (*found, captured)}) == 1  # whoever came last


def test_a_semaphore_flips_each_time():
    run, x, expected = centred(4096)
    for _ in range(51):
        (found,) = run([x])
        close(found, expected)


def test_tensors_that_are_not_aligned():
    x = torch.randn(1000, 64)
    ((graph, plan),) = plans_of(lambda x: torch.relu(x) + 1, [x], generic_gpu())
    run = executable_of(graph, plan, 1)
    memory = torch.empty(x.numel() + 3, device=ON_GPU)
    for shift in range(4):
        placed = memory[shift : shift + x.numel()].view(1000, 64).copy_(x)
        close(run([placed])[0].cpu(), torch.relu(x) + 1)


def test_occupancy_is_the_drivers():
    """A cooperative launch with one program more than fit is refused, and our own table, from which
    kernels are estimated, says the same."""
    from hemstitch.latency.occupancy import occupancy  # noqa: PLC0415
    from hemstitch.runtime.gpu.device import device_of  # noqa: PLC0415
    from hemstitch.runtime.gpu.loaded_kernel import Variant, load  # noqa: PLC0415
    from tests.cuda.steps import centred as program  # noqa: PLC0415

    device, loaded = device_of("cuda", 0), load(program(), Variant(True, ()), device_of("cuda", 0))
    blocks = device.resident_blocks(loaded.function, program().warps, loaded.owner.metadata.shared)
    fit = blocks * device.processors
    assert loaded.resident == min(blocks, GPU.cooperative_programs) * device.processors
    if device.architecture is not None:
        held = occupancy(
            device.architecture,
            registers=loaded.owner.n_regs,
            shared_bytes=loaded.owner.metadata.shared,
            warps=program().warps,
        )
        assert blocks == held.blocks
    source, result = (torch.randn(8192, 128, device=ON_GPU) for _ in range(2))
    scratch = device.empty((fit + 1) * 512)
    arguments = [t.data_ptr() for t in (source, result, scratch, device.zeros(1))]

    def launch(programs: int) -> None:
        stream = device.stream(0)
        loaded.run(
            programs, 1, 1, stream, loaded.function, loaded.packed, None, None, None, *arguments
        )

    launch(fit)
    torch.cuda.synchronize()
    close(result, source - source.sum(0))
    with pytest.raises(RuntimeError, match="cooperative"):
        launch(fit + 1)
