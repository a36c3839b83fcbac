"""What capture makes of a call's contract: mutation, aliases, constants, numbers, origins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from hemstitch.capture.translation import capture
from hemstitch.errors import UnsupportedError
from hemstitch.ir.dims import symbol
from hemstitch.ir.graph import Op, toposort
from hemstitch.ir.types import DType
from hemstitch.runtime.returned import Argument, Fixed, Number, Result, ReturnedNumber
from tests.capture.helpers import InterpretBackend, execute, library_names


def compiled(function: Any, dynamic: bool = False) -> tuple[Any, InterpretBackend]:
    torch._dynamo.reset()
    backend = InterpretBackend()
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True), backend


@pytest.mark.parametrize("dynamic", [False, True])
def test_mutated_inputs(dynamic: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[:, 1:3].zero_()
        y.t()[0] += x[0, 0]
        return x.sum() + y.sum()

    run, backend = compiled(function, dynamic)
    for size in (4, 5) if dynamic else (4,):
        x, y = torch.randn(size, 6), torch.randn(size, 6)
        x2, y2 = x.clone(), y.clone()
        torch.testing.assert_close(run(x, y), function(x2, y2))
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)
    (captured,) = backend.captured
    assert [output.mutates is not None for output in captured.graph.outputs] == [True, True, False]
    assert captured.returns == (Result(2),)


def test_outputs_that_are_inputs_views_and_copies() -> None:
    def function(x: torch.Tensor) -> Any:
        return x, x.view(-1), x.detach(), x.clone(), x * 2, 3, None

    run, _ = compiled(function)
    x = torch.randn(3, 4)
    same, view, detached, copy, double, three, nothing = run(x)
    assert same is x
    assert view.data_ptr() == detached.data_ptr() == x.data_ptr()
    assert copy.data_ptr() != x.data_ptr()
    assert torch.equal(copy, x)
    assert torch.equal(double, x * 2)
    assert (three, nothing) == (3, None)


def test_output_strides_are_those_of_the_trace() -> None:
    run, backend = compiled(lambda x: (x.t() * 2, x.sum(0, keepdim=True).expand(4, 6) + 1))
    x = torch.randn(4, 6)
    transposed, _ = run(x)
    assert transposed.stride() == (1, 6)
    assert backend.captured[0].graph.outputs[0].strides == (1, 6)


def test_constants_of_the_program() -> None:
    table = torch.tensor([1.0, 2.0, 3.0])
    x = torch.randn(2, 3)
    traced = make_fx(lambda x: x * table + table.sum())(x)
    captured = capture(traced, [x])
    assert [each.tolist() for each in captured.constants] == [[1.0, 2.0, 3.0]] * len(
        captured.constants
    )
    assert torch.allclose(execute(captured, [x])[0], x * table + 6)


def test_sizes_as_arguments_and_results() -> None:
    traced = make_fx(
        lambda x: (x * x.shape[0], x.shape[0] + 2 * x.shape[1]), tracing_mode="symbolic"
    )(torch.randn(4, 6))
    captured = capture(traced, [None])
    rows, columns = (symbol(name) for name in captured.graph.symbols)
    assert captured.returns == (Result(0), Number(rows + 2 * columns))
    assert sorted(captured.graph.hints.values()) == [4, 6]
    x = torch.randn(5, 3)
    result, size = execute(captured, [x])
    assert torch.equal(result, x * 5)
    assert size == 11


def test_numbers_read_from_tensors() -> None:
    def function(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale + math.sqrt(x.shape[1])

    run, backend = compiled(function, dynamic=True)
    for rows, scale in ((4, 0.5), (5, 0.75)):
        x = torch.randn(rows, 6, dtype=torch.float64)
        torch.testing.assert_close(run(x, scale), function(x, scale))
    assert len(backend.captured) == 1


def test_numbers_computed_for_the_library() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.histc(x, 5, 0, x.shape[0] ** 0.5)

    captured = capture(make_fx(function, tracing_mode="symbolic")(torch.rand(9, 5)), [None])
    assert library_names(captured) == ["aten.histc.default"]
    x = torch.rand(16, 3) * 4
    assert torch.equal(execute(captured, [x])[0], function(x))


def test_a_number_as_result() -> None:
    traced = make_fx(lambda x: (x + 1, x.shape[0] ** 0.5), tracing_mode="symbolic")(
        torch.ones(4, 2)
    )
    captured = capture(traced, [None])
    assert captured.returns == (Result(0), ReturnedNumber(1))
    assert execute(captured, [torch.ones(9, 2)])[1] == 3.0


def test_opaque_types_are_left_to_the_library() -> None:
    run, backend = compiled(lambda x, y: (torch.fft.fft(x) * y, x + 1))
    x, y = torch.randn(8), torch.randn(8)
    spectrum, _ = run(x, y)
    torch.testing.assert_close(spectrum, torch.fft.fft(x) * y)
    (captured,) = backend.captured
    types = [output.value.type.dtype for output in captured.graph.outputs]
    assert types == [DType.OPAQUE, DType.F32]
    assert library_names(captured)[-1] == "aten.mul.Tensor"


def test_tuples_and_effects() -> None:
    run, backend = compiled(lambda x: (torch.rand_like(x), x.topk(2).indices, x.unbind(0)))
    x = torch.randn(3, 5)
    torch.manual_seed(3)
    drawn, places, rows = run(x)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand_like(x))
    assert torch.equal(places, x.topk(2).indices)
    assert torch.equal(torch.stack(rows), x)
    effects = [node.attr.name for node in backend.captured[0].graph.effects]
    assert len(effects) == 1
    assert effects[0].startswith("aten.rand")


def test_equal_expressions_are_one_node() -> None:
    run, backend = compiled(lambda x: (x.exp() + 1) * (x.exp() + 1))
    run(torch.randn(3))
    ops = [node.op for node in toposort(backend.captured[0].graph.roots)]
    assert ops.count(Op.EXP) == 1


def test_origins_point_into_the_program() -> None:
    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.tanh()

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * 2

    run, backend = compiled(Outer())
    run(torch.randn(3))
    graph = backend.captured[0].graph
    (tanh,) = (node for node in toposort(graph.roots) if node.op is Op.TANH)
    origin = graph.origins[tanh]
    assert origin.op == "aten.tanh.default"
    assert origin.file == __file__
    assert origin.source == "return x.tanh()"
    assert origin.module == "inner"


def test_sizes_known_only_from_data_are_refused() -> None:
    traced = make_fx(lambda x: x.nonzero() + 1, tracing_mode="symbolic")(torch.ones(4))
    with pytest.raises(UnsupportedError, match="not known before the call"):
        capture(traced, [None])


def test_nothing_to_compute() -> None:
    traced = make_fx(lambda x: (x, None))(torch.ones(2))
    captured = capture(traced, [None])
    assert captured.returns == (Argument(0), Fixed(None))
    assert captured.graph.outputs == ()


def test_an_index_read_from_a_tensor_is_left_to_the_library() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.narrow(0, i, 2) * i.item()

    x, i = torch.randn(5, 3), torch.tensor(2)
    captured = capture(make_fx(function, tracing_mode="symbolic")(x, i), [None, None])
    for start in range(4):
        place = torch.tensor(start)
        assert torch.equal(execute(captured, [x, place])[0], x[start : start + 2] * start)
