"""Instructions, control bits, lines and resources out of what the disassemblers print."""

from __future__ import annotations

from pathlib import Path

import pytest

from hemstitch.errors import InternalError
from hemstitch.latency.disassembly import (
    Control,
    Disassembly,
    SourceLine,
    disassemble,
    parse,
)
from hemstitch.latency.facts import facts
from hemstitch.latency.opcodes import (
    KINDS,
    OpcodeKind,
    Pipe,
    Wait,
    kind_of,
    matrix_flops,
    width_bits,
)

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="module")
def chase() -> Disassembly:
    text = (FIXTURES / "pointer_chase.sass").read_text()
    return parse(text, (FIXTURES / "pointer_chase.usage").read_text())


def test_a_load_sets_the_scoreboard_that_its_reader_waits_for(chase: Disassembly) -> None:
    rows = chase.instructions
    place, load = next((place, row) for place, row in enumerate(rows) if row.base == "LDG")
    assert (load.opcode, load.predicate, load.target) == ("LDG.E", None, None)
    assert load.operands[1].startswith("desc[")
    assert load.lines == (SourceLine("kernels.py", 95),)
    value, scoreboard = load.operands[0], load.control.write_scoreboard
    reader = next(row for row in rows[place + 1 :] if value in row.operands[1:])
    assert scoreboard is not None and scoreboard in reader.control.waits_for


def test_control_bits(chase: Disassembly) -> None:
    # 0x000fe20000000800, 0x000e2e0000002100 and 0x002fc40003f06270: bits 41 to 57 by hand.
    # A yield bit of 0 allows it.
    by_address = {row.address: row.control for row in chase.instructions}
    assert by_address[0x00] == Control(1, False, None, None, ())
    assert by_address[0x10] == Control(7, False, 0, None, ())
    assert by_address[0x50] == Control(2, True, None, None, (1,))


def test_a_branch_knows_where_it_goes(chase: Disassembly) -> None:
    back = [
        row for row in chase.instructions if row.target is not None and row.target < row.address
    ]
    assert [row.base for row in back] == ["BRA", "BRA"]
    assert all(row.predicate in ("P0", "P1") for row in back)
    addresses = {row.address for row in chase.instructions}
    assert {row.target for row in chase.instructions if row.target is not None} <= addresses


def test_resources_and_facts(chase: Disassembly) -> None:
    assert (chase.name, chase.target) == ("pointer_chase", "sm_90")
    known = facts(chase)
    assert (known.registers, known.stack_bytes, known.shared_bytes) == (13, 0, 0)
    assert known.loads.by_width == {32: 8} and known.stores.by_width == {32: 1}
    assert known.wide_share() == 0.0 and known.wide_share(32) == 1.0
    assert (known.spills, known.barriers, known.atomics, known.matrix) == (0, 0, 0, 0)
    assert 60 <= known.instructions <= len(chase.instructions)


def test_the_reserved_kilobyte_is_not_counted_twice() -> None:
    text = (FIXTURES / "pointer_chase.sass").read_text()
    usage = "Function k:\n REG:8 STACK:16 SHARED:1040 LOCAL:4"
    assert parse(text, usage).resources.shared_bytes == 16
    ampere = text.replace(".target\tsm_90a", '.headerflags\t@"EF_CUDA_SM80"')
    assert parse(ampere, usage).resources.shared_bytes == 1040


def test_what_is_no_kernel_is_an_error() -> None:
    with pytest.raises(InternalError, match="printed no kernel"):
        parse("nvdisasm fatal", "")


def test_without_the_disassemblers_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="nvdisasm cannot be run"):
        disassemble(b"", tmp_path)


@pytest.mark.parametrize(
    ("opcode", "bits"),
    [
        ("LDG.E", 32),
        ("LDG.E.128", 128),
        ("LDG.E.EL.64.CONSTANT", 64),
        ("STG.E.U16", 16),
        ("LDG.E.S8.CONSTANT", 8),
        ("LDG.E.ENL2.256", 256),
        ("LDGSTS.E.BYPASS.LTC128B.128", 128),
        ("LDG.E.LTC128B", 32),
    ],
)
def test_width(opcode: str, bits: int) -> None:
    assert width_bits(opcode) == bits


@pytest.mark.parametrize(
    ("opcode", "flops"),
    [
        ("HMMA.16816.F32", 2 * 16 * 8 * 16),
        ("HMMA.16816.F32.BF16", 2 * 16 * 8 * 16),
        ("HMMA.1688.F32.TF32", 2 * 16 * 8 * 16),  # half as many, of twice the size
        ("HMMA.1688.F32", 2 * 16 * 8 * 8),
        ("IMMA.16832.S8.S8", 2 * 16 * 8 * 16),
        ("HGMMA.64x128x16.F32", 2 * 64 * 128 * 16 // 4),
        ("UTCHMMA", None),
    ],
)
def test_matrix_flops(opcode: str, flops: int | None) -> None:
    assert matrix_flops(opcode) == flops


def test_opcodes_have_kinds() -> None:
    assert kind_of("LDG.E.128") == OpcodeKind(Pipe.MEMORY, Wait.MEMORY)
    assert kind_of("UIADD3") == OpcodeKind(Pipe.ISSUE, Wait.FIXED)
    assert kind_of("UTCHMMA") == OpcodeKind(Pipe.MATRIX, Wait.WARPGROUP)
    assert kind_of("FROBNICATE.F32") is None
    assert {kind.wait for kind in KINDS.values()} == set(Wait)
    assert {kind.pipe for kind in KINDS.values()} == set(Pipe)
