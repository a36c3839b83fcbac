"""Operands that several kernels multiply with are packed once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hemstitch import explain
from hemstitch.driver import cpu_kernels as native
from hemstitch.driver.cpu_kernels import program_of
from hemstitch.errors import InternalError, KernelBuildWarning
from hemstitch.kernel_ir.nodes import Role
from hemstitch.kernel_ir.verifier import verify
from hemstitch.planning.plan import KernelStep, Plan
from hemstitch.planning.prepacking import prepack
from hemstitch.planning.verifier import verify_plan
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.toolchain.jit import threads_now
from tests.compiled import plans_of
from tests.lowered import until_blocking

STEPS, ROWS, HIDDEN = 4, 6, 40
THREADS = 2
CPU = generic_cpu(THREADS, 16)

pytestmark = pytest.mark.usefixtures("kernels_multiply")


def recurrent(x: Tensor, weight: Tensor) -> Tensor:
    """Library calls keep the steps apart."""
    for _ in range(STEPS):
        x = torch.tanh(x @ weight.t()).sort(0).values
    return x


def given(weights: int = 1, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    matrices = [torch.randn(HIDDEN, HIDDEN, dtype=dtype) / 6 for _ in range(weights)]
    return [torch.randn(ROWS, HIDDEN, dtype=dtype), *matrices]


def plan_of(program: Callable[..., Tensor], arguments: Sequence[Tensor]) -> Plan:
    ((_, plan),) = plans_of(program, arguments, CPU)
    return plan


def packs(plan: Plan) -> list[tuple[int, int]]:
    """Of each kernel that has any: operands that it packs for others, and that it finds."""
    found = [(len(s.panels & set(s.writes)), len(s.panels & set(s.reads))) for s in plan.kernels]
    return [pair for pair in found if pair != (0, 0)]


def test_the_first_step_packs_for_all() -> None:
    plan = prepack(plan_of(recurrent, given()), until_blocking, THREADS).plan
    assert packs(plan) == [(1, 0)] + [(0, 1)] * (STEPS - 1)
    verify_plan(plan)
    for step in plan.kernels:
        verify(step.stitched.kernel)


def test_what_nobody_packs_is_found() -> None:
    apart = plan_of(recurrent, given())
    shared = prepack(apart, until_blocking, THREADS).plan
    wrong = replace(shared, steps=(apart.steps[0], *shared.steps[1:]))
    with pytest.raises(InternalError, match="packed twice, or never"):
        verify_plan(wrong)


def test_later_steps_neither_pack_nor_wait() -> None:
    plan = prepack(plan_of(recurrent, given()), until_blocking, THREADS).plan
    (weight,) = (t for t in plan.kernels[0].reads if t.node.shape == (HIDDEN, HIDDEN))
    first, *later = plan.kernels
    assert weight in first.reads and first.stitched.kernel.barriers == 1
    for step in later:
        kernel = step.stitched.kernel
        assert weight not in step.reads and kernel.barriers == 0
        assert not any(buffer.role is Role.SHARED for buffer in kernel.buffers)


def test_steps_are_compiled_once() -> None:
    plan = prepack(plan_of(recurrent, given()), until_blocking, THREADS).plan
    assert len({program_of(step, threads_now()).text for step in plan.kernels}) == 2


def test_what_is_packed_otherwise_or_of_another_is_not_shared() -> None:
    def program(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        for right in (first.t(), second.t(), first, first.t() * 2):
            x = torch.tanh(x @ right).sort(0).values
        return x

    plan = plan_of(program, given(2))
    assert prepack(plan, until_blocking, THREADS).plan is plan


def test_slices_of_one_tensor_are_told_apart_by_their_places() -> None:
    """The kernels are the same, bound to other places."""

    def program(x: Tensor, weight: Tensor) -> Tensor:
        for number in (0, 1, 0, 1, 1):
            x = torch.tanh(x @ weight[number].t()).sort(0).values
        return x

    arguments = [torch.randn(ROWS, HIDDEN), torch.randn(2, HIDDEN, HIDDEN) / 6]
    assert (
        packs(prepack(plan_of(program, arguments), until_blocking, THREADS).plan)
        == [(1, 0)] * 2 + [(0, 1)] * 3
    )
    found = torch.compile(program, backend="hemstitch", options={"strict": True})(*arguments)
    torch.testing.assert_close(found, program(*arguments), rtol=1e-4, atol=1e-4)


def test_twice_in_one_kernel() -> None:
    def program(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return torch.tanh(x @ weight.t()) * torch.tanh(y @ weight.t())

    arguments = [torch.randn(ROWS, HIDDEN), *given()]
    plan = prepack(plan_of(program, arguments), until_blocking, THREADS).plan
    assert len(plan.kernels) == 1 and packs(plan) == [(1, 0)]
    verify_plan(plan)
    found = torch.compile(program, backend="hemstitch", options={"strict": True})(*arguments)
    torch.testing.assert_close(found, program(*arguments), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_values(dynamic: bool) -> None:
    """In training and inference, with a weight that changes between calls."""
    torch._dynamo.reset()
    options = {"strict": True, "check": True}
    function = torch.compile(recurrent, backend="hemstitch", options=options, dynamic=dynamic)
    for _ in range(2):
        leaves = [each.requires_grad_() for each in given()]
        exact = [each.detach().double().requires_grad_() for each in leaves]
        result, wanted = function(*leaves), recurrent(*exact)
        found = [result, *torch.autograd.grad(result.square().sum(), leaves)]
        expected = [wanted, *torch.autograd.grad(wanted.square().sum(), exact)]
        for ours, theirs in zip(found, expected):
            assert float((ours - theirs).norm() / theirs.norm()) < 1e-5
        with torch.no_grad():
            torch.testing.assert_close(function(*leaves), result)


def test_values_in_half_precision() -> None:
    """A sort in between may turn equal ones round, so what is compared is the result."""
    arguments = given(dtype=torch.bfloat16)
    exact, eager = recurrent(*(each.double() for each in arguments)), recurrent(*arguments)
    found = torch.compile(recurrent, backend="hemstitch", options={"strict": True})(*arguments)
    assert float((found - exact).norm()) <= 2 * float((eager - exact).norm())


def test_bytes_count_once() -> None:
    found = explain(recurrent, *given())
    weight = 4 * HIDDEN * HIDDEN
    read = [sum(n for n in kernel.reads.values() if n >= weight) for kernel in found.kernels]
    assert len(found.kernels) == STEPS
    assert read[0] > read[1] == read[2] == read[3]


def test_a_kernel_that_cannot_be_built_takes_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one packs for all: without it each packs for itself."""
    torch._dynamo.reset()
    original, failed = native.program_of, []

    def fails(step: KernelStep, *rest: object) -> object:
        if step.panels & set(step.writes):
            failed.append(step.stitched.kernel.name)
            raise RuntimeError("on purpose")
        return original(step, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(native, "program_of", fails)
    monkeypatch.setattr(native, "LOADED", {})
    arguments = given()
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelBuildWarning)
        found = torch.compile(recurrent, backend="hemstitch")(*arguments)
    assert failed
    torch.testing.assert_close(found, recurrent(*arguments), rtol=1e-4, atol=1e-4)
