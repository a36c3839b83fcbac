"""Models of the `transformers` library made from a configuration with random weights, nothing
downloaded. Gives modules whose forward returns one tensor: the logits or the last hidden state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers
from torch import Tensor, nn

VOCABULARY, LABELS, MELS = 512, 10, 16


class OneResult(nn.Module):
    """A transformers model that returns one of its results, and keeps no cache of past tokens."""

    def __init__(self, model: nn.Module, result: str, **arguments: object) -> None:
        super().__init__()
        self.model, self.result, self.arguments = model, result, arguments

    def forward(self, **inputs: Tensor) -> Tensor:
        result: Tensor = getattr(self.model(**inputs, **self.arguments), self.result)
        return result


def _config(name: str, **settings: Any) -> Any:
    return getattr(transformers, f"{name}Config")(**settings)


def bert(hidden: int, heads: int, layers: int, dropout: float) -> nn.Module:
    """The masked language model, with its attention written out."""
    config = _config(
        "Bert",
        hidden_size=hidden,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=4 * hidden,
        vocab_size=VOCABULARY,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation="eager",
    )
    return OneResult(transformers.BertForMaskedLM(config), "logits")


def bert_encoder(layers: int, dropout: float, hidden: int = 768) -> nn.Module:
    """The encoder layers of BERT-base without embeddings: takes `hidden_states`."""
    config = _config(
        "Bert",
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_attention_heads=hidden // 64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    config._attn_implementation = "sdpa"
    return OneResult(
        transformers.models.bert.modeling_bert.BertEncoder(config), "last_hidden_state"
    )


def gpt2(hidden: int, heads: int, layers: int, dropout: float) -> nn.Module:
    config = _config(
        "GPT2",
        n_embd=hidden,
        n_head=heads,
        n_layer=layers,
        vocab_size=VOCABULARY,
        n_positions=512,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return OneResult(transformers.GPT2LMHeadModel(config), "logits", use_cache=False)


def llama(hidden: int, heads: int, layers: int, dropout: float) -> nn.Module:
    """Rotary positions, RMSNorm, SwiGLU, two query heads for each key and value head."""
    config = _config(
        "Llama",
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        num_hidden_layers=layers,
        intermediate_size=3 * hidden,
        vocab_size=VOCABULARY,
        attention_dropout=dropout,
    )
    return OneResult(transformers.LlamaForCausalLM(config), "logits", use_cache=False)


class NextToken(nn.Module):
    """A decoder that answers to one token more. `past`: what it keeps of those before, keys and
    values, [layers, 2, batch, heads, tokens, features]."""

    def __init__(self, decoder: OneResult) -> None:
        super().__init__()
        self.model = decoder.model

    def forward(self, input_ids: Tensor, past: Tensor) -> Tensor:
        cache = transformers.DynamicCache(config=self.model.config)
        for number, layer in enumerate(cache.layers):
            layer.keys, layer.values = past[number, 0], past[number, 1]
            layer.is_initialized = True
        logits: Tensor = self.model(input_ids, past_key_values=cache).logits
        return logits


def llama_token(hidden: int, heads: int, layers: int, dropout: float) -> nn.Module:
    decoder = llama(hidden, heads, layers, dropout)
    assert isinstance(decoder, OneResult)
    return NextToken(decoder)


def t5(hidden: int, heads: int, layers: int, dropout: float) -> nn.Module:
    config = _config(
        "T5",
        d_model=hidden,
        d_kv=hidden // heads,
        d_ff=2 * hidden,
        num_heads=heads,
        num_layers=layers,
        vocab_size=VOCABULARY,
        dropout_rate=dropout,
        decoder_start_token_id=0,
    )
    return OneResult(transformers.T5ForConditionalGeneration(config), "logits", use_cache=False)


def vit(hidden: int, heads: int, layers: int, dropout: float, image: int, patch: int) -> nn.Module:
    config = _config(
        "ViT",
        hidden_size=hidden,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=4 * hidden,
        image_size=image,
        patch_size=patch,
        num_labels=LABELS,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return OneResult(transformers.ViTForImageClassification(config), "logits")


def resnet(width: int, depths: Sequence[int] = (2, 2), widening: int = 2) -> nn.Module:
    """He et al. 2015, of bottlenecks: as many stages as depths, each twice as wide as the last."""
    config = _config(
        "ResNet",
        embedding_size=width,
        hidden_sizes=[widening * width << stage for stage in range(len(depths))],
        depths=list(depths),
        layer_type="bottleneck",
        num_labels=LABELS,
    )
    return OneResult(transformers.ResNetForImageClassification(config), "logits")


def whisper(hidden: int, heads: int, layers: int, dropout: float, frames: int) -> nn.Module:
    config = _config(
        "Whisper",
        d_model=hidden,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_ffn_dim=4 * hidden,
        decoder_ffn_dim=4 * hidden,
        num_mel_bins=MELS,
        max_source_positions=frames // 2,
        max_target_positions=64,
        vocab_size=VOCABULARY,
        dropout=dropout,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    return OneResult(model, "logits", use_cache=False)
