"""Orders of launches: what is in memory at once, and that each waits for what it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from hemstitch.driver.builds import build
from hemstitch.driver.call_list import assemble
from hemstitch.ir.builder import NOTHING, Builder
from hemstitch.ir.calls import LibraryCall, Operand
from hemstitch.ir.graph import Graph, Op, Output
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.placement import Lifetime, place
from hemstitch.options import Options
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.greedy_merging import merge_all
from hemstitch.planning.launches import launches
from hemstitch.planning.materialisation import materialisation
from hemstitch.planning.peak_memory import in_less_memory
from hemstitch.planning.trials import Trials
from hemstitch.planning.work import Work
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

CPU = replace(generic_cpu(2, 8), matrix_units={})  # products are the library's
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
    clustering = Clustering(Work(graph, materialisation(graph, frozenset())), Trials(CPU))
    merge_all(clustering)
    clustering.settle()
    return clustering


def test_gradients_of_weights_do_not_wait_for_the_end():
    """At most the gradients on both sides of a layer are there: not those of all layers."""
    graph, plan = backward_graph()
    count = max(argument.attr.position for argument in graph.inputs) + 1
    assembly = assemble(plan, build(plan, Options(cache=False)), [], count)
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


def called(build, *values):
    """A library call that keeps kernels apart."""
    strides = tuple((value.shape[-1], 1) for value in values)
    operands = tuple(map(Operand, range(len(values))))
    call = LibraryCall("f", None, operands, (), strides, ((values[0].type, strides[0]),))
    (result,) = build.call(call, [build.make(Op.EXP, value) for value in values])
    return result


def chain(size):
    """Each call reads what the one before it gave, and the exponential of an argument."""
    build = Builder()
    values = [build.input(f"x{k}", k, (size, 64), DType.F32, (64, 1)) for k in range(7)]
    result = values[0]
    for value in values[1:]:
        result = called(build, result, value)
    return Graph(tuple(values), (Output(result, (64, 1)),))


@pytest.mark.parametrize(("size", "is_packed"), [(64, True), (1 << 15, False)])
def test_what_is_large_is_made_when_it_is_read(size, is_packed):
    """What is small is made in one launch, long before."""
    clustering = clustered(chain(size))
    order = in_less_memory(clustering, launches(clustering, pack=True))
    kernels = [launch for launch in order if not launch[0].is_library]
    assert (len(kernels[0]) == 7) is is_packed
    if not is_packed:
        assert [launch[0].is_library for launch in order] == [False, False, True] * 6


def printed(build, value):
    call = LibraryCall("print", None, (Operand(0),), (), ((64, 1),), (), effects=True)
    return build.make(Op.LIBRARY, value, attr=call, type=NOTHING)


def test_effects_keep_their_order():
    """Though the last of them reads what is there from the beginning."""
    build = Builder()
    x = build.input("x", 0, (64, 64), DType.F32, (64, 1))
    values = [x]
    for _ in range(4):
        values.append(called(build, values[-1]))
    effects = tuple(printed(build, value) for value in reversed(values))
    graph = Graph((x,), (), effects=effects)
    clustering = clustered(graph)
    order = in_less_memory(clustering, launches(clustering, pack=True))
    calls = [cluster.vertices[0] for launch in order for cluster in launch]
    assert [call for call in calls if call in effects] == [*effects]
