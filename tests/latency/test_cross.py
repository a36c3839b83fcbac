"""Kernels compile for GPUs that are not there, and say why where they do not."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

pytest.importorskip("triton")

from hemstitch.errors import KernelBuildError
from hemstitch.latency.disassembly import disassemble
from hemstitch.toolchain.triton_cross import LANGUAGE_LOCK, build_for, compile_for, tools_folder
from tests.latency import kernels
from tests.latency.cubins import COPY, PARTIAL, SUMS, compiled

REFUSED = {"source": "*fp32", "result": "*fp32"}


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_nvidia(target: str) -> None:
    result = compiled(kernels.row_sums, SUMS, {"N": 1024, "PROGRAMS": 132}, target)
    assert (result.name, result.target, result.warps) == ("row_sums", target, 4)
    assert f".target {target}" in result.assembly
    assert 0 < result.shared_bytes < 1024 and not result.cooperative
    assert disassemble(result.binary, tools_folder()).target == target


def test_amd() -> None:
    result = compiled(kernels.row_sums, SUMS, {"N": 1024, "PROGRAMS": 132}, "gfx942")
    assert result.binary.startswith(b"\x7fELF") and "gfx942" in result.assembly


def test_cooperative_is_kept() -> None:
    constants = {"N": 1024, "PROGRAMS": 132, "WAIT": True}
    assert compiled(kernels.centre, PARTIAL, constants, cooperative=True).cooperative


def test_a_kernel_that_does_not_compile_says_why_and_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(KernelBuildError, match=r"copy does not compile for sm_90.*power of 2"):
        compile_for(kernels.copy, COPY, {"BLOCK": 1000}, "sm_90", warps=4)
    with pytest.raises(KernelBuildError, match=r"refused does not compile for sm_90.*ptxas"):
        compile_for(kernels.refused, REFUSED, {"BLOCK": 1024}, "sm_90", warps=4)
    assert capfd.readouterr().out == ""


def test_threads_compile_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, meeting = sys.stdout, threading.Barrier(4, timeout=30)

    def compile(*_: object, **__: object) -> None:
        meeting.wait()
        sys.stdout.write("the compiler\n")

    monkeypatch.setattr("triton.compile", compile)
    with ThreadPoolExecutor(4) as pool:
        build = partial(build_for, kernels.copy, COPY, {"BLOCK": 64}, "sm_90", warps=4)
        assert [each.result() for each in [pool.submit(build) for _ in range(8)]] == [None] * 8
    assert sys.stdout is before and capsys.readouterr().out == ""


def test_nothing_compiles_while_the_language_is_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []
    monkeypatch.setattr("triton.compile", lambda *_, **__: happened.append("compiled"))
    with ThreadPoolExecutor(1) as pool:
        with LANGUAGE_LOCK.exclusive():
            build = partial(build_for, kernels.copy, COPY, {"BLOCK": 64}, "sm_90", warps=4)
            begun = pool.submit(build)
            time.sleep(0.05)
            happened.append("as before")
        begun.result()
    assert happened == ["as before", "compiled"]


def test_others_may_print_while_a_kernel_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile(*_: object, **__: object) -> None:
        sys.stdout.write("the compiler\n")
        other = threading.Thread(target=lambda: sys.stdout.write("the program\n"))
        other.start()
        other.join()

    monkeypatch.setattr("triton.compile", compile)
    build_for(kernels.copy, COPY, {"BLOCK": 64}, "sm_90", warps=4)
    assert capsys.readouterr().out == "the program\n"


def test_fused_multiply_add_is_a_choice() -> None:
    constants = {"N": 1024, "BM": 1, "PROGRAMS": 132}
    options = {"target": "sm_90", "warps": 4}
    texts = [
        compile_for(kernels.column_sums, SUMS, constants, fuse_multiply_add=fuse, **options)
        for fuse in (True, False)
    ]
    counts = [
        sum(row.base == "FFMA" for row in disassemble(text.binary, tools_folder()).instructions)
        for text in texts
    ]
    assert counts[0] > counts[1]


def test_an_unknown_target() -> None:
    with pytest.raises(ValueError, match='no target "rtx"'):
        compile_for(kernels.copy, COPY, {"BLOCK": 1024}, "rtx", warps=4)
