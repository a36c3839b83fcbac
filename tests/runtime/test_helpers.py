"""Kernels compiled by helper processes: the same functions, whatever becomes of the helpers, and
none that ends one is compiled anywhere else."""

from __future__ import annotations

import sys
import warnings
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from hemstitch.cache import crashes as killed
from hemstitch.driver import cpu_kernels as native
from hemstitch.errors import KernelBuildWarning
from hemstitch.options import Options
from hemstitch.toolchain import llvm_objects as objects
from hemstitch.toolchain import llvm_workers as helpers
from hemstitch.toolchain.llvm_workers import Helpers, compilers
from hemstitch.workers.worker import RefusedQuestion, TookTooLong, WorkerDied

TEXTS = [f"define i32 @f{n}() {{\n  ret i32 {n}\n}}\n" for n in range(6)]
BAD = "define nothing"
MANY = 40_000


def chain(count: int) -> str:
    """LLVM takes time with the square of it."""
    rows = "".join(f"  %x{n + 1} = mul i32 %x{n}, %y\n" for n in range(count))
    return f"define i32 @f(i32 %x0, i32 %y) {{\n{rows}  ret i32 %x{count}\n}}\n"


# Texts that end LLVM, with what it says: each a way of its own.
DEADLY = {
    "aborts": (
        "declare void @llvm.amdgcn.s.barrier()\n"
        "define void @f() {\n  call void @llvm.amdgcn.s.barrier()\n  ret void\n}\n",
        "SIGABRT.*Cannot select",
    ),
    "crashes": (f"@x = external global {'[1 x ' * MANY}i8{']' * MANY}\n", "SIGSEGV"),
    "takes memory": (
        '@x = global [6000000000 x i8] zeroinitializer, section ".data"\n',
        "SIGABRT.*out of memory",
    ),
    "hangs": (chain(80_000), "more than 1 s"),
}


@pytest.fixture(autouse=True)
def _own_kernels(monkeypatch):
    torch._dynamo.reset()
    native.LOADED.clear()
    monkeypatch.setattr(killed, "CRASHES", {})
    yield
    native.LOADED.clear()


@pytest.fixture
def alone(monkeypatch):
    """The texts that this process compiles itself."""
    texts, original = [], objects.compiled

    def compiled(text):
        texts.append(text)
        return original(text)

    monkeypatch.setattr(objects, "compiled", compiled)
    return texts


@pytest.fixture
def hasty(monkeypatch):
    """Helpers that work for a second at most, in little memory."""
    compilers.cache_clear()
    monkeypatch.setattr(
        helpers, "LIMITS", replace(helpers.LIMITS, processor_seconds=1.0, memory=1 << 29)
    )
    yield
    compilers.cache_clear()


def begun(most, texts=TEXTS):
    started = Helpers(most)
    for text in texts:
        started.begin(text)
    return started


@pytest.mark.parametrize("most", [1, 3])
def test_the_same_code_as_here(most):
    here = [objects.compiled(text) for text in TEXTS]
    with closing(begun(most)) as started:
        assert [started.compiled(text) for text in TEXTS] == here
        assert 1 <= len(started._threads._threads) <= most
    with closing(begun(most, [])) as started:
        assert [started.compiled(text) for text in TEXTS] == here


def test_what_llvm_refuses_is_told_as_here():
    with closing(begun(1, [BAD, *TEXTS])) as started:
        with pytest.raises(RefusedQuestion) as there:
            started.compiled(BAD)
        assert started.compiled(TEXTS[0]) == objects.compiled(TEXTS[0])
    with pytest.raises(RuntimeError) as here:
        objects.compiled(BAD)
    assert str(there.value) == str(here.value)


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_helper_that_cannot_start_is_made_up_for(alone, monkeypatch, is_begun):
    compilers.cache_clear()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with closing(begun(2, TEXTS if is_begun else [])) as started:
        assert all(map(started.compiled, TEXTS))
    assert alone == TEXTS


@pytest.mark.parametrize("kind", DEADLY)
def test_what_ends_llvm_ends_no_more_than_a_helper(kind, alone, hasty):
    text, why = DEADLY[kind]
    with closing(begun(2, [text, *TEXTS])) as started:
        with pytest.raises(TookTooLong if kind == "hangs" else WorkerDied, match=why):
            started.compiled(text)
        assert started.compiled(TEXTS[0])
    assert alone == []


def softmax_and_sorts(x):
    return torch.softmax(x, -1).sort(0).values.cos()


@pytest.mark.parametrize("kind", DEADLY)
def test_a_kernel_that_ends_llvm_runs_through_the_library(kind, hasty, monkeypatch, tmp_path):
    """Once; then it is not tried again, also by later processes."""
    original, printed = native.program_of, []

    def spoilt(step, *more):
        program = original(step, *more)
        printed.append(program)
        return replace(program, text=DEADLY[kind][0]) if len(printed) == 1 else program

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(native, "program_of", spoilt)
    x = torch.randn(7, 9)

    def run(**more):
        torch._dynamo.reset()
        native.LOADED.clear()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", KernelBuildWarning)
            options = {"pack": False, "cache": True, **more}
            result = torch.compile(softmax_and_sorts, backend="hemstitch", options=options)(x)
        torch.testing.assert_close(result, softmax_and_sorts(x))
        return [str(warning.message) for warning in told if "H007" in str(warning.message)]

    (first,) = run()
    assert all(part in first for part in DEADLY[kind][1].split(".*"))
    monkeypatch.setattr(Helpers, "begin", lambda *_: pytest.fail("it is tried again"))
    monkeypatch.setattr(Helpers, "compiled", lambda *_: pytest.fail("it is tried again"))
    assert run() == [first]
    killed.CRASHES.clear()  # as in another process
    assert run() == [first]
    with pytest.raises(Exception, match="H006"):
        run(strict=True)


def many_kernels(x):
    """No kernel sorts."""
    for number in range(native.FEW_KERNELS + 2):
        x = (x * (number + 2)).sort(0).values
    return x.sin()


@pytest.mark.parametrize("cache", [False, True])
def test_a_graph_of_many_kernels(cache, tmp_path, monkeypatch):
    asked, ask = [], helpers.WorkerClient.ask
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(helpers.WorkerClient, "ask", lambda *more: asked.append(0) or ask(*more))
    options = {"strict": True, "pack": False, "cache": cache}
    x = torch.randn(7, 9)
    result = torch.compile(many_kernels, backend="hemstitch", options=options)(x)
    torch.testing.assert_close(result, many_kernels(x))
    assert len(asked) == native.FEW_KERNELS + 3
    asked.clear()
    torch._dynamo.reset()
    native.LOADED.clear()
    torch.compile(many_kernels, backend="hemstitch", options=options)(x)
    assert bool(asked) != cache


def test_nothing_is_begun_in_the_background_or_while_kernels_are_timed(monkeypatch):
    begun, threads = [], []

    class Counted(Helpers):
        def __init__(self, most):
            threads.append(most)
            super().__init__(most)

    monkeypatch.setattr(native, "Helpers", Counted)
    begin = lambda self, step, started: begun.append(step)  # noqa: E731
    monkeypatch.setattr(native._KnownKernels, "begin", begin)
    monkeypatch.setattr(native.jit, "threads_now", lambda: 4)
    many, few = [None] * native.FEW_KERNELS, [None] * (native.FEW_KERNELS - 1)
    for kernels, options in (
        (many, {"asynchronous": True}),
        (many, {"tune": True}),
        (few, {}),
        (many, {}),
    ):
        with native.cpu_launches(kernels, Options(cache=False, **options)):
            pass
    assert threads == [1, 1, 1, 4] and begun == [*few, *many]


def test_a_kernel_that_llvm_refuses_runs_through_the_library(monkeypatch):
    original = native.program_of

    def spoilt(step, *more):
        return replace(original(step, *more), text=BAD)

    monkeypatch.setattr(native, "program_of", spoilt)
    x = torch.randn(7, 9)
    with pytest.warns(KernelBuildWarning):
        found = torch.compile(many_kernels, backend="hemstitch", options={"pack": False})(x)
    torch.testing.assert_close(found, many_kernels(x))


def test_text_that_uses_what_is_not_there_is_refused() -> None:
    """LLVM would end the process, here or in a helper."""
    lines = (
        "define i64 @f(i1 %c) {",
        "entry:",
        "  br i1 %c, label %yes, label %no",
        "yes:",
        "  %x = add i64 1, 2",
        "  br label %no",
        "no:",
        "  ret i64 %x",
        "}",
    )
    with pytest.raises(RuntimeError, match="dominate"):
        objects.compiled("\n".join(lines))
