"""PyTorch's own compiler, which is listened to while it compiles. Where weights do not change, its
best mode wants them frozen, and modules stay as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch._inductor.config

from benchmarks import inductor_kernels
from benchmarks.rivals import compilers
from benchmarks.rivals.problem import Made, Prepared


def prepare(workload: Made, *, freezing: bool = False, **keywords: Any) -> Prepared:
    torch._inductor.config.freezing = freezing
    prepared = compilers.prepare(workload, backend="inductor", modules_stay=freezing, **keywords)
    with inductor_kernels.counted() as generated_code:
        prepared.step()

    def counts() -> dict[str, float]:
        return {
            "kernels": len(generated_code.kernels),
            "library_calls": len(generated_code.library_calls),
            "megabytes": (generated_code.bytes_read + generated_code.bytes_written) / 1e6,
            "library_megabytes": generated_code.library_bytes / 1e6,
        }

    return replace(prepared, counts=counts)
