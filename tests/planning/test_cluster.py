"""Clusters remember why they stay apart."""

from __future__ import annotations

import pytest

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph, Op, Output
from hemstitch.ir.types import DType
from hemstitch.planning.clusters import MAX_READS, Clustering
from hemstitch.planning.greedy_merging import merge_all
from hemstitch.planning.materialisation import materialisation
from hemstitch.planning.trials import Trials
from hemstitch.planning.work import Work
from hemstitch.targets.cpu.description import generic_cpu
from tests.graphs import single

SHAPE, STRIDES = (8, 8), (8, 1)


def test_what_lasts_is_not_tried_again_when_one_of_two_has_grown(monkeypatch):
    """x + x.T needs two walks over x, whatever else is computed beside it."""
    builder = Builder()
    made = builder.make(Op.EXP, builder.input("x", 0, SHAPE, DType.F32, STRIDES))
    both = builder.make(Op.ADD, made, builder.permute(made, (1, 0)))
    beside = builder.make(Op.NEG, made)
    graph = single(builder, both, beside)
    clustering = Clustering(Work(graph, materialisation(graph)), Trials(generic_cpu(1, 8)))
    of = clustering.cluster_of

    assert not clustering.try_merge(of[made], of[both])
    refusal = clustering.refusals[of[made], of[both]]
    assert (refusal.check, refusal.lasts) == ("axes", True)
    assert clustering.try_merge(of[made], of[beside])

    monkeypatch.setattr(Trials, "refusal", None)
    assert not clustering.try_merge(of[made], of[both])
    assert clustering.refusals[of[made], of[both]] is refusal


@pytest.mark.parametrize("count", [MAX_READS, MAX_READS + 1])
def test_a_kernel_reads_so_many_tensors_at_most(count: int) -> None:
    builder = Builder()
    inputs = [builder.input(f"x{n}", n, SHAPE, DType.F32, STRIDES) for n in range(count)]
    total = inputs[0]
    for x in inputs[1:]:
        total = builder.make(Op.ADD, total, x)
    graph = Graph(tuple(inputs), (Output(total, STRIDES),))
    clustering = Clustering(Work(graph, materialisation(graph)), Trials(generic_cpu(1, 8)))
    merge_all(clustering)
    is_refused = any(refusal.check == "reads" for refusal in clustering.refusals.values())
    assert is_refused is (count > MAX_READS)
