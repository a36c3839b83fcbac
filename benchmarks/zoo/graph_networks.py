"""Layers of `torch_geometric`, on one random graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import conv

from benchmarks.zoo.model import Library, Model

NODES, EDGES, WIDTH, FEATURES = 40, 160, 16, 8


def names() -> dict[str, str]:
    layers = [name for name in dir(conv) if name.endswith("Conv")]
    return dict.fromkeys(sorted(layers), "torch_geometric")


def attempts(name: str) -> Iterator[Callable[[], Model]]:
    yield partial(_build, name)


def _perceptron(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))


# Arguments of constructors by their names.
ARGUMENTS: dict[str, Any] = {
    "in_channels": WIDTH,
    "out_channels": WIDTH,
    "channels": WIDTH,
    "dim": 3,
    "edge_dim": FEATURES,
    "num_relations": 3,
    "kernel_size": 3,
    "K": 2,
    "k": 4,
    "num_layers": 2,
    "hidden_channels": WIDTH,
    "alpha": 0.1,
    "aggregators": ["sum", "mean", "max"],
    "scalers": ["identity", "amplification"],
    "deg": torch.tensor([0, 2, 10, 10, 8, 5]),
    "space_dimensions": 3,
    "propagate_dimensions": 4,
    "first_aggr": True,
    "num_node_types": 2,
    "num_edge_types": 3,
    "edge_type_emb_dim": 4,
    "edge_attr_emb_dim": 4,
}


def _build(name: str) -> Model:
    kind = getattr(conv, name)
    torch.manual_seed(0)
    arguments = {
        key: _argument(name, key)
        for key, parameter in inspect.signature(kind.__init__).parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        and key != "self"
    }
    if name in ("GATv2Conv", "GATConv", "TransformerConv"):
        arguments |= {"heads": 2, "edge_dim": FEATURES}
    module = kind(**arguments)
    return Model(module, _inputs(module))


def _argument(name: str, key: str) -> Any:
    if key == "nn":
        outputs = WIDTH * WIDTH if name in ("NNConv", "ECConv") else WIDTH
        width = {"NNConv": FEATURES, "ECConv": FEATURES}.get(name, WIDTH)
        width = 2 * WIDTH if name in ("EdgeConv", "DynamicEdgeConv") else width
        return _perceptron(width, outputs)
    if key == "mlp_h":
        return _perceptron(WIDTH, 3)
    if key in ("mlp_f", "mlp_g"):
        return _perceptron(WIDTH + 3 if key == "mlp_f" else WIDTH, WIDTH)
    if key == "conv":
        return conv.GCNConv(WIDTH, WIDTH)
    return ARGUMENTS[key]


def _inputs(module: nn.Module) -> dict[str, Any]:
    torch.manual_seed(1)
    values: dict[str, Callable[[], Any]] = {
        "x": lambda: torch.randn(NODES, WIDTH),
        "x_0": lambda: torch.randn(NODES, WIDTH),
        "h": lambda: torch.randn(NODES, WIDTH),
        "edge_index": lambda: torch.randint(0, NODES, (2, EDGES)),
        "hyperedge_index": lambda: torch.randint(0, NODES, (2, EDGES)),
        "pos_edge_index": lambda: torch.randint(0, NODES, (2, EDGES)),
        "neg_edge_index": lambda: torch.randint(0, NODES, (2, EDGES)),
        "edge_attr": lambda: torch.rand(EDGES, FEATURES),
        "edge_type": lambda: torch.randint(0, 3, (EDGES,)),
        "node_type": lambda: torch.randint(0, 2, (NODES,)),
        "pos": lambda: torch.randn(NODES, 3),
        "normal": lambda: torch.randn(NODES, 3),
        "pseudo": lambda: torch.rand(EDGES, 3),
    }
    parameters = inspect.signature(module.forward).parameters
    edges = ("edge_attr", "pseudo")
    chosen = {
        name: values[name]()
        for name, parameter in parameters.items()
        if name in values and (parameter.default is inspect.Parameter.empty or name in edges)
    }
    if type(module).__name__ not in USE_EDGES:
        chosen.pop("edge_attr", None)
    if type(module).__name__ == "GMMConv":
        chosen["edge_attr"] = torch.rand(EDGES, 3)
    return chosen


USE_EDGES = (
    "GATv2Conv",
    "GATConv",
    "TransformerConv",
    "NNConv",
    "ECConv",
    "GINEConv",
    "HEATConv",
    "PDNConv",
    "GMMConv",
)
LIBRARY = Library("torch_geometric", names, attempts)
