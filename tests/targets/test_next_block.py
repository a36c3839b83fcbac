"""What products ask for while they multiply: what the next block of rows reads and writes."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from hemstitch.driver.cpu_kernels import program_of
from hemstitch.driver.verified import difference
from hemstitch.kernel_ir.nodes import Kernel
from hemstitch.matmul.lowering.blocking import block_matmuls
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.cpu.next_block import PrefetchRegion, prefetched_regions
from hemstitch.toolchain.jit import threads_now
from tests.compiled import plans_of

ROWS = 4096
ASK = re.compile(r"call void @llvm.prefetch")


def block(x: Tensor, beside: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two products, what is added between them, and both results."""
    between = torch.relu(x @ first + beside)
    return between, torch.relu(between @ second)


def inputs(steps: int, columns: int = 128, rows: int = ROWS) -> tuple[Tensor, ...]:
    shapes = ((rows, steps), (rows, columns), (steps, columns), (columns, 32))
    return tuple(torch.randn(shape) / shape[0] ** 0.5 for shape in shapes)


def regions_of(kernel: Kernel) -> dict[str, list[PrefetchRegion]]:
    nests = (nest for phase in block_matmuls(kernel, 2).phases for nest in phase.nests)
    return {
        name: regions
        for nest in nests
        for name, regions in prefetched_regions(nest).items()
        if regions
    }


def test_all_that_a_block_of_rows_moves_is_asked_for_once() -> None:
    ((_, plan),) = plans_of(block, inputs(64), generic_cpu(2, 16))
    (step,) = plan.kernels
    regions_by_product = regions_of(step.stitched.kernel)
    regions = [region for group in regions_by_product.values() for region in group]
    sizes = sorted(region.bytes // 4 for region in regions)
    rows = sizes[0] // 32
    assert sizes == [rows * 32, rows * 64, rows * 128, rows * 128], "x, beside and both results"
    assert len({region.buffer for region in regions}) == len(regions)
    assert len(regions_by_product) == 2, "each product asks for some"
    assert ASK.search(program_of(step, threads_now()).text)


@pytest.mark.parametrize(
    ("steps", "rows"),
    [(384, ROWS), (64, 16)],  # takes longer than its rows; and all is in a cache
)
def test_else_nothing_is_asked_for(steps: int, rows: int) -> None:
    ((_, plan),) = plans_of(block, inputs(steps, 256, rows), generic_cpu(2, 16))
    for step in plan.kernels:
        assert not regions_of(step.stitched.kernel)


def test_to_ask_changes_nothing() -> None:
    """The last block asks for what lies behind the end."""
    inputs_ = inputs(64, 128, 1000)
    results = torch.compile(block, backend="hemstitch", options={"strict": True})(*inputs_)
    for ours, exact in zip(results, block(*(tensor.double() for tensor in inputs_)), strict=True):
        assert difference(ours, exact) < 1e-6
