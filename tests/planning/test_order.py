"""Ranks of clusters stay topological under merges, and cycles are found."""

from __future__ import annotations

import networkx
from hypothesis import given
from hypothesis import strategies as st

from hemstitch.planning.topological_order import Cluster, is_cycle, join, merge, number

GRAPHS = st.integers(2, 14).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(
            st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(
                lambda pair: pair[0] < pair[1]
            )
        ),
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))),
        st.permutations(range(count)),
    )
)


def path_through_another(clusters, first, second):
    graph = networkx.DiGraph()
    graph.add_nodes_from(clusters)
    graph.add_edges_from((cluster, after) for cluster in clusters for after in cluster.after)
    for start, end in ((first, second), (second, first)):
        if graph.has_edge(start, end):
            graph.remove_edge(start, end)
    return networkx.has_path(graph, first, second) or networkx.has_path(graph, second, first)


@given(GRAPHS)
def test_merges_keep_the_order(case):
    _, edges, merges, order = case
    clusters = [Cluster([], position) for position in order]
    for before, after in edges:
        join(clusters[before], clusters[after])
    number(clusters)
    of = dict(enumerate(clusters))
    for a, b in merges:
        first, second = of[a], of[b]
        if first is second:
            continue
        alive = list(dict.fromkeys(of.values()))
        found = is_cycle(first, second)
        assert found == path_through_another(alive, first, second)
        if not found:
            merged = merge(first, second, [])
            of = {k: merged if c in (first, second) else c for k, c in of.items()}
        alive = list(dict.fromkeys(of.values()))
        assert len({cluster.rank for cluster in alive}) == len(alive)
        assert all(cluster.rank < after.rank for cluster in alive for after in cluster.after)
        assert all(cluster in after.before for cluster in alive for after in cluster.after)
