"""Eager PyTorch, and what stands behind `torch.compile`. Takes what is to be run and the keywords
of `torch.compile`, none for eager."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.rivals.problem import Made, Prepared, Results


def prepare(workload: Made, *, modules_stay: bool = False, **keywords: Any) -> Prepared:
    """`modules_stay`: Dynamo need not look whether any module or weight is another one; what runs
    an exported model does not look either."""
    model, arguments = workload.model, workload.arguments
    if modules_stay:
        unguarded = {"guard_filter_fn": torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe}
        keywords["options"] = {**keywords.get("options", {}), **unguarded}
    if keywords:
        model.compile(**keywords)

    def train() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss, _ = model(**arguments)
        loss.backward()
        return loss.detach()  # type: ignore[no-any-return]

    def answer() -> Tensor:
        with torch.no_grad():
            return model(**arguments)  # type: ignore[no-any-return]

    def learnt(loss: Tensor) -> Results:
        learning = [p for p in model.parameters() if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in learning]
        return {"loss": [loss], "gradients": gradients}

    if workload.training:
        return Prepared(train, learnt)
    return Prepared(answer, lambda output: {"output": [output]})
