"""Clusters remember why they stay apart."""

from __future__ import annotations

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.planning.clusters import Clustering
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
