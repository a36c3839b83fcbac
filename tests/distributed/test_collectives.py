"""Collectives inside a graph: as many as the program makes, in its order, and nobody touches what
is under way. One process, with a group that only pretends to have another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from hemstitch.backend import compile_with
from hemstitch.driver.compiler import Compiled
from hemstitch.ir.calls import LibraryCall
from hemstitch.ir.types import DType
from hemstitch.options import CHOICES, Options
from hemstitch.planning.plan import KernelStep, LibraryStep
from hemstitch.runtime import interpreter as interpret
from hemstitch.runtime.bindings import binding

PREFIX, SUFFIX = "_c10d_functional.", ".default"
aten, c10d = torch.ops.aten, torch.ops._c10d_functional


@pytest.fixture(autouse=True)
def group() -> Iterator[dist.ProcessGroup]:
    torch._dynamo.reset()
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def compiled(
    function: Callable[..., Any], *arguments: Tensor, **options: Any
) -> dict[str, Compiled]:
    """What was made of each graph of a call and, if it has a gradient, of its backward pass."""
    found: dict[str, Compiled] = {}

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Any:
        options_ = Options(cache=False, strict=True, check=True, **options)
        return compile_with(gm, inputs, options_, found.__setitem__)

    result = torch.compile(function, backend=backend, fullgraph=True)(*arguments)
    if isinstance(result, Tensor) and result.requires_grad:
        result.sum().backward()
    return found


def called(graph: Compiled) -> list[str]:
    """Its collectives and waits, in the order of the plan."""
    calls = [step.node.attr for step in graph.plan.steps if isinstance(step, LibraryStep)]
    names = [call.name for call in calls if isinstance(call, LibraryCall)]
    return [_short(name) for name in names if name.startswith(PREFIX)]


def begun(graph: Compiled) -> list[str]:
    """Its collectives, each of which is waited for."""
    names = called(graph)
    found = [name for name in names if name != "wait_tensor"]
    assert names.count("wait_tensor") == len(found)
    return found


def lines(graph: Compiled) -> list[str]:
    assert graph.executable is not None
    return graph.executable.assembly.source.splitlines()


def call(graph: Compiled, target: object) -> str:
    """The first line that calls it."""
    assert graph.executable is not None
    fixed = graph.executable.assembly.fixed
    function = binding(target, (), ())
    name = next(name for name, value in fixed.items() if value is function)
    return next(line for line in lines(graph) if f"{name}(" in line)


def _short(name: str) -> str:
    return name.removeprefix(PREFIX).removesuffix(SUFFIX)


def trained(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


# --- as many, in order


@pytest.mark.parametrize("planner", CHOICES["planner"])
def test_in_the_programs_order(planner, group):
    """Though what the later ones need is there first, and results need the later ones first."""

    def program(x, y):
        first = functional.all_reduce(torch.cumsum(x.exp(), 0).sum(1), "sum", group)
        second = functional.broadcast(torch.cumsum(x, 1) * y, 0, group)
        third = functional.all_gather_tensor(y * 2, 0, group)
        fourth = functional.reduce_scatter_tensor(y, "sum", 0, group)
        return fourth.sin(), third + 1, second * first[:, None]

    graph = compiled(program, torch.randn(4, 6), torch.randn(4, 6), planner=planner)["inference"]
    expected = ["all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor"]
    assert begun(graph) == expected


def test_the_reference_makes_them_in_the_same_order(group):
    """With the option `verify` both run."""

    def program(x):
        first = functional.all_reduce(x, "sum", group)
        return functional.all_gather_tensor(x, 0, group), first

    graph = compiled(program, torch.randn(4, 6))["inference"].graph
    seen: list[str] = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            seen.append(_short(str(function)))
            return function(*arguments, **(keywords or {}))

    with Recorded():
        interpret.run(graph, [torch.randn(4, 6)])
    assert [name for name in seen if name.startswith("all_")] == [
        "all_reduce",
        "all_gather_into_tensor",
    ]


def repeated(x, y):
    group = dist.group.WORLD
    one = functional.all_reduce(x * 2, "sum", group)
    functional.all_reduce(y + 1, "max", group)  # read by nobody
    same = functional.all_reduce(x * 2, "sum", group)
    return one.sin() * same.exp()


def test_equal_ones_and_unread_ones_stay():
    graphs = compiled(repeated, torch.randn(4, 6), torch.randn(4, 6))
    assert begun(graphs["inference"]) == ["all_reduce"] * 3


@pytest.mark.parametrize("memory_budget", [0.0, 1.0])
@pytest.mark.parametrize("planner", ["auto", "ilp"])
def test_backward_makes_only_its_own(planner, memory_budget):
    """However little may be saved: one for each whose result has a gradient."""
    options = {"planner": planner, "memory_budget": memory_budget}
    graphs = compiled(repeated, trained(4, 6), trained(4, 6), **options)
    assert begun(graphs["forward"]) == ["all_reduce"] * 3
    assert begun(graphs["backward"]) == ["all_reduce"] * 2


def test_a_checkpoint_makes_again_what_is_in_it(group):
    """As eager does."""

    def inside(x):
        return functional.all_reduce(x.exp(), "sum", group).sin()

    def program(x):
        return checkpoint(inside, x * 2, use_reentrant=False)

    graphs = compiled(program, trained(4, 6))
    assert begun(graphs["forward"]) == ["all_reduce"]
    assert begun(graphs["backward"]) == ["all_reduce"] * 2


# --- what is under way


def test_operands_have_memory_of_their_own(group):
    """A place in the arena would be the next intermediate's before the wait."""

    def program(x):
        sent = functional.all_gather_tensor(x * 2, 0, group)
        near = torch.logcumsumexp(torch.logcumsumexp(x.exp(), 0).sin(), 0)  # in the arena
        return sent + 1, near * 3

    graph = compiled(program, torch.randn(4, 6))["inference"]
    assert "v[" in call(graph, aten.logcumsumexp.default)
    assert "v[" not in call(graph, c10d.all_gather_into_tensor.default)


def test_an_argument_that_is_replaced_is_copied(group):
    """The wait may come after the new contents."""

    def program(x):
        sent = functional.all_gather_tensor(x, 0, group)
        x.add_(1)
        return sent * 2

    graph = compiled(program, torch.randn(4, 6))["inference"]
    assert "copy(a0)" in call(graph, c10d.all_gather_into_tensor.default)


def test_results_are_left_alone_before_the_wait(group):
    """Also those that lie otherwise than their operands, and what is seen of one before."""

    def program(x, y):
        turned = functional.broadcast(x.t() * 2, 0, group)
        one, other = functional.all_gather_into_tensor_coalesced([x + 1, y], group)
        begun = c10d.reduce_scatter_tensor(y * 3, "sum", 2, group.group_name)
        seen = c10d.wait_tensor(begun.view(3, 4).t())
        return turned.sin(), one * other, seen + 1

    graph = compiled(program, torch.randn(4, 6), torch.randn(4, 6))["inference"]
    names = ["broadcast", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor"]
    assert [name for name in called(graph) if name in names] == names
    read = {tensor.node.type.dtype for step in graph.plan.kernels for tensor in step.reads}
    assert DType.OPAQUE not in read
    laid_out = [line for line in lines(graph) if "lay(" in line]
    assert len(laid_out) == called(graph).count("wait_tensor") == 4


def test_a_result_may_leave_the_graph_before_the_wait(group):
    def program(x):
        return c10d.all_reduce(x.t() * 2, "sum", group.group_name), x + 1

    graph = compiled(program, torch.randn(4, 6))["inference"]
    assert called(graph) == ["all_reduce"]
    assert not any("lay(" in line for line in lines(graph))


def test_an_argument_under_way_is_read_after_the_wait():
    def program(x):
        c10d.wait_tensor(x)
        return x * x

    graph = compiled(program, torch.randn(4, 6))["inference"]
    assert [type(step) for step in graph.plan.steps] == [LibraryStep, KernelStep]


def test_an_argument_under_way_cannot_be_replaced():
    def program(x):
        c10d.wait_tensor(x)
        return x.mul_(2)

    with pytest.raises(BackendCompilerFailed, match="is waited for in the graph that replaces it"):
        compiled(program, torch.randn(4, 6))


# --- DistributedDataParallel


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(torch.relu(self.widen(x))).sin()


def test_buckets_without_gradients(monkeypatch):
    """Dynamo cuts the graph where gradients are sent, and calls the parts with fake tensors."""
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 100)
    model = Perceptron()
    kinds: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Any:
        return compile_with(
            gm, inputs, Options(cache=False, strict=True), lambda kind, _: kinds.append(kind)
        )

    parallel = DistributedDataParallel(model, bucket_cap_mb=1e-4)
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(parallel, backend=backend)(x), model(x))
    assert kinds == ["inference"] * 2
