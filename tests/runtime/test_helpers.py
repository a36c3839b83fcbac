"""Kernels compiled by helper processes: the same functions, whatever becomes of the helpers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from hemstitch.errors import KernelBuildWarning
from hemstitch.options import Options
from hemstitch.runtime import helpers, native, objects
from hemstitch.runtime.helpers import Helpers

TEXTS = [f"define i32 @f{n}() {{\n  ret i32 {n}\n}}\n" for n in range(6)]
BAD = "define nothing"


@pytest.fixture
def alone():
    """The texts that this process compiles itself."""
    texts = []

    def compiled(text):
        texts.append(text)
        return objects.compiled(text)

    compiled.texts = texts
    return compiled


@pytest.fixture(autouse=True)
def _own_kernels():
    torch._dynamo.reset()
    native.LOADED.clear()
    yield
    native.LOADED.clear()


def begun(most, alone, texts=TEXTS):
    found = Helpers(most, alone)
    for text in texts:
        found.begin(text)
    return found


@pytest.mark.parametrize("most", [1, 3])
def test_the_same_code_as_here(most, alone):
    with closing(begun(most, alone)) as found:
        assert [found.compiled(text) for text in TEXTS] == [objects.compiled(t) for t in TEXTS]
        assert len(found._processes) <= most
    assert alone.texts == []


def test_what_was_not_begun_is_compiled_here(alone):
    with closing(begun(1, alone, [])) as found:
        assert found.compiled(TEXTS[0]) == objects.compiled(TEXTS[0])
        assert found._processes == []
    assert alone.texts == TEXTS[:1]


def test_what_llvm_refuses_is_told_as_here(alone):
    with closing(begun(1, alone, [BAD, *TEXTS])) as found:
        with pytest.raises(RuntimeError) as there:
            found.compiled(BAD)
        assert found.compiled(TEXTS[0]) == objects.compiled(TEXTS[0])
    with pytest.raises(RuntimeError) as here:
        objects.compiled(BAD)
    assert str(there.value) == str(here.value)


def test_a_helper_that_is_gone_is_made_up_for(alone):
    with closing(begun(1, alone, TEXTS[:1])) as found:
        found.compiled(TEXTS[0])
        os.kill(found._processes[0].pid, signal.SIGKILL)
        found._processes[0].wait()
        for text in TEXTS:
            found.begin(text)
        assert [found.compiled(text) for text in TEXTS] == [objects.compiled(t) for t in TEXTS]
    assert alone.texts == TEXTS


def test_a_helper_that_cannot_start_is_made_up_for(alone, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with closing(begun(2, alone)) as found:
        assert [found.compiled(text) for text in TEXTS] == [objects.compiled(t) for t in TEXTS]
    assert alone.texts == TEXTS


def test_they_end_with_their_graph(alone):
    found = begun(2, alone, TEXTS * 50)
    found.compiled(TEXTS[0])
    found.close()
    assert all(process.returncode is not None for process in found._processes)


def many_kernels(x):
    """No kernel sorts."""
    for number in range(native.FEW + 2):
        x = (x * (number + 2)).sort(0).values
    return x.sin()


@pytest.fixture
def started(monkeypatch):
    found = []

    class Counted(Helpers):
        def close(self):
            found.extend(self._processes)
            super().close()

    monkeypatch.setattr(native, "Helpers", Counted)
    return found


@pytest.mark.parametrize("cache", [False, True])
def test_a_graph_of_many_kernels(started, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {"strict": True, "pack": False, "cache": cache}
    x = torch.randn(7, 9)
    found = torch.compile(many_kernels, backend="hemstitch", options=options)(x)
    torch.testing.assert_close(found, many_kernels(x))
    assert 1 <= len(started) <= torch.get_num_threads()
    started.clear()
    torch._dynamo.reset()
    native.LOADED.clear()
    torch.compile(many_kernels, backend="hemstitch", options=options)(x)
    assert bool(started) != cache


def test_none_in_the_background_while_kernels_are_timed_or_for_few(monkeypatch):
    """Whoever opens a helper fails."""
    monkeypatch.setattr(native, "Helpers", None)
    many, few = [None] * native.FEW, [None] * (native.FEW - 1)
    for options in ({"asynchronous": True}, {"tune": True}):
        with native.native(many, Options(cache=False, **options)):
            pass
    with native.native(few, Options(cache=False)):
        pass
    with pytest.raises(TypeError), native.native(many, Options(cache=False)):
        pass


def test_none_where_there_is_no_python_to_start(monkeypatch):
    assert helpers.may_start()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "frozen", True, raising=False)
        assert not helpers.may_start()
    monkeypatch.setattr(sys, "executable", "")
    assert not helpers.may_start()


def test_a_kernel_that_llvm_refuses_runs_through_the_library(monkeypatch):
    original = native.program_of

    def spoilt(step, *more):
        return replace(original(step, *more), text=BAD)

    monkeypatch.setattr(native, "program_of", spoilt)
    x = torch.randn(7, 9)
    with pytest.warns(KernelBuildWarning):
        found = torch.compile(many_kernels, backend="hemstitch", options={"pack": False})(x)
    torch.testing.assert_close(found, many_kernels(x))


def test_the_users_main_module_runs_once(tmp_path):
    program = tmp_path / "main.py"
    program.write_text(
        "import torch\n"
        "from tests.runtime.test_helpers import many_kernels\n"
        "print('main')\n"
        "options = {'strict': True, 'pack': False, 'cache': False}\n"
        "torch.compile(many_kernels, backend='hemstitch', options=options)(torch.randn(7, 9))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "main\n"


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
