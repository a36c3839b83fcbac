"""Triton's compiler works in a process of its own; what ends it is not compiled here, and not
again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("triton")
from triton.compiler import ASTSource

from hemstitch.cache import crashes as killed
from hemstitch.errors import KernelBuildError
from hemstitch.runtime.gpu.loaded_kernel import build, variant_of
from hemstitch.targets.gpu.kernel import TritonProgram
from hemstitch.toolchain import llvm_workers as helpers
from hemstitch.toolchain import triton_workers as elsewhere
from tests.cuda import steps

# At the end of the kernel's text: only a worker is without PyTorch.
THERE = "\nimport ctypes, os, sys\nif 'torch' not in sys.modules:\n    "
DEADLY = {
    "crashes": ("ctypes.string_at(0)", "SIGSEGV"),
    "aborts": ("os.write(2, b'LLVM ERROR: no') and os.abort()", "SIGABRT: LLVM ERROR: no"),
    "takes memory": ("sys.stdin.write(' ' * (1 << 40))", "MemoryError"),
    "hangs": ("[0 for _ in iter(int, 1)]", "more than 1 s"),
}


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Iterator[None]:
    """And little patience."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(killed, "CRASHES", {})
    monkeypatch.setattr(elsewhere, "LIMITS", replace(helpers.LIMITS, processor_seconds=20.0))
    elsewhere.compilers.cache_clear()
    yield
    elsewhere.compilers.cache_clear()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this process compiles."""
    names: list[str] = []
    original = ASTSource.make_ir

    def make_ir(self: ASTSource, *more: object, **named: object) -> object:
        names.append(self.name)
        return original(self, *more, **named)

    monkeypatch.setattr(ASTSource, "make_ir", make_ir)
    return names


def compiled(program: TritonProgram, target: str = "sm_90") -> bytes:
    binary: bytes = build(program, variant_of(True, ()), target).asm["cubin"]
    return binary


def test_a_worker_compiles(here: list[str]) -> None:
    assert compiled(steps.pointwise())
    assert here == []


def test_where_no_process_can_be_started_this_one_compiles(
    here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert compiled(steps.pointwise())
    assert here == [steps.pointwise().entry]


def test_what_does_not_compile_is_told() -> None:
    program = steps.pointwise()
    with pytest.raises(KernelBuildError, match=f"{program.entry} does not compile for sm_90"):
        compiled(replace(program, text=program.text.replace("tl.store", "tl.nothing_at_all")))


@pytest.mark.parametrize("kind", DEADLY)
def test_what_ends_the_compiler_is_not_compiled_here(
    kind: str, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "hangs":
        monkeypatch.setattr(elsewhere, "LIMITS", replace(helpers.LIMITS, processor_seconds=1.0))
    deed, why = DEADLY[kind]
    program = steps.pointwise()
    program = replace(program, text=program.text + THERE + deed)
    with pytest.raises(KernelBuildError, match=why):
        compiled(program)
    if kind != "takes memory":  # Python survived that
        monkeypatch.setattr(
            elsewhere.WorkerClient, "ask", lambda *_: pytest.fail("it is tried again")
        )
        with pytest.raises(KernelBuildError, match=why):
            compiled(program)
    assert here == []
