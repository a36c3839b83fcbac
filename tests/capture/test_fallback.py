"""A fault anywhere in the compiler, or in what calls its graphs, leaves the program as it is."""

from __future__ import annotations

import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hemstitch
from hemstitch.driver import cpu_kernels as native
from hemstitch.errors import HemstitchWarning
from tests.effort import IS_WHOLE

SOURCES = str(Path(hemstitch.__file__).parent)
A_MODULE, DRAWN = 2, 6
KINDS = (
    *(RuntimeError, AssertionError, KeyError, MemoryError, RecursionError, OSError),
    *(TypeError, IndexError, NotImplementedError, ZeroDivisionError),
)
# What PyTorch itself calls, around which nothing of ours stands, and the fallback and its warning.
OUTERMOST = (
    *("hemstitch.backend.hemstitch", "hemstitch.backend.compile_with", "hemstitch.errors."),
    *("hemstitch.fallback.", "hemstitch.calls.as_traced.AsTraced."),
    *("hemstitch.backend._GraphCompiler.__call__", "hemstitch.joint.partition.partition"),
    "hemstitch.calls.direct_calls.Hemstitch.backward",
    # What Python calls for an object that is gone, where it prints an exception and goes on.
    *(
        "hemstitch.runtime.workspace.BlockPool._trim",
        "hemstitch.runtime.recycling.RecycledBlocks.trim",
    ),
    # What is not begun ahead is done in its turn.
    "hemstitch.toolchain.llvm_workers.Helpers.begin",
)
# Entered where a kernel is built that is not known.
OF_KERNELS = (
    *("hemstitch.targets.", "hemstitch.kernel_ir.", "hemstitch.matmul.lowering."),
    *("hemstitch.toolchain.", "hemstitch.cache.", "hemstitch.driver.", "hemstitch.runtime."),
)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 12), nn.LayerNorm(12), nn.Linear(12, 8)
        self.along = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(self.norm(F.gelu(self.first(x)))).softmax(-1) + x
        y = self.along(y)
        return (y * y.sigmoid()).sum()


Program = Callable[[Callable[..., Any] | None], list[Tensor]]


@pytest.fixture(scope="module")
def program() -> Program:
    """Two steps of training and a call without gradients: their results, compiled if so asked."""
    torch.manual_seed(0)
    network, x = Network(), torch.randn(3, 4, 8)
    parameters = [*network.parameters()]

    def run(compile_: Callable[..., Any] | None) -> list[Tensor]:
        torch._dynamo.reset()
        function = network if compile_ is None else compile_(network)
        results = []
        for _ in range(2):
            loss = function(x)
            results += [loss.detach(), *torch.autograd.grad(loss, parameters)]
        with torch.no_grad():
            return [*results, function(x)]

    return run


def compiled(network: nn.Module) -> Any:
    options = {"strict": False, "check": False, "cache": False}
    return torch.compile(network, backend="hemstitch", options=options)


def functions() -> Mapping[CodeType, tuple[str, FunctionType]]:
    """Of all modules, and of their classes."""
    known: dict[CodeType, tuple[str, FunctionType]] = {}
    for name, module in [*sys.modules.items()]:
        if name.startswith("hemstitch."):
            for key, value in vars(module).items():
                owners = vars(value).items() if isinstance(value, type) else [("", value)]
                for attribute, member in owners:
                    function = _function(member)
                    if function is not None and function.__module__ == name:
                        path = f"{name}.{key}.{attribute}".rstrip(".")
                        known[function.__code__] = path, function
    return known


def _function(member: Any) -> FunctionType | None:
    if isinstance(member, property):
        member = member.fget
    member = getattr(member, "__func__", member)
    member = getattr(member, "__wrapped__", member)
    return member if isinstance(member, FunctionType) else None


def entered(run: Callable[[], object]) -> list[tuple[str, FunctionType]]:
    """What a run calls, in the order of the first calls."""
    codes: dict[CodeType, None] = {}

    def look(frame: Any, event: str, _: object) -> None:
        if event == "call":
            codes.setdefault(frame.f_code)

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    known = functions()
    return [known[code] for code in codes if code in known and _is_ours(code)]


def _is_ours(code: CodeType) -> bool:
    """Generated methods of data classes are; what enumerations share is Python's."""
    return code.co_filename.startswith(SOURCES) or code.co_filename == "<string>"


def drawn(called: Sequence[tuple[str, FunctionType]]) -> list[tuple[str, FunctionType]]:
    """The same in each run: some of each module, of which few are tried by default."""
    of_module = defaultdict(list)
    for path, function in called:
        if not path.startswith(OUTERMOST):
            of_module[function.__module__].append((path, function))
    draw = random.Random(57)
    some = [draw.sample(each, min(A_MODULE, len(each))) for each in of_module.values()]
    return [*chain(*some)] if IS_WHOLE else draw.sample([*chain(*some)], DRAWN)


@contextmanager
def fault(function: FunctionType, kind: type[Exception]) -> Iterator[list[None]]:
    """The function raises. Gives a list with an entry for each time it did."""
    raised: list[None] = []

    def injected() -> Exception:
        raised.append(None)
        return kind("injected")

    code, names = function.__code__, {}
    exec("def raises(*_, **__): raise __import__('sys').modules['hemstitch fault']()", names)
    sys.modules["hemstitch fault"] = injected  # type: ignore[assignment]
    function.__code__ = names["raises"].__code__.replace(co_freevars=code.co_freevars)
    try:
        yield raised
    finally:
        function.__code__ = code
        del sys.modules["hemstitch fault"]


def test_a_fault_anywhere_leaves_the_program_as_it_is(program: Program) -> None:
    expected = program(None)
    program(compiled)  # imports what is imported late
    native.LOADED.clear()
    broken, silent = [], []
    for number, (path, function) in enumerate(drawn(entered(lambda: program(compiled)))):
        kind = KINDS[number % len(KINDS)]
        with warnings.catch_warnings(record=True) as caught, fault(function, kind) as raised:
            warnings.simplefilter("always")
            if path.startswith(OF_KERNELS):
                native.LOADED.clear()
            try:
                results = program(compiled)
                torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-5)
            except Exception as error:
                broken.append((path, kind.__name__, str(error)[:300]))
        told = [each for each in caught if isinstance(each.message, HemstitchWarning)]
        if raised and not told:
            silent.append((path, kind.__name__))
    assert not broken
    assert not silent


def test_dynamo_may_trace_once_more() -> None:
    """It says so by an exception, which is no failure: a number that was a symbol is a constant."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, scale: x * scale + 1, backend="hemstitch", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HemstitchWarning)
        for scale in (0.5, 0.25, 0.125):
            x = torch.randn(5)
            torch.testing.assert_close(compiled(x, scale), x * scale + 1)


def test_what_fails_runs_as_dynamo_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as it was rewritten before PyTorch traced it."""

    def refuse(**_: object) -> None:
        raise RuntimeError("refused")

    def program(x: Tensor) -> Tensor:
        y = F.interpolate(x.cumprod(1), scale_factor=2) * x.prod(1, keepdim=True).prod()
        y[y > 1] = 0.5
        return y

    backend = sys.modules["hemstitch.backend"]
    graphs: list[torch.fx.GraphModule] = []
    monkeypatch.setattr(backend, "aot_autograd", refuse)
    monkeypatch.setattr(backend, "by_pytorch", lambda gm, _: graphs.append(gm) or gm.forward)
    x = torch.rand(2, 3, 4).requires_grad_()
    torch._dynamo.reset()
    with pytest.warns(HemstitchWarning, match="refused"):
        result = torch.compile(program, backend="hemstitch", options={"strict": False})(x)
    torch.testing.assert_close(result, program(x))
    targets = [node.target for gm in graphs for node in gm.graph.nodes if callable(node.target)]
    assert targets and not any("hemstitch" in target.__module__ for target in targets)
