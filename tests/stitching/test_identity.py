"""Which groups are the same kernel."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Op
from hemstitch.ir.parser import parse
from hemstitch.kernel_ir.printer import show
from hemstitch.planning.materialisation import materialisation
from hemstitch.planning.trials import Trials
from hemstitch.planning.work import Work
from hemstitch.stitching import stitcher as module
from hemstitch.stitching.kernel_identity import identity
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

CHAIN = """
%0 = input f32[64, {size}] "x" position 0 strides ({stride}, 1)
%1 = constant f32[64, {size}] {value}
%2 = mul f32[64, {size}] %0, %1
%3 = {op} f32[64, {size}] %2
output %3 strides ({size}, 1)
"""


def group_of(text):
    graph = parse(text, Builder())
    work = Work(graph, materialisation(graph))
    return work.group(work.vertices)


def chain(op="exp", size=32, stride=32, value=2.0):
    return group_of(CHAIN.format(op=op, size=size, stride=stride, value=value))


def key(group, alignment=1):
    return identity([group], alignment).key


def test_equal_groups_of_other_nodes_are_the_same():
    first, second = chain(), chain()
    assert not set(first.members) & set(second.members)
    assert key(first) == key(second)


@pytest.mark.parametrize(
    "other", [{"op": "log"}, {"size": 33, "stride": 33}, {"stride": 40}, {"value": 2.5}]
)
def test_whatever_the_kernel_shows_makes_a_difference(other):
    assert key(chain()) != key(chain(**other))


def test_zero_is_not_its_negative():
    assert key(chain(value=0.0)) != key(chain(value=-0.0))


SEEDED = """
%0 = input i64[4] "seeds" position 0 strides (1)
%1 = slice i64[1] %0 ({place}::1)
%2 = reshape i64[] %1
%3 = philox f32[64] %2
%4 = exp f32[64] %3
output %4 strides (1)
"""

NEIGHBOURS = """
%0 = input f32[9, 64] "x" position 0 strides (64, 1)
%1 = slice f32[1, 64] %0 ({first}::1, 0::1)
%2 = slice f32[1, 64] %0 ({second}::1, 0::1)
%3 = mul f32[1, 64] %1, %2
output %3 strides (64, 1)
"""


def places(group, alignment=1):
    found = identity([group], alignment)
    return {t.node.attr.name: at for t, at in zip(found.tensors, found.places) if t.is_argument}


def test_where_a_slice_begins_is_a_place_not_a_kernel():
    first, second = (group_of(SEEDED.format(place=place)) for place in (0, 3))
    assert key(first) == key(second)
    assert (places(first), places(second)) == ({"seeds": 0}, {"seeds": 3})


def test_places_are_multiples_of_the_alignment():
    even, odd = (group_of(SEEDED.format(place=place)) for place in (2, 3))
    assert places(even, 16) == places(odd, 16) == {"seeds": 2}
    assert key(even, 16) != key(odd, 16)


def test_how_far_slices_are_apart_makes_a_difference():
    near, later, far = (
        group_of(NEIGHBOURS.format(first=first, second=second))
        for first, second in ((2, 3), (5, 6), (2, 4))
    )
    assert key(near) == key(later) != key(far)
    assert (places(near), places(later)) == ({"x": 2 * 64}, {"x": 5 * 64})


def test_what_is_read_as_a_whole_begins_at_its_beginning():
    text = NEIGHBOURS.format(first=4, second=5).replace("output", OUTPUT_OF_THE_WHOLE)
    assert places(group_of(text)) == {"x": 0}


OUTPUT_OF_THE_WHOLE = "%4 = sum f32[64] %0 (0)\noutput %4 strides (1)\noutput"


def recurrence(steps):
    def program(x, h):
        states = []
        for step in range(steps):
            h = torch.tanh(x[step] + h @ WEIGHT)
            states.append(h.sum(-1))
        return torch.stack(states)

    return program


WEIGHT = torch.randn(24, 24, dtype=torch.float64)  # the library multiplies it


def test_steps_are_the_same_kernel():
    kernels = []
    for steps in (8, 16):
        arguments = torch.randn(2, steps, 24, 24, dtype=torch.float64).unbind()
        arguments = arguments[0], arguments[1][0]
        ((_, plan),) = plans_of(recurrence(steps), arguments, CPU)
        assert len(plan.kernels) >= steps
        kernels.append({show(step.stitched.kernel).split("\n", 1)[1] for step in plan.kernels})
    assert len(kernels[1]) == len(kernels[0]) <= 4


def test_steps_run_at_their_places():
    for dtype in (torch.float32, torch.float64):
        x, h = torch.randn(7, 24, 24, dtype=dtype), torch.randn(24, 24, dtype=dtype)
        program = recurrence(7) if dtype is torch.float64 else shifted
        found = torch.compile(program, backend="hemstitch")(x, h)
        torch.testing.assert_close(found, program(x, h))


def shifted(x, h):
    """Writes at places as well."""
    first = torch.tanh(x[1:4, 3:] + h[3:]).flatten(1)
    second = torch.softmax(x[5:, :, 7:] * h[:, 7:], -1).flatten(1)
    return torch.cat([first.sum(1), second[:, 3:].sum(1), x[2, 5, 3:]])


def test_a_kernel_is_bound_to_other_tensors():
    first, second = chain(), chain()
    trials = Trials(generic_cpu(2, 8))
    made = [trials.stitched([group], name) for group, name in ((first, "one"), (second, "two"))]
    assert made[0].kernel.phases is made[1].kernel.phases
    assert [stitched.kernel.name for stitched in made] == ["one", "two"]
    for group, stitched in zip((first, second), made):
        tensors = {*group.reads.values(), *(write.tensor for write in group.writes)}
        assert set(stitched.tensors) == tensors


def test_layers_are_stitched_once(monkeypatch):
    """Four layers more take a twentieth of the trials of the first four."""
    counts = []
    original = module.stitch

    def counted(*arguments):
        counts[-1] += 1
        return original(*arguments)

    monkeypatch.setattr("hemstitch.planning.trials.stitch", counted)
    width = 48
    weight = torch.randn(width, width) / math.sqrt(width)

    def model(x, layers):
        for _ in range(layers):
            y = torch.nn.functional.layer_norm(x, (width,))
            x = x + torch.nn.functional.gelu(y @ weight)
        return x

    for layers in (4, 8):
        counts.append(0)
        ((_, plan),) = plans_of(lambda x, n=layers: model(x, n), [torch.randn(40, width)], CPU)
        assert sum(step.groups[0].members[-1].op is not Op.DOT for step in plan.kernels) >= layers
        assert len({show(step.stitched.kernel).split("\n", 1)[1] for step in plan.kernels}) <= 4
    assert counts[1] - counts[0] <= counts[0] / 20


CPU = replace(generic_cpu(2, 8), matrix_units={})
