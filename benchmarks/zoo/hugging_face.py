"""Models of `transformers`, one of each architecture. Settings are made small by
the names that configurations have for them; where that does not build, fewer are."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import model_type_to_module_name

from benchmarks.zoo.model import Library, Model, NotBuilt, sized

BATCH, LENGTH, TOKENS, WIDTH = 2, 24, 256, 64
LAYERS: Mapping[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth"), 1),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 1),
    **dict.fromkeys(("num_encoder_layers", "num_transformer_layers", "num_blocks"), 1),
    **dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), 1),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("moe_num_experts",), 4),
    **dict.fromkeys(("vocab_size", "text_vocab_size", "vocab_size_per_layer_input"), TOKENS),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions"), 200),
    **dict.fromkeys(("max_target_positions",), 200),
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 0,
    "use_cache": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    **dict.fromkeys(("image_token_id", "image_token_index"), TOKENS - 2),
}
HEADS: Mapping[str, Any] = {
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "kv_channels", "d_kv"), 16),
    "num_key_value_heads": 2,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "n_group": 1,
    "topk_group": 1,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "state_size": 8,
}
WIDTHS: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim"), WIDTH),
    **dict.fromkeys(("encoder_hidden_size", "decoder_hidden_size", "projection_dim"), WIDTH),
    **dict.fromkeys(("word_embed_proj_dim", "embedding_size", "attention_hidden_size"), WIDTH),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim"), 96),
    **dict.fromkeys(("decoder_ffn_dim", "hidden_dim", "dim_feedforward"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
}
SECTIONS = "mrope_section"  # of half a head
IMAGES: Mapping[str, Any] = {"image_size": 32, "patch_size": 8}
# Of types whose configurations have constraints of their own; None takes a setting away.
OWN: Mapping[str, Mapping[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "codegen": {"rotary_dim": 8},
    "efficientnet": {"hidden_dim": 2560},
    "led": {"attention_window": 8},
    "longformer": {"attention_window": [8]},
    "lfm2": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "phi": {"partial_rotary_factor": 0.5},
    "reformer": {"is_decoder": True},
}
STEPS = (  # which settings an attempt makes small, and whether lists of numbers as well
    ((LAYERS, HEADS, WIDTHS, IMAGES), True),
    ((LAYERS, HEADS, WIDTHS, IMAGES), False),
    ((LAYERS, WIDTHS, IMAGES), False),
    ((LAYERS, WIDTHS), False),
    ((LAYERS, HEADS), False),
    ((LAYERS,), True),
    ((LAYERS,), False),
    ((), True),
    ((), False),
)
DROPOUTS = ("dropout", "drop_path", "layerdrop", "pdrop", "drop_rate", "jitter")  # in names
DEPTHS = ("depths", "layers", "num_blocks", "stage_num_blocks")
CLASSES = (
    "FOR_CAUSAL_LM",
    "FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "FOR_MASKED_LM",
    "FOR_IMAGE_CLASSIFICATION",
    "FOR_CTC",
    "FOR_SPEECH_SEQ_2_SEQ",
)


# What of its inputs a model gets: those that it must have, or all that are known; with images
# each alone, or in lists.
TEXTUAL = ("least", "all", "lists")
VISUAL = ("all", "lists", "least")


def names() -> dict[str, str]:
    """One of each architecture: parts of a model, as its encoder of text, are not tried again."""
    chosen: dict[str, str] = {}
    for name in modeling_auto.MODEL_MAPPING_NAMES:
        chosen.setdefault(model_type_to_module_name(name), name)
    return {name: _family(name) for name in chosen.values()}


def attempts(name: str) -> Iterator[Callable[[], Model]]:
    for steps, lists in STEPS:
        for inputs in VISUAL if _takes_images(name) else TEXTUAL:
            yield partial(_build, name, steps, lists, inputs)


def _family(name: str) -> str:
    for kind in CLASSES:
        if name in getattr(modeling_auto, f"MODEL_{kind}_MAPPING_NAMES"):
            return {
                "FOR_CAUSAL_LM": "decoders of text",
                "FOR_SEQ_TO_SEQ_CAUSAL_LM": "encoders and decoders of text",
                "FOR_MASKED_LM": "encoders of text",
                "FOR_IMAGE_CLASSIFICATION": "images",
                "FOR_CTC": "speech",
                "FOR_SPEECH_SEQ_2_SEQ": "speech",
            }[kind]
    return "others"


def _takes_images(name: str) -> bool:
    """A model of text and images computes little where it has text alone."""
    with contextlib.suppress(ImportError):  # that of a library that the class asks for
        return hasattr(getattr(transformers, _class_name(name), None), "get_image_features")
    return False


def _class_name(name: str) -> str:
    for kind in (*(f"{kind}_" for kind in CLASSES), ""):
        mapping = getattr(modeling_auto, f"MODEL_{kind}MAPPING_NAMES")
        if name in mapping:
            names = mapping[name]
            return names if isinstance(names, str) else str(names[0])
    raise NotBuilt("no class")


def _build(name: str, steps: tuple[Mapping[str, Any], ...], lists: bool, inputs: str) -> Model:
    settings = {key: value for step in steps for key, value in step.items()}
    kind = transformers.CONFIG_MAPPING[name]
    config = _small(kind, settings, lists, OWN.get(name, {}))
    model_class = getattr(transformers, _class_name(name))
    model = sized(lambda: model_class(config))
    return Model(model, _inputs(model, config, inputs))


def _small(kind: Any, settings: Mapping[str, Any], lists: bool, own: Mapping[str, Any]) -> Any:
    default = kind()
    parameters = inspect.signature(kind.__init__).parameters
    aliases = getattr(kind, "attribute_map", {})
    chosen: dict[str, Any] = {}
    for key in parameters:
        value = getattr(default, key, None)
        if isinstance(value, float) and any(part in key for part in DROPOUTS):
            chosen[key] = 0.0
        elif key == "rope_parameters" and HEADS.items() <= settings.items() and value:
            chosen[key] = value | ({SECTIONS: [2, 3, 3]} if "rope_type" in value else {})
        elif lists and isinstance(value, (list, tuple)) and value and _are_counts(value):
            chosen[key] = [1] * len(value) if key in DEPTHS else value
    for key, value in settings.items():
        target = aliases.get(key, key)
        if target in parameters and not isinstance(getattr(default, target, None), (list, tuple)):
            chosen[target] = value
    for key in getattr(kind, "sub_configs", {}):
        part = getattr(default, key, None)
        if part is not None:
            chosen[key] = _small(type(part), settings, lists, {})
    return kind(**{**chosen, **own})


def _are_counts(value: Any) -> bool:
    return all(isinstance(element, int) for element in value)


def _inputs(model: nn.Module, config: Any, which: str) -> dict[str, Any]:
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    torch.manual_seed(1)
    chosen: dict[str, Any] = {}
    for name, parameter in parameters.items():
        required = parameter.default is inspect.Parameter.empty and parameter.kind in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        )
        is_pair = name == "decoder_input_ids" and getattr(config, "is_encoder_decoder", False)
        if not (required or which != "least" or is_pair or name == main):
            continue
        maker = INPUTS.get(name)
        if maker is not None:
            chosen[name] = maker(config)
    if which == "lists" and "pixel_values" in chosen:
        chosen["pixel_values"] = chosen["pixel_values"][:, None]
    if {"input_ids", "pixel_values"} <= chosen.keys():
        chosen["input_ids"] = _with_places(model, config, chosen)
    return chosen


def _with_places(model: Any, config: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Tokens that stand for the features of images, where a model puts them among its text."""
    tokens: Tensor = inputs["input_ids"]
    token = _setting(config, "image_token_id", "image_token_index", default=0)
    if not token or not hasattr(model, "get_image_features"):
        return tokens
    with torch.no_grad():
        features = model.eval().get_image_features(inputs["pixel_values"])
    features = getattr(features, "pooler_output", features)
    width = _setting(model.get_input_embeddings(), "embedding_dim", default=WIDTH)
    count = sum(part.numel() for part in tree_leaves(features)) // (width * BATCH)
    return torch.cat([torch.full((BATCH, count), token), tokens], 1)


def _setting(config: Any, *keys: str, default: int) -> int:
    for holder in (config, getattr(config, "vision_config", None), *_parts(config)):
        for key in keys:
            value = getattr(holder, key, None)
            if isinstance(value, (list, tuple)) and value:
                value = value[0]
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return default


def _parts(config: Any) -> list[Any]:
    return [getattr(config, key, None) for key in getattr(type(config), "sub_configs", {})]


def _tokens(config: Any, length: int = LENGTH) -> Tensor:
    return torch.randint(3, min(200, _setting(config, "vocab_size", default=200)), (BATCH, length))


def _images(config: Any) -> Tensor:
    size = _setting(config, "image_size", default=64)
    channels = _setting(config, "num_channels", "in_channels", "in_chans", default=3)
    return torch.randn(BATCH, channels, size, size)


def _video(config: Any) -> Tensor:
    frames = _setting(config, "num_frames", "frames_per_clip", default=8)
    images = _images(config)
    return torch.randn(BATCH, frames, *images.shape[1:])


def _features(config: Any) -> Tensor:
    bins = _setting(config, "num_mel_bins", "input_feat_per_channel", default=80)
    frames = 2 * _setting(config, "max_source_positions", default=100)
    return torch.randn(BATCH, bins, frames)


def _boxes(config: Any) -> Tensor:
    corners = torch.randint(0, 100, (BATCH, LENGTH, 2))
    return torch.cat([corners, corners + 20], -1)


INPUTS: Mapping[str, Callable[[Any], Any]] = {
    "input_ids": _tokens,
    "decoder_input_ids": lambda config: _tokens(config, LENGTH // 2),
    "pixel_values": _images,
    "pixel_values_videos": _video,
    "input_values": lambda config: torch.randn(BATCH, 4000),
    "input_features": _features,
    "audio_values": lambda config: torch.randn(BATCH, 1, 4000),
    "bbox": _boxes,
}

LIBRARY = Library("transformers", names, attempts)
