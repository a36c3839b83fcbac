"""Printed kernels compile for GPUs that are not there, and the lint has nothing to say. For all
workloads: `python -m benchmarks.machine_code`."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

from benchmarks.cases import CASES
from benchmarks.machine_code import PROGRAMS, compiled_for, programs_of, verdict
from benchmarks.products import PRODUCTS
from hemstitch.latency.disassembly import disassemble
from hemstitch.latency.loops import find_loops
from hemstitch.latency.ptx import parse_ptx
from hemstitch.measure.gpu_estimate import trips
from hemstitch.targets.gpu.description import generic_gpu
from hemstitch.toolchain.triton_cross import tools_folder
from tests.compiled import plans_of
from tests.effort import some
from tests.lowered import triton

NAMES = (
    *("layer norm", "softmax + dropout", "rows, columns, elementwise", "where on a mask"),
    "cross entropy, label smoothing",
    *("attention, short rows", "linear + GELU + residual", "linear + residual + layer norm"),
)
ROWS = 4096
SOME = some(["sm_90", "gfx942"], ["sm_80"])


@pytest.fixture(scope="module")
def programs():
    """By workload: of forward and backward."""
    cases = (case for case in (*CASES, *PRODUCTS) if case.name in NAMES)
    return {case.name: programs_of(case, ROWS) for case in cases}


@pytest.mark.parametrize("target", SOME)
@pytest.mark.parametrize("name", NAMES)
def test_the_lint_has_nothing_to_say(programs, name, target):
    for program in programs[name]:
        lint = verdict(target, program)
        assert not lint.findings, str(lint)


def test_a_loss_ends_with_a_ticket(programs):
    forward = programs["cross entropy, label smoothing"][0]
    assert (forward.barriers, forward.text.count("device.is_last")) == (0, 1)


def test_column_sums_beside_rows_are_one_launch_with_a_barrier(programs):
    [_, backward] = programs["layer norm"]
    assert (backward.barriers, backward.text.count("device.grid_barrier")) == (1, 1)


@pytest.fixture(scope="module")
def gates():
    """A kernel in bf16 with two functions, and what it is compiled to."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * torch.tanh(y) + x

    tensors = [torch.zeros(4096, 1024, dtype=torch.bfloat16) for _ in range(2)]
    ((_, plan),) = plans_of(function, tensors, generic_gpu())
    ((kernel, hint),) = [(s.stitched.kernel, s.groups[0].hint) for s in plan.kernels]
    program = triton(kernel, hint, PROGRAMS)
    return program, compiled_for(program, "sm_90")


def test_rounding_takes_no_turn_of_the_unit_that_computes_exp(gates):
    """Of bf16: two elements at once, by an instruction of its own."""
    _, compiled = gates
    names = [i.opcode for i in disassemble(compiled.binary, tools_folder()).instructions]
    stores = sum(name.startswith("STG") and name.endswith("128") for name in names)
    elements = 8 * stores  # of a thread
    by_special = [name for name in names if name.startswith(("MUFU", "F2F."))]
    assert len(by_special) == 4 * elements > 0, by_special  # an exp and a quotient in each of two


def test_a_quotient_is_no_sign_of_an_unrolled_loop(gates):
    """The unit that computes exp has an instruction for it, too."""
    program, compiled = gates
    code = disassemble(compiled.binary, tools_folder())
    loops = find_loops(code, trips(program, code, (), 4), parse_ptx(compiled.assembly))
    assert [loop.unrolled for loop in loops if loop.line is not None] == [1]


@pytest.mark.parametrize("target", SOME)
@pytest.mark.parametrize("dtype", some([torch.bfloat16], [torch.float32]), ids=str)
def test_rows_that_are_walked_once_stay_in_registers(dtype, target):
    def attention(q, k, v, mask):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.125 + mask, -1) @ v

    tensors = [torch.zeros(2, 12, 1024, 64, dtype=dtype) for _ in range(3)]
    mask = torch.zeros(2, 1, 1024, 1024, dtype=dtype)
    ((_, plan),) = plans_of(attention, [*tensors, mask], generic_gpu())
    ((kernel, hint),) = [(s.stitched.kernel, s.groups[0].hint) for s in plan.kernels]
    lint = verdict(target, triton(kernel, hint, PROGRAMS))
    assert not lint.findings, str(lint)
