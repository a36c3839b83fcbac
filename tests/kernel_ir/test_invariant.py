"""What is the same in each row, or each time that a loop goes round, is computed before, and means
the same."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch.nn import functional as F

from hemstitch.driver.verified import difference
from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.nodes import Buffer, Let, Loop, Role
from hemstitch.kernel_ir.passes.loop_invariants import hoist_loop_invariants
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import Simulation, plans_of, watched, with_kernels

CPU = generic_cpu(2, 8)


def times(plan, op: Op) -> int:
    """How often kernels execute such an operation, for all lanes at once."""
    nests = [n for k in plan.kernels for phase in k.stitched.kernel.phases for n in phase.nests]
    return sum(
        _times(nest.prologue, op) + prod(axis.extent for axis in nest.rows) * _times(nest.body, op)
        for nest in nests
    )


def _times(body, op: Op) -> int:
    outside = sum(isinstance(statement, Let) and statement.op is op for statement in body)
    loops = [statement for statement in body if isinstance(statement, Loop)]
    in_loops = sum((1 if s.lanes else s.axis.extent) * _times(s.body, op) for s in loops)
    return outside + in_loops


def kept(plan) -> set[Buffer]:
    buffers = {buffer for step in plan.kernels for buffer in step.stitched.kernel.buffers}
    return {buffer for buffer in buffers if buffer.why == "the same each time"}


def normalised(x):
    return (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-5)


def added(y, x):
    return y.exp() + x


def channels_last(x, mean, variance, weight):
    return F.relu(F.batch_norm(x, mean, variance, weight))


def chosen(y, x):
    """What is kept has one byte."""
    return torch.where((y.exp() > 1).expand_as(x), x, 2 * x)


CASES = {
    "statistics of columns": (normalised, [(300, 24)], Op.RSQRT),
    "channels": (channels_last, [(2, 16, 9, 11), *[(16,)] * 3], Op.RSQRT),
    "conditions": (chosen, [(40,), (200, 40)], Op.EXP),
    "several axes": (added, [(3, 33), (70, 3, 33)], Op.EXP),
    "only the inner axis": (added, [(33,), (70, 90, 33)], Op.EXP),
    "in f64": (normalised, [(300, 24)], Op.RSQRT),
}
OTHERS = {
    "few rows": (added, [(40,), (20, 40)]),
    "little work": (lambda x, y: x * (y + 1), [(200, 40), (40,)]),
    "of rows": (added, [(200, 1), (200, 40)]),
    "too much to keep": (added, [(5000,), (100, 5000)]),
    "products": (lambda x, y: x @ y.exp(), [(200, 40), (40, 40)]),
    "checked": (lambda x, y: x.int() // ((9 * y).int() // 7 + 1), [(200, 40), (40,)]),
}


def arguments(shapes, dtype=torch.float32):
    tensors = [torch.rand(shape, dtype=dtype) for shape in shapes]
    return [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in tensors]


@pytest.mark.parametrize("name", CASES)
def test_it_is_computed_once(name):
    function, shapes, op = CASES[name]
    tensors = arguments(shapes, torch.float64 if name == "in f64" else torch.float32)
    ((graph, plan),) = plans_of(function, tensors, CPU)
    after = with_kernels(plan, hoist_loop_invariants)
    assert times(after, op) * 64 <= times(plan, op)
    assert kept(after) and all(buffer.role is Role.TASK for buffer in kept(after))
    expected = function(*(x.double() for x in tensors))
    for order in ((0, 1), (1, 0)):
        (result,) = Simulation({}, CPU.threads, order).run(graph, after, tensors)
        assert difference(result, expected) < 1e-6


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name):
    function, shapes = OTHERS[name]
    ((_, plan),) = plans_of(function, arguments(shapes), CPU)
    assert plan.kernels
    for step in plan.kernels:
        assert hoist_loop_invariants(step.stitched.kernel) is step.stitched.kernel


def test_printed():
    """All at once: each has a kernel of its own."""
    cases = [case for name, case in CASES.items() if name != "in f64"]
    tensors = [arguments(shapes) for _, shapes, _ in cases]

    def several(tensors):
        return [case[0](*inputs) for case, inputs in zip(cases, tensors, strict=True)]

    compiled, report = watched(several)
    exact = several([[x.double() for x in inputs] for inputs in tensors])
    for result, expected in zip(compiled(tensors), exact, strict=True):
        assert difference(result, expected) < 1e-6
    assert not report.library_calls


def test_what_is_written_to_is_read_again():
    """A row after the other is added to a row that all of them read."""

    def rows(x):
        for row in range(1, 4):
            x[0] = x[row].exp() + x[0]
        return x * x[0].exp()

    x = torch.rand(90, 24)
    expected = rows(x.double())
    compiled, _ = watched(rows)
    assert difference(compiled(x), expected) < 1e-6
