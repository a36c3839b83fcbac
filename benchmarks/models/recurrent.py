"""Recurrent models written out with hand-made cells: a language model, CRNN (text in images) and
DIEN (click prediction). Gives modules whose forward takes the tensors of one batch by name.

The cells are loops over PyTorch's ordinary operations, so that a compiler sees all of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LSTMCell(nn.Module):
    """Hochreiter and Schmidhuber 1997, with the gates in PyTorch's order."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """One step; `gates` is what `from_input` gave for this step."""
        gates = gates + self.from_hidden(hidden)
        enter, forget, candidate, leave = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        return torch.sigmoid(leave) * torch.tanh(cell), cell


class LSTMLayer(nn.Module):
    """A loop of the cell over [batch, time, features], forwards or backwards in time."""

    def __init__(self, inputs: int, hidden: int, reverse: bool = False) -> None:
        super().__init__()
        self.cell = LSTMCell(inputs, hidden)
        self.reverse = reverse

    def forward(self, x: Tensor) -> Tensor:
        gates = self.cell.from_input(x)  # one large product for all steps
        hidden = cell = gates.new_zeros(x.shape[0], self.cell.hidden)
        steps = range(x.shape[1])
        outputs = []
        for step in reversed(steps) if self.reverse else steps:
            hidden, cell = self.cell(gates[:, step], hidden, cell)
            outputs.append(hidden)
        return torch.stack(outputs[::-1] if self.reverse else outputs, dim=1)


class BidirectionalLSTM(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.forwards = LSTMLayer(inputs, hidden)
        self.backwards = LSTMLayer(inputs, hidden, reverse=True)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.forwards(x), self.backwards(x)), dim=-1)


@dataclass(frozen=True, slots=True)
class LanguageModelSize:
    batch: int
    steps: int
    vocabulary: int
    hidden: int
    layers: int


class LanguageModel(nn.Module):
    """Embedding, LSTM layers, and a softmax layer that shares the embedding's weight."""

    def __init__(self, size: LanguageModelSize, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.layers = nn.ModuleList(LSTMLayer(size.hidden, size.hidden) for _ in range(size.layers))
        self.dropout = dropout

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = F.dropout(layer(x), self.dropout, self.training)
        return F.linear(x, self.embedding.weight)


@dataclass(frozen=True, slots=True)
class CRNNSize:
    batch: int
    width: int
    height: int
    channels: int
    hidden: int
    letters: int
    text: int


class CRNN(nn.Module):
    """Shi, Bai and Yao 2015: convolutions, two bidirectional LSTM layers, letters per column."""

    def __init__(self, size: CRNNSize) -> None:
        super().__init__()
        channels = size.channels
        self.features = nn.Sequential(
            *(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False),),
            *(nn.BatchNorm2d(2 * channels), nn.ReLU(), nn.MaxPool2d((2, 1))),
        )
        self.first = BidirectionalLSTM(2 * channels * (size.height // 4), size.hidden)
        self.second = BidirectionalLSTM(2 * size.hidden, size.hidden)
        self.classifier = nn.Linear(2 * size.hidden, size.letters)

    def forward(self, images: Tensor) -> Tensor:
        columns = self.features(images).flatten(1, 2).transpose(1, 2)
        letters: Tensor = self.classifier(self.second(self.first(columns)))
        return letters


@dataclass(frozen=True, slots=True)
class DIENSize:
    batch: int
    history: int
    items: int
    categories: int
    features: int  # of an item; half as many for its category
    hidden: int


class GRUCell(nn.Module):
    """Cho et al. 2014. With `attention` the update gate is scaled by it: DIEN's AUGRU."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(inputs, 3 * hidden)
        self.from_hidden = nn.Linear(hidden, 3 * hidden)

    def forward(self, gates: Tensor, hidden: Tensor, attention: Tensor | None = None) -> Tensor:
        reset, update, candidate = gates.chunk(3, dim=-1)
        past_reset, past_update, past_candidate = self.from_hidden(hidden).chunk(3, dim=-1)
        reset = torch.sigmoid(reset + past_reset)
        update = torch.sigmoid(update + past_update)
        if attention is not None:
            update = update * attention
        candidate = torch.tanh(candidate + reset * past_candidate)
        return (1 - update) * hidden + update * candidate


class Dice(nn.Module):
    """The data-dependent activation of Zhou et al. 2018: a PReLU whose knee is learnt by batch
    normalisation."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features, affine=False)
        self.slope = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.norm(x))
        return gate * x + (1 - gate) * self.slope * x


class DIEN(nn.Module):
    """Zhou et al. 2019: a GRU extracts interests from the items clicked, an attention GRU follows
    their evolution towards the item offered."""

    def __init__(self, size: DIENSize) -> None:
        super().__init__()
        self.items = nn.Embedding(size.items, size.features)
        self.categories = nn.Embedding(size.categories, size.features // 2)
        width = size.features + size.features // 2
        self.interest = GRUCell(width, size.hidden)
        self.attention = nn.Linear(width, size.hidden, bias=False)
        self.evolution = GRUCell(size.hidden, size.hidden)
        self.classifier = nn.Sequential(
            *(nn.Linear(2 * width + size.hidden, 2 * size.hidden), Dice(2 * size.hidden)),
            *(nn.Linear(2 * size.hidden, size.hidden), Dice(size.hidden)),
            nn.Linear(size.hidden, 1),
        )

    def embed(self, items: Tensor, categories: Tensor) -> Tensor:
        return torch.cat((self.items(items), self.categories(categories)), dim=-1)

    def forward(
        self,
        item: Tensor,
        category: Tensor,
        past_items: Tensor,
        past_categories: Tensor,
        length: Tensor,
    ) -> Tensor:
        """The logit of a click. `length`: how many of the past entries are real."""
        target = self.embed(item, category)
        past = self.embed(past_items, past_categories)
        steps = past.shape[1]
        real = torch.arange(steps, device=length.device) < length[:, None]
        gates = self.interest.from_input(past)
        hidden = gates.new_zeros(past.shape[0], self.interest.hidden)
        interests = []
        for step in range(steps):
            hidden = torch.where(real[:, step, None], self.interest(gates[:, step], hidden), hidden)
            interests.append(hidden)
        interest = torch.stack(interests, dim=1)
        scores = (interest * self.attention(target)[:, None]).sum(-1)
        weights = scores.masked_fill(~real, -1e9).softmax(-1)
        gates = self.evolution.from_input(interest)
        hidden = torch.zeros_like(hidden)
        for step in range(steps):
            hidden = self.evolution(gates[:, step], hidden, weights[:, step, None])
        mean = (past * real[..., None]).sum(1) / length[:, None]
        logit: Tensor = self.classifier(torch.cat((target, mean, hidden), dim=-1))
        return logit.squeeze(-1)
