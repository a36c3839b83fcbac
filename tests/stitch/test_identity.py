"""Which groups are the same kernel."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hemstitch.fusion.demand import demands
from hemstitch.fusion.trial import Trials
from hemstitch.fusion.work import Work
from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Op
from hemstitch.ir.parser import parse
from hemstitch.kernel.printer import show
from hemstitch.stitch import stitch as module
from hemstitch.stitch.identity import identity
from hemstitch.stitch.machine import generic_cpu
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
    work = Work(graph, demands(graph))
    return work.group(work.vertices)


def chain(op="exp", size=32, stride=32, value=2.0):
    return group_of(CHAIN.format(op=op, size=size, stride=stride, value=value))


def key(group, **options):
    return identity([group], **options).key


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


def test_the_place_of_one_element_matters_to_the_kernel_alone():
    first, second = (group_of(SEEDED.format(place=place)) for place in (0, 3))
    assert key(first) != key(second)
    assert key(first, with_places=False) == key(second, with_places=False)


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

    def counted(groups, machine, name):
        counts[-1] += 1
        return original(groups, machine, name)

    monkeypatch.setattr("hemstitch.fusion.trial.stitch", counted)
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


CPU = replace(generic_cpu(2, 8), products={})
