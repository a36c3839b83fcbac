"""The call list of a graph whose tensors are on a GPU: tensors without data stand in for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hemstitch.driver.call_list import assemble
from hemstitch.planning.plan import KernelStep, LibraryStep
from hemstitch.runtime.assembly import Launch
from hemstitch.runtime.executable import Executable
from hemstitch.runtime.returned import Result
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of

NOWHERE = torch.device("meta")


class Calls:
    """What the kernels of a graph got, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def launch(self, step: object) -> Launch | None:
        if isinstance(step, LibraryStep):
            return None
        assert isinstance(step, KernelStep)
        see, bound = (lambda *arguments: self.seen.append(arguments)), step.stitched
        return Launch(see, bound.tensors, (), 0, bound.places)


def executable_of(
    function: Callable[..., Any], *arguments: torch.Tensor
) -> tuple[Executable, Calls]:
    ((graph, plan),) = plans_of(function, arguments, generic_gpu())
    calls = Calls()
    launches = [calls.launch(step) for step in plan.steps]
    returns = [Result(number) for number in range(len(graph.outputs))]
    assembly = assemble(plan, launches, returns, len(arguments), NOWHERE)
    return Executable(assembly, graph.symbols, ()), calls


def two_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Of f64, which only the library multiplies."""
    return torch.softmax(torch.relu(x @ w) @ w, -1)


def test_intermediates_come_from_the_allocator_and_go_back_after_their_last_use():
    x, w = torch.randn(2, 512, 512, dtype=torch.float64)
    run, calls = executable_of(two_products, x, w)
    assembly = run.assembly
    assert not assembly.slots and not assembly.views and not assembly.large
    lines = [line.strip() for line in assembly.source.splitlines()]
    made = [line.split(" = ")[0] for line in lines if "= empty(" in line]
    freed = [name for line in lines if line.startswith("del ") for name in line[4:].split(", ")]
    (returned,) = set(made) - set(freed)
    assert lines[-1] == f"return ({returned},)"
    assert len(made) == 4 and len(calls.seen) == 0


def test_results_are_new_tensors_on_the_device():
    x = torch.randn(512, 512, device=NOWHERE, dtype=torch.float64)
    run, calls = executable_of(two_products, *torch.randn(2, 512, 512, dtype=torch.float64))
    (first,), (second,) = run([x, x]), run([x, x])
    assert first is not second and first.device == NOWHERE and first.shape == (512, 512)
    (one, *_), _, (other, *_), _ = calls.seen
    assert one.device == other.device == NOWHERE and one is not other


def test_a_copy_of_an_argument_is_where_the_argument_is():
    def replaced(x: torch.Tensor) -> torch.Tensor:
        y = torch.view_as_complex(x)
        x.add_(1)
        return y * 2

    ((graph, plan),) = plans_of(replaced, [torch.randn(64, 2)], generic_gpu())
    assert any(isinstance(step, LibraryStep) for step in plan.steps)
    calls = Calls()
    launches = [
        calls.launch(step)
        if isinstance(step, (LibraryStep, KernelStep))
        else Launch(lambda *arguments: None, (), (), 0)
        for step in plan.steps
    ]
    returns = [Result(number) for number, o in enumerate(graph.outputs) if o.mutates is None]
    run = Executable(assemble(plan, launches, returns, 1, NOWHERE), graph.symbols, ())
    (result,) = run([torch.randn(64, 2, device=NOWHERE)])
    assert result.device == NOWHERE and result.is_complex()
