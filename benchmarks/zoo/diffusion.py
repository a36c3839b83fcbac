"""Models of `diffusers`, each from a small configuration: U-Nets, autoencoders, transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import diffusers
import torch

from benchmarks.zoo.model import Library, Model, sized

_TWO = {"block_out_channels": (32, 64), "norm_num_groups": 8, "layers_per_block": 1}


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _flux(**more: Any) -> dict[str, Any]:
    return {
        "hidden_states": _noise(1, 16, 16),
        "encoder_hidden_states": _noise(1, 8, 32),
        "pooled_projections": _noise(1, 32),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(8, 3),
        **more,
    }


# Class: its settings, what makes its inputs.
MODELS: Mapping[str, tuple[Mapping[str, Any], Callable[[], dict[str, Any]]]] = {
    "UNet2DModel": (
        {
            "sample_size": 16,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 8,
            **_TWO,
        },
        lambda: {"sample": _noise(2, 3, 16, 16), "timestep": torch.tensor([5, 9])},
    ),
    "UNet2DConditionModel": (
        {
            "sample_size": 16,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": 32,
            "attention_head_dim": 4,
            **_TWO,
        },
        lambda: {
            "sample": _noise(2, 4, 16, 16),
            "timestep": torch.tensor([5, 9]),
            "encoder_hidden_states": _noise(2, 7, 32),
        },
    ),
    "AutoencoderKL": (
        {
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "sample_size": 32,
            **_TWO,
        },
        lambda: {"sample": _noise(2, 3, 32, 32)},
    ),
    "VQModel": (
        {
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            **_TWO,
        },
        lambda: {"sample": _noise(2, 3, 32, 32)},
    ),
    "AutoencoderTiny": (
        {
            "encoder_block_out_channels": (16, 16),
            "decoder_block_out_channels": (16, 16),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
        lambda: {"sample": _noise(2, 3, 32, 32)},
    ),
    "DiTTransformer2DModel": (
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "num_layers": 2,
            "sample_size": 8,
            "num_embeds_ada_norm": 10,
        },
        lambda: {
            "hidden_states": _noise(2, 4, 8, 8),
            "timestep": torch.tensor([5, 9]),
            "class_labels": torch.tensor([1, 3]),
        },
    ),
    "PixArtTransformer2DModel": (
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "num_layers": 2,
            "sample_size": 8,
            "cross_attention_dim": 32,
            "caption_channels": 32,
        },
        lambda: {
            "hidden_states": _noise(2, 4, 8, 8),
            "timestep": torch.tensor([5, 9]),
            "encoder_hidden_states": _noise(2, 7, 32),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
    ),
    "FluxTransformer2DModel": (
        {
            "in_channels": 16,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": (4, 4, 8),
        },
        _flux,
    ),
    "SD3Transformer2DModel": (
        {
            "sample_size": 8,
            "patch_size": 1,
            "in_channels": 4,
            "num_layers": 2,
            "out_channels": 4,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 32,
        },
        lambda: {
            "hidden_states": _noise(2, 4, 8, 8),
            "encoder_hidden_states": _noise(2, 7, 32),
            "pooled_projections": _noise(2, 32),
            "timestep": torch.tensor([5, 9]),
        },
    ),
    "AuraFlowTransformer2DModel": (
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "out_channels": 4,
            "pos_embed_max_size": 64,
        },
        lambda: {
            "hidden_states": _noise(2, 4, 8, 8),
            "encoder_hidden_states": _noise(2, 7, 32),
            "timestep": torch.tensor([0.5, 0.9]),
        },
    ),
    "UNetMotionModel": (
        {
            "sample_size": 16,
            "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
            "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
            "cross_attention_dim": 32,
            "motion_num_attention_heads": 4,
            **_TWO,
            "num_attention_heads": 4,
        },
        lambda: {
            "sample": _noise(1, 4, 4, 16, 16),
            "timestep": torch.tensor(5),
            "encoder_hidden_states": _noise(1, 7, 32),
        },
    ),
    "ControlNetModel": (
        {
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "cross_attention_dim": 32,
            "attention_head_dim": 4,
            "conditioning_embedding_out_channels": (16, 32),
            **_TWO,
        },
        lambda: {
            "sample": _noise(2, 4, 16, 16),
            "timestep": torch.tensor([5, 9]),
            "encoder_hidden_states": _noise(2, 7, 32),
            "controlnet_cond": _noise(2, 3, 32, 32),
        },
    ),
    "UNet1DModel": (
        {
            "sample_size": 32,
            "block_out_channels": (8, 8, 16),
            "in_channels": 2,
            "out_channels": 2,
            "time_embedding_type": "fourier",
            "extra_in_channels": 16,
        },
        lambda: {"sample": _noise(2, 2, 32), "timestep": torch.tensor([5, 9])},
    ),
}


def names() -> dict[str, str]:
    return dict.fromkeys(MODELS, "diffusers")


def attempts(name: str) -> Iterator[Callable[[], Model]]:
    yield partial(_build, name)


def _build(name: str) -> Model:
    settings, inputs = MODELS[name]
    module = sized(lambda: getattr(diffusers, name)(**settings))
    torch.manual_seed(1)
    return Model(module, inputs())


LIBRARY = Library("diffusers", names, attempts)
