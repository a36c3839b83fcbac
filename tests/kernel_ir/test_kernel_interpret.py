"""The kernel interpreter itself: lanes, tasks, garbage, races, bounds, conversions."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from hemstitch.errors import InternalError
from hemstitch.ir.failure import OUT_OF_RANGE
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.arithmetic import across_lanes, from_storage, to_storage
from hemstitch.kernel_ir.index import Axis, Computed, Index, at
from hemstitch.kernel_ir.interpreter import run
from hemstitch.kernel_ir.nodes import (
    TASK,
    THREADS,
    Accumulate,
    AccumulateInto,
    Begin,
    Buffer,
    Check,
    Constant,
    Finish,
    Init,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Phase,
    Position,
    Role,
    Store,
)

F32 = DType.F32
SOURCE = Buffer("source", F32, Role.INPUT, 35)
TARGET = Buffer("target", F32, Role.OUTPUT, 7)
PARTIAL = Buffer("partial", F32, Role.SHARED, THREADS * 7)
ROWS, LANES, T = Axis("i", 5), Axis("j", 7), Axis("t", THREADS)
PLACE = at(ROWS).scaled(7) + at(LANES)


def column_sums(target=TARGET, own=7, clear=True, begin=Begin.BARRIER):
    """Each task sums its rows into its part; then each column's parts are joined."""
    zero = Constant("zero", 0.0, F32)
    mine = at(LANES) + at(TASK).scaled(own)
    clearing = Loop(LANES, (Store(PARTIAL, mine, "zero"),), lanes=True)
    add = AccumulateInto(PARTIAL, mine, Op.SUM, F32, "x")
    rows = Loop(LANES, (Load("x", SOURCE, PLACE), add), lanes=True)
    joined = (
        Init("acc", Op.SUM, F32, across=False),
        Loop(T, (Load("p", PARTIAL, at(LANES) + at(T).scaled(7)), Accumulate("acc", "p")), False),
        Finish("sum", "acc"),
        Store(target, at(LANES), "sum"),
    )
    first = Nest((ROWS,), (zero, clearing) if clear else (), (rows,), (), 7, "")
    second = Nest((), (), (Loop(LANES, joined, lanes=True),), (), 7, "")
    phases = Phase((first,)), Phase((second,), "sums", begin)
    return Kernel("k", (SOURCE, target, PARTIAL), phases)


@pytest.mark.parametrize("begin", [Begin.BARRIER, Begin.LAST_BLOCK])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_tasks_in_any_order(threads, begin):
    source = np.random.default_rng().standard_normal(35)
    orders = [None, *permutations(range(threads))] if threads < 4 else [None]
    for order in orders:
        target = np.zeros(7)
        kernel = column_sums(begin=begin)
        run(kernel, [source, target], {}, threads, order, precise=True, check=True)
        np.testing.assert_allclose(target, source.reshape(5, 7).sum(0), rtol=1e-12, atol=1e-12)


def test_the_last_task_to_come_goes_on_alone():
    """Every row is stored by one task, which adds its number; scratch of its own is still there."""
    own = Buffer("own", DType.I64, Role.TASK, 1)
    numbers_stored = Buffer("found", DType.I64, Role.OUTPUT, 5)
    keep = (Position("who", at(TASK)), Store(own, Index(), "who"))
    restored = (Load("x", own, Index()), Store(own, Index(), "x"))
    rows = (Load("x", own, Index()), Store(numbers_stored, at(ROWS), "x"))
    phases = (
        Phase((Nest((ROWS,), keep, (), (), 1, ""),)),
        Phase((Nest((), (), restored, (), 1, ""),), "", Begin.LAST_BLOCK),
        Phase((Nest((ROWS,), (), rows, (), 1, ""),), "", Begin.ALONE),
    )
    for order in permutations(range(3)):
        numbers = np.full(5, -1)
        run(Kernel("k", (numbers_stored, own), phases), [numbers], {}, 3, order, check=True)
        assert numbers.tolist() == [order[-1]] * 5


def test_native_precision():
    source, target = np.ones(35, np.float32) / 3, np.zeros(7, np.float32)
    run(column_sums(), [source, target], {})
    np.testing.assert_allclose(target, source.reshape(5, 7).sum(0), rtol=1e-6)


def test_scratch_starts_as_garbage():
    target = np.zeros(7, np.float32)
    run(column_sums(clear=False), [np.ones(35, np.float32), target], {})
    assert np.isnan(target).all()


def test_a_race_is_found():
    with pytest.raises(InternalError, match="race at partial"):
        run(column_sums(own=0), [np.ones(35), np.zeros(7)], {}, precise=True, check=True)


def test_an_access_outside_is_found():
    with pytest.raises(InternalError, match="is at 5, of 5 elements"):
        run(column_sums(), [np.ones(35), np.zeros(5)], {}, precise=True)


def gather(buffer_index, extent):
    index = Buffer("index", DType.I64, Role.INPUT, 7)
    source = Buffer("source", F32, Role.INPUT, extent)
    body = (
        Load("n", index, at(LANES)),
        Constant("end", extent, DType.I64),
        Let("good", Op.LT, ("n", "end"), DType.I64, DType.BOOL),
        Check("good", OUT_OF_RANGE),
        Load("x", source, at(Computed("n", extent)), "good"),
        Store(TARGET, at(LANES), "x"),
    )
    nest = Nest((), (), (Loop(LANES, body, lanes=True),), (), 7, "")
    kernel = Kernel("k", (index, source, TARGET), (Phase((nest,)),))
    target = np.zeros(7, np.float32)
    run(kernel, [buffer_index, np.arange(extent, dtype=np.float32), target], {})
    return target


def test_computed_indices():
    index = np.array([3, 0, 9, 9, 1, 5, 2])
    np.testing.assert_array_equal(gather(index, 10), index)


def test_a_failed_check_is_an_index_error():
    with pytest.raises(IndexError):
        gather(np.array([0, 1, 2, 3, 10, 0, 0]), 10)


def test_argmax_of_lanes():
    def best(values):
        lanes = np.array(values), np.arange(len(values))
        return int(across_lanes(Op.ARGMAX, lanes)[1])

    assert best([1.0, 3.0, 2.0]) == 1
    assert best([3.0, 1.0, 3.0, 3.0, 0.0]) == 0
    assert best([3.0, np.nan, 9.0, np.nan, 0.0]) == 1
    assert best([-np.inf]) == 0


def test_bfloat_is_torchs():
    values = np.random.default_rng().standard_normal(500).astype(np.float32) * 1e3
    values = np.append(values, [np.inf, -np.inf, 0.0, -0.0, 1e-40]).astype(np.float32)
    bits = to_storage(values, DType.BF16)
    expected = torch.from_numpy(values).bfloat16()
    np.testing.assert_array_equal(bits, expected.view(torch.uint16).numpy())
    np.testing.assert_array_equal(from_storage(bits, DType.BF16), expected.float().numpy())
