"""A view whose elements come in reverse, from its text to kernels of both targets."""

from __future__ import annotations

import pytest
import torch

import hemstitch
from hemstitch.errors import InternalError
from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Op
from hemstitch.ir.parser import parse
from hemstitch.ir.printer import show
from hemstitch.ir.verifier import verify
from hemstitch.runtime.interpreter import run
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of
from tests.lowered import triton

TEXT = """\
%0 = input f32[4, 6] "x" position 0 strides (6, 1)
%1 = flip f32[4, 6] %0 (0, 1)
output %1 strides (6, 1)
"""


def test_text_and_value() -> None:
    graph = parse(TEXT, Builder())
    verify(graph)
    assert show(graph) == TEXT
    x = torch.randn(4, 6)
    (result,) = run(graph, [x])
    assert torch.equal(result, x.flip(0, 1))


def test_an_axis_that_is_not_there() -> None:
    with pytest.raises(InternalError, match="no axes"):
        verify(parse(TEXT.replace("(0, 1)", "(0, 2)"), Builder()))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_kernels_of_a_processor(axes: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.exp().flip(axes) + x).softmax(-1).flip(axes)

    x = torch.randn(33, 70)
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True, "check": True})
    torch.testing.assert_close(compiled(x), program(x))
    assert hemstitch.explain(program, x).library_calls == []


def test_kernels_of_a_gpu() -> None:
    ((graph, plan),) = plans_of(lambda x: x.exp().flip(1), (torch.zeros(64, 128),), generic_gpu())
    assert Op.FLIP in {node.op for output in graph.outputs for node in (output.value,)}
    (step,) = plan.kernels
    assert "127" in triton(step.stitched.kernel, step.groups[0].hint, 528).text
