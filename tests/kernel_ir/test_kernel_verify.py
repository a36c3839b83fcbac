"""The verifier finds each kind of mistake; each kernel here is wrong in one way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hemstitch.errors import InternalError
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Computed, Index, at
from hemstitch.kernel_ir.nodes import (
    TASK,
    THREADS,
    Accumulate,
    AccumulateInto,
    AccumulateMatmul,
    Begin,
    Buffer,
    Constant,
    Contract,
    Finish,
    Init,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Phase,
    Role,
    Running,
    Scan,
    Store,
)
from hemstitch.kernel_ir.verifier import verify

F32 = DType.F32
SOURCE = Buffer("source", F32, Role.INPUT, 32)
TARGET = Buffer("target", F32, Role.OUTPUT, 32)
ROW = Buffer("row", F32, Role.TASK, 8)
SHARED = Buffer("shared", F32, Role.SHARED, 4)
PARTIAL = Buffer("partial", F32, Role.SHARED, THREADS)
EVERYTHING = (SOURCE, TARGET, ROW, SHARED, PARTIAL)
ROWS, LANES = Axis("i", 4), Axis("j", 8)
PLACE = at(ROWS).scaled(8) + at(LANES)
LOAD = Load("x", SOURCE, PLACE)


def lanes(*body):
    return Loop(LANES, body, lanes=True)


def phase(*body, prologue=(), begin=Begin.BARRIER):
    return Phase((Nest((ROWS,), prologue, body, (), 8, "test"),), "test", begin)


def kernel(*phases, buffers=EVERYTHING):
    return Kernel("k", buffers, phases)


def row_sum(*more):
    return (
        Init("acc", Op.SUM, F32, across=True),
        lanes(LOAD, Accumulate("acc", "x")),
        Finish("sum", "acc"),
        *more,
    )


COLUMNS, STEPS = Axis("c", 4), Axis("k", 4)
RIGHT_OF_STEP = Load("r", SOURCE, at(STEPS).scaled(8) + at(LANES))
MAX = Init("max", Op.MAX, F32, across=True)
SO_FAR = (LOAD, Accumulate("max", "x"), Running("m", "max"))
RIGHT = Load("v", SOURCE, at(LANES).scaled(4) + at(COLUMNS))
SUMS = Init("acc", Op.SUM, F32, across=True, running_max="max", columns=COLUMNS)
DONE = Finish("r", "max")
EMPTIED = Loop(COLUMNS, (Finish("o", "acc"), Store(ROW, at(COLUMNS), "o")), lanes=True)


def product(*body, left="x", right="v"):
    return AccumulateMatmul("acc", COLUMNS, body, left, right, F32)


def over_lanes(*body):
    """Rows times columns, counted from a maximum so far."""
    return phase(MAX, SUMS, lanes(*SO_FAR, *body), DONE, EMPTIED)


GOOD = {
    "a product over lanes": kernel(over_lanes(product(RIGHT))),
    "copy": kernel(phase(lanes(LOAD, Store(TARGET, PLACE, "x")))),
    "a row's sum": kernel(
        phase(*row_sum(lanes(Store(TARGET, PLACE, "sum")))),
    ),
    "sums behind a barrier": kernel(
        phase(*row_sum(Store(SHARED, at(ROWS), "sum"))),
        phase(Load("s", SHARED, at(ROWS)), lanes(Store(TARGET, PLACE, "s"))),
    ),
    "sums behind a ticket": kernel(
        phase(*row_sum(Store(SHARED, at(ROWS), "sum"))),
        phase(
            Load("s", SHARED, at(ROWS)),
            lanes(Store(TARGET, PLACE, "s"), Store(ROW, at(LANES), "s")),
            begin=Begin.LAST_BLOCK,
        ),
        phase(Load("s", SHARED, at(ROWS)), begin=Begin.ALONE),
    ),
    "a task's own part": kernel(
        phase(
            *row_sum(AccumulateInto(PARTIAL, at(TASK), Op.SUM, F32, "sum")),
            prologue=(Constant("zero", 0.0, F32), Store(PARTIAL, at(TASK), "zero")),
        )
    ),
}


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)
def test_a_good_kernel_passes(good):
    verify(good)


DOT = Contract("p", STEPS, (Load("l", SOURCE, at(STEPS)), RIGHT_OF_STEP), "l", "r", F32, F32)
LOAD_AGAIN = Load("w", SOURCE, at(LANES))
TWICE = Let("x", Op.NEG, ("x",), F32, F32)
BAD = {
    "not defined here": phase(lanes(LOAD), lanes(Store(TARGET, PLACE, "x"))),
    "x is defined twice": phase(lanes(LOAD, TWICE, Store(TARGET, PLACE, "x"))),
    "x is f32, not i64": phase(lanes(LOAD, Let("y", Op.ABS, ("x",), DType.I64, DType.I64))),
    "takes 2 operands": phase(lanes(LOAD, Let("y", Op.ADD, ("x",), F32, F32))),
    "gives bool, not f32": phase(lanes(LOAD, Let("y", Op.LT, ("x", "x"), F32, F32))),
    "no loop over j": phase(LOAD),
    "no loop over z": phase(lanes(replace(DOT, band=at(Axis("z", 4)) + at(STEPS)))),
    "no loop over k": phase(Load("x", SOURCE, at(Axis("k", 2)))),
    "n is not defined": phase(Load("x", SOURCE, at(Computed("n", 32)))),
    "source is an input": phase(lanes(LOAD, Store(SOURCE, PLACE, "x"))),
    "i is looped over already": phase(Loop(ROWS, (), lanes=False)),
    "lanes inside lanes": phase(lanes(Loop(Axis("k", 2), (), lanes=True))),
    "never finished": phase(*row_sum()[:2]),
    "acc is not declared, or finished": phase(lanes(LOAD, Accumulate("acc", "x"))),
    "there are none": phase(
        Constant("x", 1.0, F32), Init("acc", Op.SUM, F32, True), Accumulate("acc", "x")
    ),
    "does not combine lanes": phase(
        Init("acc", Op.SUM, F32, across=False), lanes(LOAD, Accumulate("acc", "x"))
    ),
    "stored in one place": phase(lanes(LOAD, Store(TARGET, at(ROWS), "x"))),
    "only a sum of floats across lanes can follow": phase(
        MAX, replace(MAX, name="acc", running_max="max")
    ),
    "acc is no maximum across lanes": phase(
        *row_sum()[:1], replace(SUMS, name="more", running_max="acc")
    ),
    "max is not declared, or finished": phase(SUMS),
    "max is no sum or product": phase(MAX, lanes(LOAD, Scan("s", "max", "x")), DONE),
    "acc has columns": phase(MAX, SUMS, lanes(LOAD, Accumulate("acc", "x")), DONE, EMPTIED),
    "there are no lanes here": phase(MAX, Running("m", "max"), DONE),
    "acc has c for columns": phase(MAX, SUMS, lanes(*SO_FAR, product(RIGHT)), Finish("o", "acc")),
    "acc has no columns c": phase(*row_sum()[:1], lanes(LOAD, product(RIGHT))),
    "v is not defined here": over_lanes(product(LOAD_AGAIN)),
    "over lanes is defined outside it": over_lanes(
        Load("u", SOURCE, at(LANES)), product(Let("v", Op.NEG, ("u",), F32, F32))
    ),
    "differs between rows of a tile": over_lanes(product(Load("v", SOURCE, PLACE))),
    "added in one place": phase(
        Constant("zero", 0.0, F32),
        Store(ROW, Index(), "zero"),
        lanes(LOAD, AccumulateInto(ROW, Index(), Op.SUM, F32, "x")),
    ),
    "row is read before it is written": phase(lanes(Load("x", ROW, at(LANES)))),
    "added to before it is cleared": phase(
        *row_sum(AccumulateInto(SHARED, at(ROWS), Op.SUM, F32, "sum"))
    ),
    "not written in an earlier phase": phase(Load("x", SHARED, at(ROWS))),
    "shared is not written in an earlier phase": phase(
        Load("x", SHARED, at(ROWS)), Store(SHARED, at(ROWS), "x")
    ),
    "8 elements, 8 is reached": phase(lanes(LOAD, Store(ROW, at(LANES).shifted(1), "x"))),
    "reached 1 before": phase(lanes(LOAD, Store(ROW, at(LANES).shifted(-1), "x"))),
    "4 elements, 6 is reached": phase(
        Constant("x", 1.0, F32), Store(SHARED, at(ROWS).scaled(2), "x")
    ),
}


@pytest.mark.parametrize(("message", "wrong"), BAD.items(), ids=BAD)
def test_a_mistake_is_found(message, wrong):
    with pytest.raises(InternalError, match=message):
        verify(kernel(wrong))


@pytest.mark.parametrize(
    ("begins", "message"),
    [
        ((Begin.LAST_BLOCK,), "first phase begins with ticket"),
        ((Begin.BARRIER, Begin.ALONE), "no ticket says which"),
        ((Begin.BARRIER, Begin.LAST_BLOCK, Begin.BARRIER), "a barrier behind a ticket"),
        (
            (Begin.BARRIER, Begin.LAST_BLOCK, Begin.ALONE, Begin.LAST_BLOCK),
            "a ticket behind a ticket",
        ),
    ],
    ids=str,
)
def test_once_alone_always_alone(begins, message):
    with pytest.raises(InternalError, match=message):
        verify(kernel(*(phase(begin=begin) for begin in begins)))


def test_one_task_leaves_no_part_of_each():
    part = phase(Constant("x", 1.0, F32), Store(PARTIAL, at(TASK), "x"), begin=Begin.LAST_BLOCK)
    with pytest.raises(InternalError, match="no loop over task here"):
        verify(kernel(phase(), part))


def test_buffers_are_declared():
    with pytest.raises(InternalError, match="target is not declared"):
        verify(kernel(phase(lanes(LOAD, Store(TARGET, PLACE, "x"))), buffers=(SOURCE,)))


def test_the_last_block_of_a_cut_axis_may_be_short():
    block = Axis("b", 3)
    inner = Axis("e", 4, block, 10)
    whole = Buffer("whole", F32, Role.SHARED, 10)
    place = at(block).scaled(4) + at(inner)

    def filled(axis):
        body = Constant("x", 1.0, F32), Loop(axis, (Store(whole, place, "x"),), lanes=True)
        return Kernel("k", (whole,), (Phase((Nest((block,), (), body, (), 4, ""),)),))

    verify(filled(inner))
    too_far = Axis("e", 4, block, 11)
    place = at(block).scaled(4) + at(too_far)
    with pytest.raises(InternalError, match="10 elements, 10 is reached"):
        verify(filled(too_far))
