"""What PyTorch's trees of CUDA graphs are asked to record, and what not. They need a GPU: in their
place stands something that takes notes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor import cudagraph_trees
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

pytest.importorskip("triton")

from hemstitch.runtime.gpu import cuda_graphs as graphs
from hemstitch.runtime.gpu.cuda_graphs import Recorder, reason_against

ON_GPU = torch.device("cuda", 0)


def traced(function: Callable[..., Any], *arguments: torch.Tensor) -> torch.fx.GraphModule:
    """A graph on a GPU that need not be there."""
    return make_fx(function, tracing_mode="fake")(*arguments)


@pytest.fixture
def x() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(8, 8, device=ON_GPU)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each request to record."""
    requests: list[dict[str, Any]] = []

    def cudagraphify_impl(run: Any, inputs: list[Any], fixed: list[int], **more: Any) -> Any:
        requests.append({"run": run, "fixed": list(fixed), **more})
        return lambda arguments: ("replayed", *run(arguments))

    monkeypatch.setattr(graphs.cudagraph_trees, "cudagraphify_impl", cudagraphify_impl)
    return requests


def test_a_call_is_recorded(x, asked):
    run = Recorder().record("inference", lambda a: (1,), traced(lambda x: (x * 2,), x), [x])
    assert run([x]) == ("replayed", 1) and run._boxed_call
    (request,) = asked
    # As the function that is really there takes them.
    inspect.signature(cudagraph_trees.cudagraphify).bind(
        request.pop("run"), [], request.pop("fixed"), **request
    )
    assert callable(cudagraph_trees.CUDAGraphTreeManager.set_to_running_backward)
    assert (request["device_index"], request["is_inference"], request["is_backward"]) == (0, 1, 0)
    assert request["mutated_input_idxs"] == () and len(request["placeholders"]) == 1


def test_backward_follows_forward(x, asked):
    recorder = Recorder()
    graph = traced(lambda x: (x * 2,), x)
    recorder.record("forward", lambda a: (1,), graph, [x])
    recorder.record("backward", lambda a: (1,), graph, [x])
    assert [request["is_backward"] for request in asked] == [False, True]
    assert asked[1]["fixed"] == [0]  # what was saved stays where it is; there is no tangent


def test_no_backward_without_its_forward(x, asked):
    run = lambda a: (1,)  # noqa: E731
    assert Recorder().record("backward", run, traced(lambda x: (x * 2,), x), [x]) is run
    assert not asked


def test_a_backward_that_cannot_be_recorded_is_announced(x, asked, monkeypatch):
    told = []
    manager = type("Manager", (), {"set_to_running_backward": lambda self: told.append(True)})()
    monkeypatch.setattr(graphs.cudagraph_trees, "get_manager", lambda *_, **__: manager)
    recorder = Recorder()
    recorder.record("forward", lambda a: (1,), traced(lambda x: (x * 2,), x), [x])
    run = recorder.record("backward", lambda a: (1,), *traced_with_unknown_size())
    assert run([]) == (1,) and told == [True] and run._boxed_call and len(asked) == 1


def traced_with_unknown_size() -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    graph = make_fx(lambda x: (x * 2,), tracing_mode="symbolic")(torch.randn(5, 7))
    (place,) = graph.graph.find_nodes(op="placeholder")
    return graph, [place.meta["val"]]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: (x.add_(1),), "written to"),
        (lambda x: (x * 2, torch.ones(3)), "cpu device"),
        (lambda x: (x * 2,), None),
    ],
)
def test_reasons(function, why, x):
    found = reason_against(traced(function, x), [x], [])
    assert found is None if why is None else why in found


def test_what_is_written_to_may_be_fixed(x):
    assert reason_against(traced(lambda x: (x.add_(1),), x), [x], [0]) is None


def test_unknown_sizes():
    assert reason_against(*traced_with_unknown_size(), []) == "sizes that are not known"


def test_on_a_processor_nothing_is_recorded():
    x = torch.randn(64, 64, requires_grad=True)
    function = torch.compile(
        lambda x: torch.softmax(x, -1), backend="hemstitch", options={"cuda_graphs": True}
    )
    torch._dynamo.reset()
    torch.testing.assert_close(function(x), torch.softmax(x, -1))
    function(x).sum().backward()
    assert x.grad is not None
