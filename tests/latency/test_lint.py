"""A kernel as it should be has no findings; each mistake has its own, with a reason."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from hemstitch.latency.amd import amd_blocks, amd_facts
from hemstitch.latency.facts import facts
from hemstitch.latency.lint import Expected, Finding, LintCheck, lint_amd
from tests.latency import kernels
from tests.latency.cubins import (
    COPY,
    EARLY,
    PARTIAL,
    PRODUCT,
    SUMS,
    built,
    compiled,
)

SMS = 132
NVIDIA = ("sm_80", "sm_90", "sm_100")
CENTRE = {"N": 1024, "PROGRAMS": SMS, "WAIT": True}
TILES = {"BM": 128, "BN": 128, "BK": 64}


def checks(findings: tuple[Finding, ...]) -> list[LintCheck]:
    return [finding.check for finding in findings]


@pytest.mark.parametrize("target", NVIDIA)
def test_a_barrier_as_it_should_be(target: str) -> None:
    kernel = built(kernels.centre, PARTIAL, CENTRE, target, cooperative=True)
    assert kernel.lint(barriers=1, cooperative_programs=SMS if target != "sm_80" else 108) == ()


def test_a_barrier_that_nobody_announced_and_one_that_is_not_there() -> None:
    with_one = built(kernels.centre, PARTIAL, CENTRE, cooperative=True)
    (found,) = with_one.lint()
    assert str(found) == (
        "barriers: 0 device-wide barriers and 0 last-block reductions were expected, "
        "the PTX has 1 releases and 1 waits"
    )
    without = built(kernels.centre, PARTIAL, {**CENTRE, "WAIT": False})
    assert checks(without.lint(barriers=1)) == [LintCheck.BARRIERS, LintCheck.INVALIDATION]


def test_a_last_block_reduction_is_no_barrier() -> None:
    kernel = built(kernels.last_block, PARTIAL, {"N": 1024, "PROGRAMS": SMS})
    assert kernel.lint(last_block_reductions=1, width_bits=0) == ()
    assert checks(kernel.lint(barriers=1, width_bits=0))[0] is LintCheck.BARRIERS


def test_an_access_between_arrival_and_wait() -> None:
    kernel = built(kernels.early_load, EARLY, {"N": 1024, "PROGRAMS": SMS}, cooperative=True)
    (found,) = kernel.lint(barriers=1)
    assert found.check is LintCheck.ORDER and "accesses to global memory between" in found.why


def test_more_programs_than_fit() -> None:
    kernel = built(kernels.centre, PARTIAL, CENTRE, cooperative=True)
    (found,) = kernel.lint(barriers=1, cooperative_programs=10_000)
    assert str(found) == (
        "cooperative: 10000 programs wait for each other, but only 16 on each of 132 processors "
        "run at a time: the launch would be refused"
    )


def test_spills() -> None:
    constants = {"N": 1024, "BM": 8, "PROGRAMS": SMS}
    spilling = built(kernels.column_sums, SUMS, constants, warps=8, most_registers=96)
    (found,) = spilling.lint()
    assert found.check is LintCheck.SPILLS and "at 96 registers" in found.why
    assert built(kernels.column_sums, SUMS, constants, warps=8).lint() == ()


def test_narrow_accesses() -> None:
    narrow = built(kernels.copy, COPY, {"BLOCK": 1024})
    (found,) = narrow.lint()
    assert found.check is LintCheck.WIDTH and "16 of 32 bits" in found.why
    assert narrow.lint(width_bits=0) == ()
    assert built(kernels.copy, COPY, {"BLOCK": 1024}, divisible=["count"]).lint() == ()


@pytest.mark.parametrize("target", NVIDIA)
def test_a_product_uses_the_matrix_unit_of_its_target(target: str) -> None:
    kernel = built(kernels.product, PRODUCT, TILES, target, warps=8, stages=3, divisible=["K"])
    assert kernel.lint(has_dot=True) == ()
    known = facts(kernel.code)
    assert (known.warpgroup_matrix > 0) is (target != "sm_80")
    assert (known.matrix > 0) is (target == "sm_80")
    assert known.asynchronous_copies > 0 and known.barriers > 0


def test_a_product_without_warpgroups() -> None:
    tiles = {"BM": 32, "BN": 32, "BK": 64}
    kernel = built(kernels.product, PRODUCT, tiles, divisible=["K"])
    (found,) = kernel.lint(has_dot=True, width_bits=0)
    assert str(found).startswith("matrix: a matmul of tiles on sm_90 became HMMA, not HGMMA")


def test_facts_of_a_reduction() -> None:
    known = facts(built(kernels.row_sums, SUMS, {"N": 1024, "PROGRAMS": SMS}).code)
    assert known.loads.by_width == {128: 1} and known.stores.by_width == {32: 1}
    assert known.shuffles > 0 and known.barriers > 0 and known.special == 0
    assert known.wide_share() == 0.8


def amd(kernel: object, *arguments: object, **more: object) -> tuple[str, Expected]:
    result = compiled(kernel, *arguments, "gfx942", **more)  # type: ignore[arg-type]
    return result.assembly, Expected(
        warps=result.warps, shared_bytes=result.shared_bytes, width_bits=64
    )


def with_(expected: Expected, **more: object) -> Expected:
    fields = {name: getattr(expected, name) for name in Expected.__slots__}
    return Expected(**{**fields, **more})


def test_amd_facts() -> None:
    text, expected = amd(kernels.row_sums, SUMS, {"N": 1024, "PROGRAMS": SMS})
    known = amd_facts(text)
    assert known.loads.by_width == {64: 1} and known.stores.by_width == {32: 1}
    assert (known.spills, known.stack_bytes) == (0, 0)
    assert known.shuffles > 0 and known.barriers > 0 and known.registers > 0
    assert lint_amd(text, expected) == ()
    assert amd_blocks(text, shared_bytes=32 << 10, warps=4) == 2


def test_amd_barriers() -> None:
    text, expected = amd(kernels.centre, PARTIAL, CENTRE, cooperative=True)
    assert lint_amd(text, with_(expected, barriers=1, cooperative_programs=304)) == ()
    assert checks(lint_amd(text, expected)) == [LintCheck.BARRIERS]
    too_many = with_(expected, barriers=1, cooperative_programs=1_000_000)
    assert checks(lint_amd(text, too_many)) == [LintCheck.COOPERATIVE]
    no_room = with_(expected, barriers=1, shared_bytes=1 << 20)
    assert checks(lint_amd(text, no_room)) == [LintCheck.LAUNCH]


def test_amd_spills_and_products() -> None:
    text, expected = amd(kernels.column_sums, SUMS, {"N": 4096, "BM": 8, "PROGRAMS": SMS}, warps=4)
    assert checks(lint_amd(text, expected)) == [LintCheck.SPILLS]
    assert LintCheck.MATRIX in checks(lint_amd(text, with_(expected, has_dot=True)))
    tiles, known = amd(kernels.product, PRODUCT, TILES, warps=8, divisible=["K"])
    assert amd_facts(tiles).matrix > 0
    assert lint_amd(tiles, with_(known, has_dot=True, width_bits=0)) == ()
