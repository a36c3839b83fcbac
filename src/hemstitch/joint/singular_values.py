"""Decompositions of matrices whose vectors nobody reads compute values alone, as in eager.

PyTorch's operations ask whether a gradient may need the vectors, and take a trace for one that may.
It takes twice as long.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from hemstitch.capture.fake_calls import value_of_call

aten = torch.ops.aten
# Which result is the values, and the argument that says whether there are vectors.
WITH_VECTORS = {
    aten._linalg_svd.default: (1, "compute_uv"),
    aten._linalg_eigh.default: (0, "compute_v"),
}


def drop_unread_vectors(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.linalg_eig.default):
        if _reads_only(node, 0):
            _replace_eigenvalues(node)
    for target, (place, name) in WITH_VECTORS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            if _reads_only(node, place):
                _without_vectors(node, target, name)


def _reads_only(node: Node, place: int) -> bool:
    return all(u.target is operator.getitem and u.args[1] == place for u in node.users)


def _without_vectors(node: Node, target: Any, name: str) -> None:
    names = [argument.name for argument in target._schema.arguments]
    passed = {**dict(zip(names, node.args)), **node.kwargs, name: False}
    count = names.index(name) + 1
    defaults = {a.name: a.default_value for a in target._schema.arguments}
    node.args = tuple(passed.pop(n, defaults[n]) for n in names[:count])
    node.kwargs = passed
    node.meta["val"] = value_of_call(node)


def _replace_eigenvalues(node: Node) -> None:
    for user in list(node.users):
        user.target, user.args = aten._linalg_eigvals.default, node.args
    node.graph.erase_node(node)
