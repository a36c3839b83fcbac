"""What is printed once, and in which order."""

from __future__ import annotations

from functools import partial, reduce

from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.instruction_sets import AVX512

X, Y = Value("%x", "<4 x float>"), Value("%y", "<4 x float>")


def chain(e: Emitter, first: Value) -> Value:
    return e.binary("fadd", e.binary("fmul", first, first), X)


def instructions(e: Emitter) -> list[str]:
    return [line.split()[2] for line in e.lines if "=" in line]


def test_chains_take_turns() -> None:
    e = Emitter(4)
    results = e.interleave(partial(chain, e, first) for first in (X, Y))
    assert instructions(e) == ["fmul", "fmul", "fadd", "fadd"]
    assert [line.split()[0] for line in e.lines[2:]] == [result.text for result in results]


def test_with_registers_enough_chains_begin_one_after_the_other() -> None:
    e = Emitter(4, AVX512)
    thrice = partial(chain, e), partial(chain, e), partial(chain, e)
    e.interleave(lambda x=x: reduce(lambda value, step: step(value), thrice, x) for x in (X, Y))
    turns = ["fmul", "fadd", "fmul", "fadd fmul", "fmul fadd", "fadd fmul", "fadd", "fmul", "fadd"]
    assert instructions(e) == " ".join(turns).split()


def test_chains_that_branch_follow_one_another() -> None:
    def branching(first: Value) -> Value:
        with e.when(Value("%c", "i1")):
            e.line("fence acquire")
        return chain(e, first)

    e = Emitter(4)
    e.interleave(partial(branching, first) for first in (X, Y))
    assert instructions(e) == ["fmul", "fadd"] * 2


def test_no_chain_uses_another_ones_values() -> None:
    """What comes first in the one may come later in the other's turn."""
    e = Emitter(4)
    e.interleave((partial(e.fneg, X), partial(chain, e, X), partial(e.fneg, X)))
    assert instructions(e).count("fneg") == 2


def test_equal_instructions_of_a_block_are_one() -> None:
    e = Emitter(4)
    assert e.fneg(X) == e.fneg(X)
    before = e.fneg(X)
    e.label("next")
    assert e.fneg(X) != before  # which need not have run


def test_memory_is_read_each_time() -> None:
    e = Emitter(4)
    first, second = (e.define("float", "load float, ptr %p") for _ in range(2))
    assert first != second


def test_a_function_of_few_lanes_is_called_for_each_part() -> None:
    e = Emitter(8)
    x, y = Value("%x", "<8 x double>"), Value("%y", "<8 x double>")
    assert e.per_part("pow4", 4, x, y).type == "<8 x double>"
    assert instructions(e) == [*["shufflevector", "shufflevector", "call"] * 2, "shufflevector"]
    lines = [line.partition("= ")[2] for line in e.lines]
    assert lines[3].endswith("<4 x i32> <i32 4, i32 5, i32 6, i32 7>")
    assert lines[-1].endswith("<i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>")
