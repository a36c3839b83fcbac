"""What `explain` says of Hemstitch's kernels for a model: as they run, and with products of
matrices left to the library, which alone compares with a compiler that leaves them there. And how
fast this processor multiplies, which no compiler changes."""

from __future__ import annotations

import torch

from benchmarks.rivals.problem import Made
from hemstitch.ir.types import DType
from hemstitch.machine.probes import MatmulProbe
from hemstitch.measure.timing import measure
from hemstitch.report.explain import explain
from hemstitch.toolchain.jit import host_target

WITHOUT = "_without_products"
LARGE = (1024, 1024, 1024)  # rows, steps, columns
TIMES = 5


def operations_per_second() -> float:
    """Of a large product of f32, by the library or by a kernel, as fast as it ever was."""
    threads, lanes = torch.get_num_threads(), host_target().lanes
    probe = MatmulProbe("kernel", DType.F32, *LARGE, threads, lanes)
    return max(probe.operations / min(measure(probe).values()) for _ in range(TIMES))


def counts(workload: Made) -> dict[str, float]:
    """As `Prepared.counts`, and the same without products; it compiles the model twice."""
    return _counts(workload, "", products=True) | _counts(workload, WITHOUT, products=False)


def _counts(workload: Made, ending: str, products: bool) -> dict[str, float]:
    options = {"products": products}
    with torch.set_grad_enabled(workload.training):
        report = explain(
            workload.model, options=options, backward=workload.training, **workload.arguments
        )
    return {
        f"kernels{ending}": report.kernel_count,
        f"library_calls{ending}": len(report.library_calls),
        f"megabytes{ending}": (report.bytes_read + report.bytes_written) / 1e6,
        f"library_megabytes{ending}": report.library_bytes / 1e6,
    }
