"""What each model needs is imported, and has run once: children are forked behind that. No gradient
is asked for, since PyTorch forbids forking after one."""

from __future__ import annotations

import importlib

import torch
from torch import nn

torch.set_num_threads(1)
for _name in (
    *("hemstitch.backend", "benchmarks.zoo.row", "torch._inductor.decomposition"),
    *("transformers.models.llama.modeling_llama", "transformers.models.vit.modeling_vit"),
    *("transformers.models.auto.modeling_auto", "timm", "torchvision"),
):
    importlib.import_module(_name)
with torch.no_grad():
    _layer = nn.TransformerEncoderLayer(16, 2, 16).eval()
    torch.compile(_layer, backend="aot_eager")(torch.randn(4, 2, 16))
torch._dynamo.reset()
