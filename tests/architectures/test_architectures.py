"""Architectures of the `transformers` library, tiny, with random weights: answers, answers to
another number of inputs, and gradients, no less exact than eager's.

HEMSTITCH_TESTS=all tests all of them, half a minute each; else it is some.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.effort import IS_WHOLE

WIDTH, TOKENS = 64, 256
# Settings by the names that configurations have for them; each takes those that it has.
SETTINGS: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim"), WIDTH),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim"), 96),
    **dict.fromkeys(("decoder_ffn_dim", "hidden_dim"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("head_dim", "kv_channels", "d_kv"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 200),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "vocab_size": TOKENS,
    "image_size": 32,
    "patch_size": 8,
    "state_size": 8,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
DROPOUTS = ("dropout", "drop_path", "layerdrop", "pdrop")  # in the names of settings


@dataclass(frozen=True, slots=True)
class Architecture:
    """`head`: what is put behind the model, of its class's name. `takes`: a kind of inputs.
    `settings`: of its own; None takes one of `SETTINGS` away."""

    head: str
    takes: str = "text"
    settings: Mapping[str, Any] = field(default_factory=dict)


def _text(head: str = "ForCausalLM", **settings: Any) -> Architecture:
    return Architecture(head, "text", settings)


def _images(**settings: Any) -> Architecture:
    return Architecture("ForImageClassification", "images", settings)


def _pairs(head: str = "ForConditionalGeneration", **settings: Any) -> Architecture:
    return Architecture(head, "pairs", settings)


_STAGES = {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1], "image_size": 64}
_WINDOWS = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}

ARCHITECTURES: dict[str, Architecture] = {
    "Albert": _text("ForMaskedLM", embedding_size=32),
    "BigBird": _text(attention_type="original_full"),
    "Bloom": _text(),
    "CodeGen": _text(rotary_dim=8),
    "Cohere": _text(),
    "ConvBert": _text("ForMaskedLM", embedding_size=64),
    "DebertaV2": _text("ForMaskedLM", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "DistilBert": _text("ForMaskedLM"),
    "FNet": _text("ForMaskedLM"),
    "Falcon": _text(head_dim=None),
    "Gemma2": _text(),
    "GPTNeoX": _text(),
    "GptOss": _text(),
    "Granite": _text(),
    "JetMoe": _text(),
    "Longformer": _text("ForMaskedLM", attention_window=[8, 8]),
    "Mamba": _text(),
    "Mistral": _text(),
    "Mixtral": _text(),
    "MobileBert": _text(
        "ForMaskedLM", embedding_size=32, true_hidden_size=32, intra_bottleneck_size=32
    ),
    "ModernBert": _text("ForMaskedLM"),
    "OPT": _text(word_embed_proj_dim=64),
    "Olmo2": _text(),
    "Phi": _text(partial_rotary_factor=0.5),
    "Qwen3": _text(),
    "Qwen3Moe": _text(),
    "RoFormer": _text(embedding_size=64),
    "Rwkv": _text(attention_hidden_size=64),
    "Starcoder2": _text(),
    "Bart": _pairs(),
    "LED": _pairs(attention_window=8),
    "M2M100": _pairs(),
    "MT5": _pairs(),
    "SwitchTransformers": _pairs(),
    "ConvNext": _images(**_STAGES, num_stages=4, hidden_size=None, patch_size=4),
    "DeiT": _images(),
    "Dinov2": _images(),
    "MobileNetV2": _images(),
    "Segformer": _images(**_STAGES, num_attention_heads=[1, 2, 2, 4], num_hidden_layers=None),
    "Swin": _images(**_WINDOWS, patch_size=4, num_hidden_layers=None, num_attention_heads=None),
}
SOME = ("Swin",)  # windows, cut from images; tests/models has the usual ones
CHOSEN = ARCHITECTURES if IS_WHOLE else SOME


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    architecture = ARCHITECTURES[name]
    kind = getattr(transformers, f"{name}Config")
    default = kind()
    own = {getattr(kind, "attribute_map", {}).get(key, key) for key in architecture.settings}
    aliases = getattr(kind, "attribute_map", {})
    common = {
        key: value
        for key, value in SETTINGS.items()
        if hasattr(default, key) and aliases.get(key, key) not in own
    }
    quiet = {key: 0.0 for key in vars(default) if any(part in key for part in DROPOUTS)}
    given = {key: value for key, value in architecture.settings.items() if value is not None}
    config = kind(**{**quiet, **common, **given})
    model: nn.Module = getattr(transformers, f"{name}{architecture.head}")(config).float()
    return model


def inputs(name: str, batch: int, length: int) -> dict[str, Tensor]:
    architecture = ARCHITECTURES[name]
    tokens = torch.randint(3, 200, (batch, length))
    if architecture.takes == "images":
        side = architecture.settings.get("image_size", SETTINGS["image_size"])
        return {"pixel_values": torch.randn(batch, 3, side, side)}
    if architecture.takes == "pairs":
        answer = torch.randint(3, 200, (batch, length // 2))
        return {"input_ids": tokens, "decoder_input_ids": answer}
    return {"input_ids": tokens}


def results(model: nn.Module, function: Any, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The logits; and gradients, if it is in training."""
    with torch.set_grad_enabled(model.training):
        logits: Tensor = function(**given).logits
    if not model.training:
        return {"logits": logits}
    model.zero_grad()
    weights = torch.linspace(0.5, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    (logits * weights).mean().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **gradients}


def exact(model: nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """In float64; None where a model has operations that are not there for it."""
    wide = copy.deepcopy(model).double()
    doubled = {k: x.double() if x.is_floating_point() else x for k, x in given.items()}
    try:
        return results(wide, wide, doubled)
    except RuntimeError:
        return None


def assert_no_less_exact(model: nn.Module, function: Any, given: Mapping[str, Tensor]) -> None:
    found, eager = results(model, function, given), results(model, model, given)
    wide = exact(model, given)
    assert found.keys() == eager.keys()
    true = {key: value.double() for key, value in (wide or eager).items()}
    largest = max(float(value.norm()) for value in true.values())
    for key, value in true.items():
        scale = max(float(value.norm()), 1e-2 * largest)
        allowed = 2 * float((eager[key] - value).norm()) + (2e-6 if wide else 1e-5) * scale
        assert float((found[key] - value).norm()) <= allowed, key


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEMSTITCH_STRICT", "1")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("name", CHOSEN)
def test_no_less_exact_than_eager(name: str) -> None:
    model = made(name).eval()
    function = torch.compile(model, backend="hemstitch")
    for batch, length in ((2, 24), (3, 17)):
        assert_no_less_exact(model, function, inputs(name, batch, length))
    torch._dynamo.reset()
    model = model.train()
    assert_no_less_exact(model, torch.compile(model, backend="hemstitch"), inputs(name, 2, 24))
