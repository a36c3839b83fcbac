"""Products of one column and one row add up nothing; products of nothing stay what they are; axes
that change places are cut into tiles, whatever lies between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.compiled import assert_trains_as_eager, watched


def test_an_outer_product_adds_up_nothing() -> None:
    x, y = torch.randn(40, 1, requires_grad=True), torch.randn(1, 64, requires_grad=True)
    report = assert_trains_as_eager(lambda x, y: (x.sin() @ y) * 2, (x, y))
    assert not any(kernel.schemes for kernel in report.kernels if kernel.graph == "forward")


@pytest.mark.parametrize(("rows", "inner"), [(6, 0), (0, 5)])
def test_products_of_nothing(rows: int, inner: int) -> None:
    x, y = torch.randn(rows, inner, requires_grad=True), torch.randn(inner, 7, requires_grad=True)
    assert_trains_as_eager(lambda x, y: (x @ y).exp(), (x, y))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.permute_copy(x, (2, 1, 0)),
        lambda x: x.permute(2, 1, 0).exp().contiguous() + 1,
    ],
)
def test_axes_change_places_in_tiles(program: Callable[[Tensor], Tensor]) -> None:
    compiled, report = watched(program)
    x = torch.randn(48, 5, 40)
    torch.testing.assert_close(compiled(x), program(x))
    assert "crosses two axes" in report.kernels[0].ir
