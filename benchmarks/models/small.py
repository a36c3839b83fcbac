"""The small models of FusionStitching 2018 (section 6): logistic regression, word2vec, an RNN and a
bidirectional one, one step of a translation decoder. Gives a model, which returns a loss, and its
arguments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.recurrent import BidirectionalLSTM, LSTMCell, LSTMLayer

Made = tuple[nn.Module, tuple[Tensor, ...]]
CLASSES, PIXELS, HIDDEN = 10, 28, 32


class Regression(nn.Module):
    """Softmax of one linear layer over images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(PIXELS * PIXELS, CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        weights = torch.softmax(self.layer(images), -1)
        return -(weights.gather(1, labels[:, None]).log()).mean()


class Word2Vec(nn.Module):
    """Skip-grams with negative samples."""

    def __init__(self, words: int = 1000, features: int = HIDDEN) -> None:
        super().__init__()
        self.centre = nn.Embedding(words, features)
        self.context = nn.Embedding(words, features)

    def forward(self, words: Tensor, near: Tensor, far: Tensor) -> Tensor:
        centre = self.centre(words)
        close = (centre * self.context(near)).sum(-1)
        apart = (centre[:, None] * self.context(far)).sum(-1)
        return -(F.logsigmoid(close) + F.logsigmoid(-apart).sum(-1)).mean()


class Rows(nn.Module):
    """An image, row after row, through an LSTM; classes from its last state."""

    def __init__(self, is_bidirectional: bool) -> None:
        super().__init__()
        layer = BidirectionalLSTM if is_bidirectional else LSTMLayer
        self.layer = layer(PIXELS, HIDDEN)
        self.out = nn.Linear(HIDDEN * (1 + is_bidirectional), CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.layer(images)[:, -1]), labels)


class Decoder(nn.Module):
    """One step of a translation: attention over the source, an LSTM cell, words."""

    def __init__(self, words: int = 500) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.cell = LSTMCell(2 * HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, words)

    def forward(
        self, word: Tensor, hidden: Tensor, state: Tensor, source: Tensor, labels: Tensor
    ) -> Tensor:
        scores = (torch.tanh(source + self.query(hidden)[:, None])).sum(-1)
        mixed = (torch.softmax(scores, -1)[..., None] * source).sum(1)
        gates = self.cell.from_input(torch.cat((word, mixed), -1))
        hidden, state = self.cell(gates, hidden, state)
        return F.cross_entropy(self.out(hidden), labels) + state.square().mean()


def _labels(count: int, most: int = CLASSES) -> Tensor:
    return torch.randint(most, (count,))


def _images() -> tuple[Tensor, ...]:
    return torch.randn(16, PIXELS, PIXELS), _labels(16)


SMALL: dict[str, Callable[[], Made]] = {
    "LR": lambda: (Regression(), (torch.randn(100, PIXELS * PIXELS), _labels(100))),
    "W2V": lambda: (
        Word2Vec(),
        (_labels(128, 1000), _labels(128, 1000), torch.randint(1000, (128, 16))),
    ),
    "RNN": lambda: (Rows(is_bidirectional=False), _images()),
    "BiRNN": lambda: (Rows(is_bidirectional=True), _images()),
    "NMT": lambda: (
        Decoder(),
        (
            *(torch.randn(8, HIDDEN) for _ in range(3)),
            torch.randn(8, 12, HIDDEN),
            _labels(8, 500),
        ),
    ),
}
