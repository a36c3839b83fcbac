"""Compiling beside the program, with the option `asynchronous`: what runs until a graph is ready,
and that nothing but speed changes when it is. No test waits for a clock: a list holds the jobs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from types import FunctionType, ModuleType
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import hemstitch
from hemstitch.backend import compile_with
from hemstitch.calls.as_traced import AsTraced
from hemstitch.capture.translation import capture
from hemstitch.driver import cpu_kernels as native
from hemstitch.driver.background import BackgroundThread, Deferred, submit_to_worker
from hemstitch.errors import GraphWarning, KernelBuildError, OptionError
from hemstitch.options import Options
from hemstitch.toolchain.llvm_workers import Helpers

Job = Callable[[], None]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Held:
    """A function whose graphs wait in `jobs` until `finish` is called."""

    def __init__(self, function: Callable[..., Any], dynamic: bool | None = None, **options: Any):
        self.jobs: list[Job] = []
        self.compiled: list[str] = []
        self.options = Options(**{"asynchronous": True, "cache": False, "check": True, **options})
        self.function = torch.compile(function, backend=self._backend, dynamic=dynamic)

    def _backend(self, gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Any:
        return compile_with(gm, inputs, self.options, self._observe, submit=self.jobs.append)

    def _observe(self, kind: str, compiled: object) -> None:
        self.compiled.append(kind)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def finish(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


def operations(function: Callable[..., Any], *arguments: Any) -> set[str]:
    """Of the library, that a call runs."""
    with torch.profiler.profile() as profile:
        function(*arguments)
    return {event.key for event in profile.key_averages()}


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(x) * 2, -1)


# --- the change


def test_calls_run_as_traced_until_the_graph_is_compiled():
    held, x = Held(softmax), torch.randn(6, 9)
    first = held(x)
    assert "aten::tanh" in operations(held, x)
    assert (len(held.jobs), held.compiled) == (1, [])
    held.finish()
    assert "aten::tanh" not in operations(held, x)
    assert held.compiled == ["inference"]
    torch.testing.assert_close(held(x), first)


def test_without_the_option_nothing_waits():
    held = Held(softmax, asynchronous=False)
    held(torch.randn(6, 9))
    assert (held.jobs, held.compiled) == ([], ["inference"])


def several(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    hidden = F.dropout(torch.sin(x @ y), 0.4)
    noise = torch.randn(4, 1)  # a draw of the library, between ours
    return hidden * noise, F.dropout(hidden, 0.5).sum(0), torch.bernoulli(y.detach(), 0.5)


def test_random_numbers_are_the_same_before_and_after():
    held, arguments = Held(several), (torch.randn(4, 5), torch.randn(5, 6))
    found = []
    for _ in range(2):
        torch.manual_seed(11)
        found.append(held(*arguments))
        held.finish()
    torch.testing.assert_close(*found)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 24), torch.nn.Linear(24, 6)
        self.norm = torch.nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + F.dropout(self.second(F.gelu(self.first(x))), 0.3))


def train(model: Any, parameters: Any, change: Callable[[str], None]) -> list[Any]:
    """Two steps. `change`: is told where the program is."""
    found = []
    x = torch.linspace(-2, 2, 48).reshape(8, 6)
    for step in range(2):
        torch.manual_seed(step)
        result = model(x)
        change(f"forward {step}")
        gradients = torch.autograd.grad(result.square().sum(), parameters)
        change(f"backward {step}")
        found += [result.detach(), *gradients]
    return found


@pytest.fixture(scope="module")
def once() -> tuple[Block, list[Tensor]]:
    """Compiled before its first step: the model behind two, and what they gave."""
    torch.manual_seed(0)
    model = Block()
    compiled = torch.compile(model, backend="hemstitch")
    return model, train(compiled, [*model.parameters()], lambda _: None)


CHANGES = [*product(["forward 0", "backward 0", "forward 1"], ["all", "forward", "backward"])]


@pytest.mark.parametrize(("moment", "which"), [*CHANGES, ("never", "all")])
def test_masks_gradients_and_statistics_whenever_it_changes(
    moment: str, which: str, once: tuple[Block, list[Tensor]]
):
    """Also between a forward and its backward, and where only one of them is compiled."""
    trained, expected = once
    torch.manual_seed(0)
    model = Block()
    held = Held(model)

    def change(place: str) -> None:
        if place == moment:
            wanted = {"all": held.jobs[:], "forward": held.jobs[:1], "backward": held.jobs[1:]}
            for job in wanted[which]:
                job()

    found = train(held, [*model.parameters()], change)
    torch.testing.assert_close(found, expected)
    assert torch.equal(model.norm.num_batches_tracked, trained.norm.num_batches_tracked)
    torch.testing.assert_close(model.norm.running_var, trained.norm.running_var)


def test_what_is_kept_for_backward_lies_as_it_was_traced():
    """Backward is compiled for that, and operations do not always keep to it."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp(), x.sin()

    class Careless(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.exp(), x.sin().t().contiguous().t()

    x = torch.randn(3, 4)
    traced = torch.fx.experimental.proxy_tensor.make_fx(program, tracing_mode="fake")(x)
    captured = capture(traced, [x], private=1)
    first, kept = AsTraced(Careless(), captured)([x])
    assert kept.stride() == (4, 1)
    assert torch.equal(kept, x.sin()) and torch.equal(first, x.exp())


# --- what a program may do


def in_place(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    y[0].add_(x[0])
    return torch.tanh(x + y)


def views(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.exp(x)
    return y, y[1:], y.t(), x.t(), x


@pytest.mark.parametrize("program", [in_place, views])
def test_mutation_and_aliases(program: Callable[..., Any]):
    held = Held(program)
    count = program.__code__.co_argcount
    for _ in range(2):
        given = [torch.randn(3, 4) for _ in range(count)]
        exact = [tensor.clone() for tensor in given]
        results, expected = held(*given), program(*exact)
        torch.testing.assert_close([results, given], [expected, exact])
        if program is views:
            results[1].zero_()
            assert torch.equal(results[0][1:], results[1]) and results[3]._base is given[0]
        held.finish()


def test_sizes_that_change():
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.softmax(x, -1).cumsum(0), (x.view(-1) * x.shape[0]).sum()

    held = Held(program, dynamic=True)
    for rows in (3, 5, 7, 11):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(held(x), program(x))
        if rows == 5:
            held.finish()
    assert held.compiled == ["inference"]


def test_sizes_that_change_in_training():
    held = Held(lambda x, w: torch.tanh(x @ w).t() * w.sum(), dynamic=True)
    w = torch.randn(6, 4, requires_grad=True)
    for rows in (3, 5, 7, 11):
        x = torch.randn(rows, 6)
        result = held(x, w)
        if rows == 7:
            held.finish()
        found = torch.autograd.grad(result.sum(), w)
        expected = torch.autograd.grad((torch.tanh(x @ w).t() * w.sum()).sum(), w)
        torch.testing.assert_close(found, expected)
    assert sorted(held.compiled) == ["backward", "forward"]


def test_autocast_and_no_grad():
    held, x, w = Held(lambda x, w: torch.softmax(x @ w, -1)), torch.randn(4, 8), torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        first = held(x, w)
        held.finish()
        torch.testing.assert_close(held(x, w), first)


def test_verify_looks_at_compiled_calls():
    held, x = Held(softmax, verify=True), torch.randn(6, 9)
    first = held(x)
    held.finish()
    torch.testing.assert_close(held(x), first)


def test_explain_waits_for_nothing():
    report = hemstitch.explain(softmax, torch.randn(6, 9), options={"asynchronous": True})
    assert report.kernel_count == 1 and "asynchronous=True" in report.options


def test_not_together_with_cuda_graphs():
    with pytest.raises(OptionError, match="exclude each other"):
        Options.parse({"asynchronous": True, "cuda_graphs": True})


# --- failures


@pytest.fixture
def _no_plans(monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("no plan today")

    monkeypatch.setattr("hemstitch.pipeline.planned", refuse)


@pytest.mark.usefixtures("_no_plans")
def test_a_failure_is_told_once_and_calls_go_on():
    held, x = Held(softmax), torch.randn(6, 9)
    held(x)
    held.finish()
    with pytest.warns(GraphWarning, match=r"H008.*no plan today"):
        held(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(held(x), softmax(x))


@pytest.mark.usefixtures("_no_plans")
def test_strict_raises_at_every_later_call():
    held, x = Held(softmax, strict=True), torch.randn(6, 9)
    torch.testing.assert_close(held(x), softmax(x))
    held.finish()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no plan today"):
            held(x)


def test_strict_raises_what_a_kernel_could_not_be_built_for(monkeypatch):
    def refuse(helpers: Helpers, text: str) -> None:
        raise RuntimeError("no code today")

    held, x = Held(softmax, strict=True), torch.randn(6, 9)
    held(x)
    native.LOADED.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Helpers, "compiled", refuse)
        held.finish()
    with pytest.raises(KernelBuildError, match="no code today"):
        held(x)


def test_what_cannot_be_captured_is_told_at_once(monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("no capture today")

    monkeypatch.setattr("hemstitch.driver.compiler.capture", refuse)
    held, x = Held(softmax), torch.randn(6, 9)
    with pytest.warns(GraphWarning, match="no capture today"):
        torch.testing.assert_close(held(x), softmax(x))
    assert held.jobs == []


# --- threads and processes


class Forbidden(TorchDispatchMode):
    """No operation of torch runs, on fake tensors or real ones."""

    def __torch_dispatch__(self, func: Any, *_: Any) -> Any:
        raise AssertionError(f"{func} outside the thread that traces")


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_job_leaves_torch_alone(dynamic: bool):
    """Neither traced tensors nor symbolic sizes may be touched by two threads."""
    held = Held(several, dynamic=dynamic)
    held(torch.randn(4, 5, requires_grad=True), torch.randn(5, 6))[0].sum().backward()
    assert len(held.jobs) == 2
    with Forbidden():
        held.finish()
    assert sorted(held.compiled) == ["backward", "forward"]


OF_THE_TRACE = (FakeTensor, ShapeEnv, torch.SymInt, torch.fx.Node, sympy.Basic)
OF_NO_GRAPH = (type, ModuleType, FunctionType, torch._ops.OpOverload)  # they lead everywhere


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_captured_graph_has_nothing_of_the_trace(dynamic: bool):
    graphs = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Any:
        return compile_with(
            gm, inputs, Options(cache=False), lambda _, c: graphs.append(c.captured)
        )

    function = torch.compile(several, backend=backend, dynamic=dynamic)
    function(torch.randn(4, 5, requires_grad=True), torch.randn(5, 6))[0].sum().backward()
    seen: dict[int, object] = {}
    waiting: list[Any] = [(graph.graph, graph.builder, graph.returns) for graph in graphs]
    while waiting:
        value = waiting.pop()
        if id(value) not in seen and not isinstance(value, OF_NO_GRAPH):
            assert not isinstance(value, OF_THE_TRACE)
            seen[id(value)] = value
            waiting += gc.get_referents(value)
    assert len(graphs) == 2 and len(seen) > 100


def test_threads_call_while_it_changes():
    held, x = Held(softmax), torch.randn(64, 48)
    expected = held(x)
    start, wrong = threading.Barrier(9), []

    def work() -> None:
        start.wait()
        for _ in range(50):
            if not torch.allclose(held.function(x), expected, atol=1e-6):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    start.wait()
    held.finish()
    for thread in threads:
        thread.join()
    assert not wrong and held.compiled == ["inference"]


def test_the_worker_takes_jobs_in_turn():
    done: list[int] = []
    end = threading.Event()
    mine = BackgroundThread()
    for number in range(5):
        mine.submit(lambda number=number: done.append(number))
    mine.submit(end.set)
    assert end.wait(60) and done == [0, 1, 2, 3, 4]


def test_the_worker_of_the_process_compiles():
    function = torch.compile(softmax, backend="hemstitch", options={"asynchronous": True})
    x, end = torch.randn(6, 9), threading.Event()
    first = function(x)
    submit_to_worker(end.set)
    assert end.wait(60) and "aten::tanh" not in operations(function, x)
    torch.testing.assert_close(function(x), first)


def test_a_graph_that_is_gone_is_not_compiled():
    jobs: list[Job] = []
    made: list[int] = []
    deferred = Deferred(list, lambda: made.append(1) or list, jobs.append, strict=False)
    del deferred
    jobs.pop()()
    assert not made


def test_after_a_fork_the_graph_is_taken_up_again(monkeypatch):
    jobs: list[Job] = []
    deferred = Deferred(list, lambda: tuple, jobs.append, strict=False)
    deferred([1])
    assert len(jobs) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert [deferred([1]), deferred([1])] == [[1], [1]]
    assert len(jobs) == 2
    jobs.pop()()
    assert deferred([1]) == (1,)


def forever(started: threading.Event) -> None:
    started.set()
    while True:
        pass


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_worker_ends_where_the_process_does(is_busy):
    worker, started = BackgroundThread(), threading.Event()
    if is_busy:
        worker.submit(partial(forever, started))
        assert started.wait(20)
    worker.close()
    worker._thread.join(20)  # a second may be short where much else runs
    assert not worker._thread.is_alive()


START = """
import os, sys, threading, torch
from hemstitch.backend import compile_with
from hemstitch.options import Options
from hemstitch.driver.background import submit_to_worker
torch.set_num_threads(1)
def program(x):
    return torch.softmax(torch.tanh(x) * 2, -1)
compiled = []
def backend(gm, inputs):
    options = Options(asynchronous=True, cache=False)
    return compile_with(gm, inputs, options, lambda *_: compiled.append(1))
function = torch.compile(program, backend=backend)
x = torch.randn(6, 9)
expected = program(x)
"""
# Each in a child, as a process takes long to start.
CHILDREN = """
for script in sys.argv[1:]:
    child = os.fork()
    if not child:
        exec(script)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
GRAPHS_WAIT = "submit_to_worker(threading.Event().wait); function(x)"
ONE_IS_COMPILED = "function(x)"
A_CHILD_COMPILES = """
submit_to_worker(threading.Event().wait)  # the parent never comes to it
function(x)
child = os.fork()
end = threading.Event()
assert torch.allclose(function(x), expected)
if not child:
    submit_to_worker(end.set)
    is_right = end.wait(200) and compiled and torch.allclose(function(x), expected)
    os._exit(0 if is_right else 3)
assert not compiled
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_processes_end_and_children_compile_by_themselves():
    scripts = [GRAPHS_WAIT, ONE_IS_COMPILED, A_CHILD_COMPILES]
    command = [sys.executable, "-c", START + CHILDREN, *scripts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["0"] * 3, "")
