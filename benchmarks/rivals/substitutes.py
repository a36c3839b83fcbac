"""Two functions of PyTorch in terms of simpler ones, for rivals that have no operator for them:
torchax neither the CTC loss nor adaptive pooling, ONNX no adaptive pooling. As exact as the
originals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

NEVER = -1e30  # a logarithm; infinity has no gradient


def adaptive_max_pool1d(x: Tensor, parts: int) -> Tensor:
    """Part i of n is from i / n of the length, rounded down, to (i + 1) / n, rounded up."""
    length = x.shape[-1]
    ends = [(part * length // parts, -(-(part + 1) * length // parts)) for part in range(parts)]
    return torch.stack([x[..., start:end].amax(-1) for start, end in ends], -1)


def ctc_loss(scores: Tensor, labels: Tensor, _: Tensor, lengths: Tensor) -> Tensor:
    """Graves et al. 2006: what leads to the labels with blanks (0) between, step by step. `scores`:
    logarithms, [steps, batch, letters], all of the same length."""
    rows, most = labels.shape
    states = torch.stack((torch.zeros_like(labels), labels), -1).flatten(1)
    states = torch.cat((states, torch.zeros_like(labels[:, :1])), 1)
    never = scores.new_full((rows, 2), NEVER)
    differs = F.pad(states[:, 2:] != states[:, :-2], (2, 0))  # then the blank may be left out
    path_scores = scores.gather(2, states.expand(len(scores), -1, -1))
    reached = torch.cat((path_scores[0, :, :2], scores.new_full((rows, 2 * most - 1), NEVER)), 1)
    for step in path_scores[1:]:
        before = torch.cat((never, reached), 1)
        skipped = torch.where(differs, before[:, :-2], NEVER)
        reached = torch.logsumexp(torch.stack((reached, before[:, 1:-1], skipped)), 0) + step
    last = torch.stack((2 * lengths - 1, 2 * lengths), 1)
    return (-torch.logsumexp(reached.gather(1, last), 1) / lengths).mean()


@contextmanager
def substituted() -> Iterator[None]:
    with (
        mock.patch.object(F, "adaptive_max_pool1d", adaptive_max_pool1d),
        mock.patch.object(F, "ctc_loss", ctc_loss),
    ):
        yield
