"""The tables of stages: they fit together, `check` names a stage that leaves something wrong, and
`explain` shows what is compiled."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from hemstitch.driver import cpu_kernels
from hemstitch.errors import InternalError
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import symbol
from hemstitch.ir.graph import Graph, Output
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.nodes import Kernel
from hemstitch.options import Options
from hemstitch.pipeline import (
    CPU_LOWERING,
    GRAPH,
    KERNEL,
    PIPELINES,
    PROGRAM,
    SIMPLIFICATION,
    Simplification,
    Stage,
    run_stages,
    snapshots,
    stages_before,
)
from hemstitch.report.explain import explain


@pytest.mark.parametrize("target", PIPELINES)
def test_each_stage_takes_what_the_one_before_gives(target: str) -> None:
    stages = PIPELINES[target]
    for stage, following in pairwise(stages):
        # The kernels of a program are lowered one by one.
        is_lowering = (stage.gives, following.takes) == (PROGRAM, KERNEL)
        assert following.takes is stage.gives or is_lowering
    assert len({stage.name for stage in stages}) == len(stages)


def test_a_stage_that_leaves_something_wrong_is_named() -> None:
    builder = Builder()
    x = builder.input("x", 0, (4,), DType.F32, (1,))
    graph = Graph((x,), (Output(x, (1,)),))

    def without_inputs(graph: Graph, _: object) -> Graph:
        return replace(graph, inputs=())

    stages = (*SIMPLIFICATION, Stage("forget", GRAPH, GRAPH, without_inputs))
    told = Simplification(builder, Options())
    assert run_stages(stages, graph, told).inputs == ()
    with pytest.raises(InternalError, match='the stage "forget" left what does not hold'):
        run_stages(stages, graph, told, check=True)


def test_kernels_are_verified_where_they_are_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(kernel: Kernel, _: object) -> Kernel:
        return replace(kernel, buffers=())

    stages = (*CPU_LOWERING[:-1], Stage("lose", KERNEL, KERNEL, broken), CPU_LOWERING[-1])
    monkeypatch.setattr(cpu_kernels, "CPU_LOWERING", stages)
    torch._dynamo.reset()
    options = {"strict": True, "check": True, "cache": False}
    compiled = torch.compile(lambda x: x.exp() * 7, backend="hemstitch", options=options)
    with pytest.raises(Exception, match='the stage "lose" left what does not hold'):
        compiled(torch.randn(12))


@pytest.mark.parametrize("shape", [(16, 16), (3, 5000)])
def test_what_explain_shows_is_what_is_compiled(shape: tuple[int, int]) -> None:
    report = explain(lambda x: torch.softmax(x, -1), torch.randn(shape))
    (kernel,) = report.kernels
    names, texts = zip(*kernel.stages)
    assert names == ("stitch", *(stage.name for stage in CPU_LOWERING))
    assert texts[-1] == kernel.source
    # The last one but for its name, which says where it is in its plan.
    assert texts[-2].partition("\n")[2] == kernel.ir.partition("\n")[2]


def test_stages_before_one() -> None:
    names = [stage.name for stage in stages_before(CPU_LOWERING, "block matmuls")]
    assert names == [stage.name for stage in CPU_LOWERING[: len(names)]]
    assert CPU_LOWERING[len(names)].name == "block matmuls"


def test_a_stage_that_does_not_run_leaves_nothing() -> None:
    builder = Builder()
    x = builder.input("x", 0, (symbol("n"),), DType.F32, (1,))
    graph = Graph((x,), (Output(x, (1,)),), symbols={"n": (0, 0)})
    told = Simplification(builder, Options())
    names = [name for name, _ in snapshots(SIMPLIFICATION, graph, told)]
    assert "reassociate" not in names and len(names) == len(SIMPLIFICATION) - 1
