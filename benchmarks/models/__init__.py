"""The models that tests and benchmarks share: one table, name -> how to make the model, its
inputs and its loss, at a tiny size (tests) and a larger one (measurements)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models import evt, recurrent
from benchmarks.models import hugging_face as hf
from benchmarks.models.evt import GCNSize, XMLCNNSize
from benchmarks.models.recurrent import CRNNSize, DIENSize, LanguageModelSize

Size = Literal["tiny", "large"]
Batch = dict[str, Tensor]  # the model's arguments by name, and "labels" for the loss


@dataclass(frozen=True, slots=True)
class Workload:
    """`model(size, dropout)`, `inputs(size)` from PyTorch's random state, `loss(output, batch)`."""

    model: Callable[[Size, float], nn.Module]
    inputs: Callable[[Size], Batch]
    loss: Callable[[Tensor, Batch], Tensor]


class Training(nn.Module):
    """A model together with its loss, the unit that is compiled: batch -> (loss, output)."""

    def __init__(self, workload: Workload, size: Size, dropout: float = 0.0) -> None:
        super().__init__()
        self.model = workload.model(size, dropout)
        self.loss = workload.loss

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        arguments = {name: value for name, value in batch.items() if not name.startswith("label")}
        output = self.model(**arguments)
        return self.loss(output, batch), output


def _tokens(*shape: int) -> Tensor:
    return torch.randint(3, hf.VOCABULARY, shape)


def _every_token(logits: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def _next_token(logits: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def _label(logits: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(logits, batch["labels"], label_smoothing=0.1)


def _click(logit: Tensor, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(logit, batch["labels"])


def _text_in_image(logits: Tensor, batch: Batch) -> Tensor:
    scores = logits.log_softmax(-1).transpose(0, 1)
    lengths = batch["label_lengths"]
    return F.ctc_loss(scores, batch["labels"], torch.full_like(lengths, len(scores)), lengths)


def _of(sizes: Mapping[Size, tuple[int, ...]]) -> Callable[[Size], Batch]:
    """Inputs of a language model: (batch, sequence length)."""

    def inputs(size: Size) -> Batch:
        tokens = _tokens(*sizes[size])
        return {"input_ids": tokens, "labels": tokens.clone()}

    return inputs


def _masked(size: Size) -> Batch:
    batch = _of({"tiny": (2, 12), "large": (8, 128)})(size)
    rows, columns = batch["input_ids"].shape
    lengths = torch.randint(columns // 2, columns + 1, (rows, 1))
    return batch | {"attention_mask": (torch.arange(columns) < lengths).long()}


def _line(size: Size) -> Batch:
    return _of({"tiny": (1, 5), "large": (1, 16)})(size)


def _pairs(size: Size) -> Batch:
    rows, source, target = (2, 10, 7) if size == "tiny" else (8, 128, 64)
    labels = _tokens(rows, target)
    return {
        "input_ids": _tokens(rows, source),
        "decoder_input_ids": labels.roll(1, 1),
        "labels": labels,
    }


def _speech(size: Size) -> Batch:
    rows, frames, target = (2, 24, 7) if size == "tiny" else (4, 600, 48)
    labels = _tokens(rows, target)
    features = torch.randn(rows, hf.MELS, frames)
    return {
        "input_features": features,
        "decoder_input_ids": labels.roll(1, 1),
        "labels": labels,
    }


def _images(size: Size, large_side: int = 128) -> Batch:
    side = 32 if size == "tiny" else large_side
    return {
        "pixel_values": torch.randn(8, 3, side, side),
        "labels": torch.randint(hf.LABELS, (8,)),
    }


def _channels_last(size: Size) -> Batch:
    batch = _images(size, 224)
    pixels = batch["pixel_values"].contiguous(memory_format=torch.channels_last)
    return batch | {"pixel_values": pixels}


def _resnet_50(size: Size, _: float) -> nn.Module:
    """Channels last, as EVT trains it; tiny: two stages of one bottleneck each."""
    width, depths = (8, (1, 1)) if size == "tiny" else (64, (3, 4, 6, 3))
    return hf.resnet(width, depths, widening=4).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


_LANGUAGE_MODEL: dict[Size, LanguageModelSize] = {
    "tiny": LanguageModelSize(batch=3, steps=4, vocabulary=60, hidden=24, layers=2),
    "large": LanguageModelSize(batch=32, steps=35, vocabulary=10000, hidden=512, layers=2),
}
_CRNN: dict[Size, CRNNSize] = {
    "tiny": CRNNSize(batch=2, width=6, height=8, channels=4, hidden=12, letters=11, text=2),
    "large": CRNNSize(batch=16, width=64, height=32, channels=32, hidden=128, letters=37, text=8),
}
_DIEN: dict[Size, DIENSize] = {
    "tiny": DIENSize(batch=6, history=4, items=50, categories=9, features=8, hidden=12),
    "large": DIENSize(batch=256, history=30, items=5000, categories=100, features=32, hidden=64),
}


def _language_inputs(size: Size) -> Batch:
    chosen = _LANGUAGE_MODEL[size]
    tokens = torch.randint(chosen.vocabulary, (chosen.batch, chosen.steps))
    return {"tokens": tokens, "labels": tokens.clone()}


def _crnn_inputs(size: Size) -> Batch:
    chosen = _CRNN[size]
    return {
        "images": torch.randn(chosen.batch, 1, chosen.height, chosen.width),
        "labels": torch.randint(1, chosen.letters, (chosen.batch, chosen.text)),
        "label_lengths": torch.randint(1, chosen.text + 1, (chosen.batch,)),
    }


def _dien_inputs(size: Size) -> Batch:
    chosen = _DIEN[size]
    past = (chosen.batch, chosen.history)
    return {
        "item": torch.randint(chosen.items, (chosen.batch,)),
        "category": torch.randint(chosen.categories, (chosen.batch,)),
        "past_items": torch.randint(chosen.items, past),
        "past_categories": torch.randint(chosen.categories, past),
        "length": torch.randint(1, chosen.history + 1, (chosen.batch,)),
        "labels": torch.randint(2, (chosen.batch,)).float(),
    }


def _transformer(
    make: Callable[..., nn.Module],
    tiny: Mapping[str, int] | None = None,
    large: Mapping[str, int] | None = None,
) -> Callable[[Size, float], nn.Module]:
    """All have the same size, but for what `tiny` and `large` say."""
    sizes = {
        "tiny": {"hidden": 32, "heads": 4, "layers": 1} | dict(tiny or {}),
        "large": {"hidden": 384, "heads": 6, "layers": 4} | dict(large or {}),
    }

    def model(size: Size, dropout: float) -> nn.Module:
        return make(**sizes[size], dropout=dropout)

    return model


_TWO = {"layers": 2}  # what a layer leaves to the next

WORKLOADS: dict[str, Workload] = {
    "bert": Workload(_transformer(hf.bert, _TWO), _masked, _every_token),
    "gpt2": Workload(_transformer(hf.gpt2), _of({"tiny": (2, 11), "large": (4, 256)}), _next_token),
    "llama": Workload(
        _transformer(hf.llama, _TWO), _of({"tiny": (2, 11), "large": (4, 256)}), _next_token
    ),
    "t5": Workload(_transformer(hf.t5, _TWO), _pairs, _every_token),
    "vit": Workload(
        _transformer(hf.vit, {"image": 32, "patch": 8}, {"image": 128, "patch": 16}),
        _images,
        _label,
    ),
    "resnet": Workload(lambda size, _: hf.resnet(8 if size == "tiny" else 64), _images, _label),
    "whisper": Workload(
        _transformer(hf.whisper, {"frames": 24}, {"frames": 600}), _speech, _every_token
    ),
    "dien": Workload(lambda size, _: recurrent.DIEN(_DIEN[size]), _dien_inputs, _click),
    "crnn": Workload(lambda size, _: recurrent.CRNN(_CRNN[size]), _crnn_inputs, _text_in_image),
    "lstm": Workload(
        lambda size, dropout: recurrent.LanguageModel(_LANGUAGE_MODEL[size], dropout),
        _language_inputs,
        _next_token,
    ),
}

_XML_CNN: dict[Size, XMLCNNSize] = {
    "tiny": XMLCNNSize(6, 40, 60, features=12, channels=8, hidden=16, labels=70),
    "large": XMLCNNSize(64, 256, 5000, features=304, channels=32, hidden=512, labels=20000),
}
_GCN: dict[Size, GCNSize] = {
    "tiny": GCNSize(nodes=50, edges=200, features=12, hidden=16, classes=7),
    "large": GCNSize(nodes=20000, edges=100000, features=128, hidden=256, classes=349),
}

# Of EVT alone.
MORE_WORKLOADS: dict[str, Workload] = {
    "xml-cnn": Workload(
        lambda size, _: evt.XMLCNN(_XML_CNN[size]),
        lambda size: evt.xml_cnn_inputs(_XML_CNN[size]),
        _click,
    ),
    "gcn": Workload(
        lambda size, dropout: evt.GCN(_GCN[size], dropout),
        lambda size: evt.gcn_inputs(_GCN[size]),
        _label,
    ),
    "resnet-50": Workload(_resnet_50, _channels_last, _label),
}

_GENERATED = {"hidden": 1024, "heads": 16}  # weights of 210 MB, beyond any cache


def _token(users: int) -> Callable[[Size], Batch]:
    """The next one of each, behind those that are there."""

    def inputs(size: Size) -> Batch:
        batch, layers, heads, past, features = (
            (users, 2, 2, 7, 8) if size == "tiny" else (users, 4, 8, 400, 64)
        )
        tokens = _tokens(batch, 1)
        kept = torch.randn(layers, 2, batch, heads, past, features)
        return {"input_ids": tokens, "past": kept, "labels": tokens.clone()}

    return inputs


# Answers to one user at a time, and a token more for one or some; nobody trains so.
SINGLE_WORKLOADS: dict[str, Workload] = {
    "bert-line": Workload(_transformer(hf.bert, _TWO), _line, _every_token),
    "llama-token": Workload(
        _transformer(hf.llama_token, _TWO, _GENERATED), _token(1), _every_token
    ),
    "llama-tokens": Workload(
        _transformer(hf.llama_token, _TWO, _GENERATED), _token(8), _every_token
    ),
}
