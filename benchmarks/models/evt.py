"""Two models that only EVT (2024, section 6) trains: XML-CNN, which labels texts with many labels,
and a graph convolution over nodes of several degrees. Gives modules, and their inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class XMLCNNSize:
    batch: int
    words: int
    vocabulary: int
    features: int
    channels: int
    hidden: int
    labels: int


@dataclass(frozen=True, slots=True)
class GCNSize:
    nodes: int
    edges: int
    features: int
    hidden: int
    classes: int


class XMLCNN(nn.Module):
    """Words -> convolutions of three widths, the largest of each of two parts of the text, a
    bottleneck -> a score for each label."""

    WIDTHS, PARTS = (2, 4, 8), 2

    def __init__(self, size: XMLCNNSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.features)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(size.features, size.channels, width, stride=2) for width in self.WIDTHS
        )
        self.bottleneck = nn.Linear(self.PARTS * size.channels * len(self.WIDTHS), size.hidden)
        self.output = nn.Linear(size.hidden, size.labels)

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.embedding(tokens).transpose(1, 2)
        features = [F.relu(layer(words)) for layer in self.convolutions]
        parts = [F.adaptive_max_pool1d(feature, self.PARTS).flatten(1) for feature in features]
        scores: Tensor = self.output(F.relu(self.bottleneck(torch.cat(parts, 1))))
        return scores


class GCN(nn.Module):
    """Two layers; each adds up its neighbours' features by edge, with weights of their degrees."""

    def __init__(self, size: GCNSize, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(size.features, size.hidden)
        self.second = nn.Linear(size.hidden, size.classes)
        self.dropout = dropout

    def forward(self, features: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        def spread(values: Tensor) -> Tensor:
            sent = values[source] * weight
            return sent.new_zeros(values.shape).index_add(0, target, sent)

        hidden = F.dropout(F.relu(spread(self.first(features))), self.dropout, self.training)
        return spread(self.second(hidden))


def xml_cnn_inputs(size: XMLCNNSize) -> dict[str, Tensor]:
    return {
        "tokens": torch.randint(size.vocabulary, (size.batch, size.words)),
        "labels": (torch.rand(size.batch, size.labels) < 0.02).float(),
    }


def gcn_inputs(size: GCNSize) -> dict[str, Tensor]:
    source, target = torch.randint(size.nodes, (2, size.edges))
    degree = torch.bincount(target, minlength=size.nodes).clamp(min=1).float()
    return {
        "features": torch.randn(size.nodes, size.features),
        "source": source,
        "target": target,
        "weight": degree.rsqrt()[target, None],
        "labels": torch.randint(size.classes, (size.nodes,)),
    }
