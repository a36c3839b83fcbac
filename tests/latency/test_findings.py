"""The lint on texts and instructions written by hand: it needs no compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from hemstitch.errors import InternalError
from hemstitch.latency.amd import amd_blocks, amd_facts
from hemstitch.latency.architecture import HOPPER
from hemstitch.latency.disassembly import Control, Disassembly, Instruction, Resources, parse
from hemstitch.latency.lint import Expected, Finding, LintCheck, lint, lint_amd
from hemstitch.latency.ptx import parse_ptx

FIXTURES = Path(__file__).parent / "fixtures"
ARRIVE = "\t@%p1 atom.global.gpu.release.add.u32 %r1, [ %rd1 + 0 ], %r2;"
POLL = "\t@%p1 ld.global.gpu.acquire.b32 %r3, [ %rd1 + 0 ];"
LOAD = "\tld.global.v4.b32 { %r4, %r5, %r6, %r7 }, [ %rd2 + 0 ];"
AMD = """
\tbuffer_load_dwordx4 v[2:5], v1, s[0:3], 0 offen
\ts_barrier
\tbuffer_wbl2 sc1
\ts_waitcnt vmcnt(0)
\tglobal_atomic_add v6, v6, v7, s[8:9] sc0
\tglobal_load_dword v6, v0, s[8:9] sc1
\tbuffer_inv sc1
\tv_exp_f32_e32 v1, v1
\tv_mov_b32_dpp v2, v1 quad_perm:[1,0,3,2]
\tbuffer_store_short_d16_hi v2, v1, s[0:3], 0 offen
\ts_endpgm
\t.amdhsa_kernel k
; TotalNumVgprs: 100
; ScratchSize: 0
; LDSByteSize: 1024 bytes/workgroup (compile time only)
; Occupancy: 5
    .sgpr_spill_count: 0
    .vgpr_spill_count: 0
"""


def code(*opcodes: str, registers: int = 32) -> Disassembly:
    control = Control(1, True, None, None, ())
    rows = tuple(
        Instruction(16 * place, opcode, None, (), control, ())
        for place, opcode in enumerate(opcodes)
    )
    return Disassembly("k", "sm_90", rows, Resources(registers, 0, 0, 0))


def findings(found: Disassembly, ptx: str, **expected: int) -> list[LintCheck]:
    known = Expected(warps=4, **expected)
    return [each.check for each in lint(found, parse_ptx(ptx), known, HOPPER)]


def test_a_whole_barrier() -> None:
    rows = code("ATOMG.E.ADD.STRONG.GPU", "LDG.E.STRONG.GPU", "CCTL.IVALL", "LDG.E.128")
    assert findings(rows, "\n".join((ARRIVE, POLL, LOAD)), barriers=1) == []


def test_a_load_before_the_wait() -> None:
    rows = code("ATOMG.E.ADD.STRONG.GPU", "LDG.E.128", "LDG.E.STRONG.GPU", "CCTL.IVALL")
    assert findings(rows, "\n".join((ARRIVE, LOAD, POLL)), barriers=1) == [LintCheck.ORDER]


def test_stale_lines_in_the_cache() -> None:
    rows = code("ATOMG.E.ADD.STRONG.GPU", "LDG.E.STRONG.GPU", "LDG.E.128", "CCTL.IVALL")
    assert findings(rows, "\n".join((ARRIVE, POLL, LOAD)), barriers=1) == [LintCheck.INVALIDATION]


def test_spills_are_found_in_code_and_stack() -> None:
    assert findings(code("LDG.E.128", "STL", "LDL.64"), "") == [LintCheck.SPILLS]


def test_a_block_that_fits_nowhere() -> None:
    assert findings(code("LDG.E.128"), "", shared_bytes=1 << 20) == [LintCheck.LAUNCH]


def test_traffic_is_weighed_by_bits() -> None:
    # one scalar beside one vector is four fifths wide; the same number of scalars is not
    assert findings(code("LDG.E.128", "STG.E"), "") == []
    assert findings(code("LDG.E.64", "STG.E.64"), "") == [LintCheck.WIDTH]
    assert findings(code("LDG.E.64", "STG.E.64"), "", width_bits=64) == []
    assert findings(code("UTMALDG.2D", "LDG.E"), "") == []


def test_narrow_loads_of_the_fixture() -> None:
    usage = (FIXTURES / "pointer_chase.usage").read_text()
    found = parse((FIXTURES / "pointer_chase.sass").read_text(), usage)
    ptx = (FIXTURES / "pointer_chase.ptx").read_text()
    assert findings(found, ptx) == [LintCheck.WIDTH]


def test_amd_text() -> None:
    known = amd_facts(AMD)
    assert (known.registers, known.shared_bytes, known.instructions) == (100, 1024, 11)
    assert known.loads.by_width == {32: 1, 128: 1} and known.stores.by_width == {16: 1}
    assert (known.special, known.shuffles, known.barriers, known.atomics) == (1, 1, 1, 1)
    assert lint_amd(AMD, Expected(warps=4, barriers=1)) == ()
    (found,) = lint_amd(AMD, Expected(warps=4))
    assert isinstance(found, Finding) and found.check is LintCheck.BARRIERS


def test_amd_blocks() -> None:
    # 5 waves on each of 4 SIMDs; 64 KB of LDS
    assert amd_blocks(AMD, shared_bytes=0, warps=4) == 5
    assert amd_blocks(AMD, shared_bytes=20 << 10, warps=4) == 3
    with pytest.raises(InternalError, match="does not say its Occupancy"):
        amd_blocks("", shared_bytes=0, warps=4)


def test_amd_spills_and_missing_matrix_instructions() -> None:
    spilling = AMD.replace(".vgpr_spill_count: 0", ".vgpr_spill_count: 7")
    (found,) = lint_amd(spilling, Expected(warps=4, barriers=1))
    assert "7 accesses to spilled registers" in found.why
    (found,) = lint_amd(AMD, Expected(warps=4, barriers=1, has_dot=True))
    assert found.check is LintCheck.MATRIX
