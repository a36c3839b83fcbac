"""What `explain` says of Hemstitch's kernels for a model: as they run, and with products of
matrices left to the library, which alone compares with a compiler that leaves them there."""

from __future__ import annotations

import torch

from benchmarks.rivals.problem import Made
from hemstitch.explain import explain

WITHOUT = "_without_products"


def counts(made: Made) -> dict[str, float]:
    """As `Prepared.counts`, and the same without products; it compiles the model twice."""
    return _counts(made, "", products=True) | _counts(made, WITHOUT, products=False)


def _counts(made: Made, ending: str, products: bool) -> dict[str, float]:
    options = {"products": products}
    with torch.set_grad_enabled(made.training):
        report = explain(made.model, options=options, backward=made.training, **made.arguments)
    return {
        f"kernels{ending}": report.kernel_count,
        f"library_calls{ending}": len(report.library_calls),
        f"megabytes{ending}": (report.bytes_read + report.bytes_written) / 1e6,
    }
