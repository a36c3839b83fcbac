"""Products of which not all is wanted: tiles leave out what is not, whatever lies where."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hemstitch.capture.library_calls import WITHIN
from hemstitch.ir.calls import MatmulAxis, Within
from hemstitch.kernel_ir.nodes import Contract, statements
from hemstitch.kernel_ir.printer import show
from hemstitch.runtime import interpreter as interpret
from tests.compiled import Simulation, plans_of
from tests.effort import IS_WHOLE, examples, some
from tests.planning.test_cpu_products import CPU, compiled, plan_in_blocks

PAIRS = [(low, high) for low in MatmulAxis for high in MatmulAxis if low is not high]
BATCH = 2
LARGE, LONG, NARROW = (140, 70, 140), (33, 800, 90), (130, 34, 40)
DISTANCES = some(
    [(0, LARGE), (-7, LONG), (30, NARROW)],
    [(0, LONG), (0, NARROW), (-7, LARGE), (-7, NARROW), (30, LARGE), (30, LONG)],
)


def multiplied(x, y):
    return x @ y


def into_a_tile(x, y):
    return torch.relu((x @ y).softmax(-1))


def operands(within, sizes, dtype=torch.float32):
    """Those terms that are not wanted are zero."""
    rows, steps, columns = sizes
    x, y = torch.randn(BATCH, rows, steps), torch.randn(BATCH, steps, columns)
    numbers = {
        MatmulAxis.ROW: torch.arange(rows)[:, None, None],
        MatmulAxis.STEP: torch.arange(steps)[None, :, None],
        MatmulAxis.COLUMN: torch.arange(columns),
    }
    is_wanted = numbers[within.low] <= numbers[within.high] + within.distance
    if MatmulAxis.COLUMN not in (within.low, within.high):
        x = x * is_wanted[..., 0]
    elif MatmulAxis.ROW not in (within.low, within.high):
        y = y * is_wanted[0]
    return x.to(dtype), y.to(dtype), is_wanted.expand(rows, steps, columns)


def marked(monkeypatch, within):
    def mark(graph):
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default):
            node.meta[WITHIN] = within

    monkeypatch.setattr("hemstitch.pipeline.analyse_masks", mark)


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_what_is_wanted_is_the_same(low, high, dtype, monkeypatch):
    """To the last bit; the rest of a result is the same or zero, and some of it is."""
    for distance, sizes in DISTANCES if dtype is torch.float32 or IS_WHOLE else DISTANCES[:1]:
        within = Within(low, high, distance)
        x, y, is_wanted = operands(within, sizes, dtype)
        found = []
        for each in (within, None):
            marked(monkeypatch, each)
            found.append(compiled(multiplied)(x, y))
        mine, other = found
        is_seen = is_wanted.any(1) if MatmulAxis.STEP not in (low, high) else torch.tensor(True)
        assert torch.equal(mine * is_seen, other * is_seen)
        assert ((mine == other) | (mine == 0)).all()
        if MatmulAxis.STEP not in (low, high) and (distance, sizes) == (0, LARGE):
            assert (mine == 0).any()


@settings(max_examples=examples(30), deadline=None)
@given(
    pair=st.sampled_from(PAIRS),
    distance=st.integers(-40, 40),
    sizes=st.tuples(st.integers(2, 70), st.integers(2, 70), st.integers(2, 70)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_interpreter_leaves_out_as_much(pair, distance, sizes, dtype):
    within = Within(*pair, distance)
    x, y, is_wanted = operands(within, sizes, dtype)
    is_seen = is_wanted.any(1) if MatmulAxis.STEP not in pair else torch.tensor(True)
    with pytest.MonkeyPatch.context() as patch:
        marked(patch, within)
        ((graph, _),) = plans_of(multiplied, (x, y), CPU)
    (found,) = Simulation({}, CPU.threads).run(graph, plan_in_blocks(graph), (x, y))
    (exact,) = interpret.run(graph, (x, y), precise=True)
    torch.testing.assert_close(found * is_seen, exact * is_seen)


def test_kernels_say_what_is_wanted(golden, monkeypatch):
    marked(monkeypatch, Within(MatmulAxis.COLUMN, MatmulAxis.ROW, 2))
    x, y = torch.zeros(BATCH, 40, 16), torch.zeros(BATCH, 16, 50)
    ((graph, _),) = plans_of(into_a_tile, (x, y), CPU)
    (step,) = plan_in_blocks(graph).steps
    kernel = step.stitched.kernel
    (contract,) = (s for s in statements(kernel) if isinstance(s, Contract))
    assert contract.band is not None
    golden(show(kernel) + "\n")
