"""What `where` chooses from is made in all lanes: LLVM folds no choice into a load."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from hemstitch.driver.cpu_kernels import program_of
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.cpu.elementwise import apply
from hemstitch.targets.cpu.emitter import PORTABLE, Emitter, Features, Value
from hemstitch.targets.cpu.instruction_sets import AVX512
from hemstitch.toolchain.jit import assembly, host_target, threads_now
from tests.compiled import plans_of


@pytest.mark.parametrize(
    ("features", "type_", "element", "fences"),
    [
        (AVX512, DType.F32, "float", 2),
        (AVX512, DType.F64, "double", 2),
        (AVX512, DType.I32, "i32", 2),
        (AVX512, DType.I64, "i64", 2),
        (AVX512, DType.BOOL, "i1", 0),  # no load: bits of a mask
        (PORTABLE, DType.F32, "float", 0),
    ],
)
def test_both_of_its_values_are_fenced(
    features: Features, type_: DType, element: str, fences: int
) -> None:
    e = Emitter(8, features)
    vector = e.vector(element)
    mask, x, y = Value("%m", "<8 x i1>"), Value("%x", vector), Value("%y", vector)
    chosen = apply(e, Op.WHERE, type_, mask, x, y)
    assert chosen.type == vector
    assert sum("arithmetic.fence" in line for line in e.lines) == fences


def test_constants_are_not() -> None:
    e = Emitter(8, AVX512)
    x, zero = Value("%x", "<8 x float>"), Value("zeroinitializer", "<8 x float>")
    apply(e, Op.WHERE, DType.F32, Value("%m", "<8 x i1>"), x, zero)
    assert sum("arithmetic.fence" in line for line in e.lines) == 1


@pytest.mark.skipif(not host_target().features.avx512, reason="a host with AVX-512")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_no_load_of_the_machine_code_has_a_mask(dtype: torch.dtype) -> None:
    def gate(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.where(x > 0, y * z, z)

    arguments = [torch.empty(4096, dtype=dtype) for _ in range(3)]
    ((_, plan),) = plans_of(gate, arguments, generic_cpu(1, 16))
    (text,) = (assembly(program_of(step, threads_now()).text) for step in plan.kernels)
    loads = [line for line in text.splitlines() if re.search(r"\(%r\w+,%r\w+,\d\), %[zy]mm", line)]
    assert loads
    assert not [line for line in loads if "{%k" in line]
