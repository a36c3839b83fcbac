"""Outside the emulator Triton is as it was: nothing stays changed, and kernels compile."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton")

import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from testing.emulator import Checks, OutOfBoundsError, emulate
from tests.emulator import kernels

H100 = GPUTarget("cuda", 90, 32)
BUFFERS = {"out": "*fp32", "semaphore": "*i32", "x": "*fp32", "partial": "*fp32", "column": "*fp32"}


def snapshot() -> dict[object, object]:
    owners = [
        *(m for name, m in sys.modules.items() if name.split(".")[0] == "triton"),
        *(tl.tensor, tl.dtype, tl.core.tensor_descriptor_base, JITFunction),
        *(interpreter.InterpreterBuilder, interpreter.ReduceOps, libdevice, kernels),
        *([tl.condition] if hasattr(tl, "condition") else []),
    ]
    return {
        (str(owner), name): value
        for owner in owners
        for name, value in vars(owner).items()
        if name != "__warningregistry__"
    }


def scale(n: int) -> dict[str, object]:
    return {"x": torch.ones(64), "out": torch.empty(64), "n": n, "factor": 2.0, "BLOCK": 64}


def test_nothing_stays_changed() -> None:
    emulate(kernels.scaled, 1, scale(64))  # what Triton itself keeps of the first use
    before = snapshot()
    emulate(kernels.scaled, 1, scale(64), checks=Checks())
    with pytest.raises(OutOfBoundsError):
        emulate(kernels.scaled, 2, scale(65))
    with pytest.raises(AssertionError, match="on purpose"):
        emulate(kernels.fails, 1, {"out": torch.empty(1), "FAILS": True})
    with pytest.raises(TypeError, match="no_such_name"):
        emulate(kernels.scaled, 1, scale(64) | {"no_such_name": 1})
    after = snapshot()
    assert before.keys() == after.keys()
    assert [key for key in before if before[key] is not after[key]] == []


def test_a_kernel_is_no_function_outside() -> None:
    emulate(kernels.scaled, 1, scale(64))
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        kernels.scaled(1)


def test_an_error_says_where_in_the_kernel() -> None:
    with pytest.raises(OutOfBoundsError) as caught:
        emulate(kernels.scaled, 2, scale(65))
    where = caught.value.where
    assert where is not None and Path(where.file).name == "kernels.py"
    assert where.source.strip().startswith("tl.store(out + i, tl.load(x + i, mask=mask) * factor")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("cache")
def test_the_same_kernel_compiles_after_it_was_emulated() -> None:
    constants = {"PROGRAMS": 4, "BLOCK": 32, "PADDED": 4, "BARRIERS": 2}
    tensors = {"x": torch.rand(5, 20), "out": torch.empty(5, 20), "partial": torch.empty(4, 20)}
    rest = {
        "column": torch.empty(20),
        "semaphore": torch.zeros(1, dtype=torch.int32),
        "M": 5,
        "N": 20,
    }
    kernel = kernels.row_column_elementwise
    emulate(kernel, 4, tensors | rest | constants, checks=Checks())
    signature = BUFFERS | {"M": "i32", "N": "i32"} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constants)
    options = {"enable_fp_fusion": True, "launch_cooperative_grid": True}
    compiled = triton.compile(source, target=H100, options=options)
    assert "ld.acquire.gpu" in compiled.asm["ptx"] or "acquire" in compiled.asm["ptx"]
    assert compiled.asm["ptx"].count("atom.") + compiled.asm["ptx"].count("red.") >= 2
    emulate(kernel, 4, tensors | rest | constants, checks=Checks())


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("operation", ["maximum", "clamp", "fma"])
def test_what_the_compiler_remembers_of_the_language_is_the_real_one(operation: str) -> None:
    """Its tables hold `tl.minimum` and `tl.maximum` of the time when it is first imported."""
    x, out = torch.ones(64), torch.empty(64)
    constants = {"OPERATION": operation, "BLOCK": 64}
    emulate(kernels.selection, 1, {"x": x, "y": x, "out": out} | constants)
    signature = {
        "x": "*fp32",
        "y": "*fp32",
        "out": "*fp32",
        "OPERATION": "constexpr",
        "BLOCK": "constexpr",
    }
    source = ASTSource(kernels.selection, signature, constants)
    assert triton.compile(source, target=H100).asm["cubin"]


def test_threads_take_turns() -> None:
    def run(number: int) -> bool:
        arguments = scale(64) | {"factor": float(number)}
        emulate(kernels.scaled, 1, arguments)
        return bool((arguments["out"] == number).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(24)))
