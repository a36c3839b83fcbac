"""How many rows of a product go by together, for so many threads."""

from __future__ import annotations

import pytest
import torch

from hemstitch.kernel_ir.nodes import Contract, walk
from hemstitch.matmul.lowering.blocking import block_nest
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize(("rows", "threads"), [(349, 2), (349, 3), (260, 2), (1000, 4)])
def test_threads_have_equally_many_blocks(rows: int, threads: int) -> None:
    """Of rows that no number divides well, where each thread has only a few."""
    left, right = torch.randn(4096, rows), torch.randn(4096, 256)
    ((_, plan),) = plans_of(
        lambda x, y: torch.exp(x).T @ y, (left, right), generic_cpu(threads, 16)
    )
    nests = [nest for step in plan.kernels for nest in step.stitched.kernel.phases[-1].nests]
    (nest,) = (nest for nest in nests if any(isinstance(s, Contract) for s in walk(nest.body)))
    blocked = block_nest(nest, threads)
    assert blocked is not None
    (block,) = (axis.extent for axis in blocked.nest.rows)
    assert block % threads == 0
