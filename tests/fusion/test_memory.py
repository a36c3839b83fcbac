"""Orders of launches: what is in memory at once, and that each waits for what it needs."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F

from hemstitch.fusion.cluster import Clustering
from hemstitch.fusion.demand import demands
from hemstitch.fusion.greedy import merge_all
from hemstitch.fusion.launches import launches
from hemstitch.fusion.memory import in_less_memory
from hemstitch.fusion.trial import Trials
from hemstitch.fusion.work import Work
from hemstitch.kernel.placement import Lifetime, place
from hemstitch.options import Options
from hemstitch.runtime.assemble import assemble
from hemstitch.runtime.build import build
from hemstitch.stitch.machine import generic_cpu
from tests.compiled import plans_of

CPU = generic_cpu(2, 8)
LAYERS, ROWS, WIDTH = 6, 64, 256


def perceptron(x, *weights):
    for weight in weights:
        x = F.gelu(x @ weight)
    return x.sum()


def backward_graph():
    weights = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(LAYERS)]
    arguments = [torch.randn(ROWS, WIDTH), *weights]
    _, (graph, plan) = plans_of(perceptron, arguments, CPU, backward=True)
    return graph, plan


def clustered(graph):
    clustering = Clustering(Work(graph, demands(graph, frozenset())), Trials(CPU))
    merge_all(clustering)
    clustering.settle()
    return clustering


def test_gradients_of_weights_do_not_wait_for_the_end():
    """At most the gradients on both sides of a layer are there: not those of all layers."""
    graph, plan = backward_graph()
    count = max(argument.attr.position for argument in graph.inputs) + 1
    assembly = assemble(plan, build(plan, Options()), [], count)
    slots = [Lifetime(slot.bytes, slot.first, slot.last) for slot in assembly.slots]
    _, total = place(slots)
    assert total <= 3 * ROWS * WIDTH * 4


def test_an_order_is_legal_and_has_every_launch_once():
    graph, _ = backward_graph()
    clustering = clustered(graph)
    given = launches(clustering, pack=True)
    found = in_less_memory(clustering, given)
    assert sorted(map(id, found)) == sorted(map(id, given)) and found != given
    when = {cluster: place for place, launch in enumerate(found) for cluster in launch}
    for cluster, place_ in when.items():
        assert all(when[first] <= place_ for first in cluster.before - {cluster})


def test_effects_keep_their_order():
    def noisy(x):
        return x + torch.rand(8, 8), x * torch.rand(8, 8)

    for graph, _ in plans_of(noisy, [torch.randn(8, 8)], CPU):
        clustering = clustered(graph)
        order = in_less_memory(clustering, launches(clustering, pack=True))
        calls = [c.vertices[0] for launch in order for c in launch if c.is_library]
        places = [calls.index(effect) for effect in graph.effects if effect in calls]
        assert all(a < b for a, b in pairwise(places))
