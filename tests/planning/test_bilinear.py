"""Tiles of results along one axis are what a window gives there, in fewer products."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
import torch

from hemstitch.matmul.patterns.bilinear import (
    BACKWARD,
    FORWARD,
    LONG,
    Bilinear,
    one_by_one,
    toom_cook,
    transposed,
)

WAYS = [
    *((toom_cook(window), window, 2, window + 1) for window in (1, 2, 3, 4)),
    (toom_cook(2, 3), 2, 3, 4),
    (LONG, 3, 4, 6),
    *((one_by_one(window), window, 1, window) for window in (1, 7)),
]


def matrix(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(("way", "window", "results", "products"), WAYS)
def test_tiles_are_convolutions(way: Bilinear, window: int, results: int, products: int) -> None:
    read, weights = torch.randn(results + window - 1).double(), torch.randn(window).double()
    made = matrix(way.results) @ ((matrix(way.tile) @ read) * (matrix(way.window) @ weights))
    exact = torch.stack([read[k : k + window] @ weights for k in range(results)])
    torch.testing.assert_close(made, exact, rtol=1e-12, atol=1e-12)
    assert (way.products, way.reads, way.apart) == (products, len(read), results)


def test_what_counts_alike_in_the_results_is_alike_for_windows_of_all_lengths() -> None:
    """So that products of several windows add up before they are read."""
    counts = [set(transposed(toom_cook(window).results)) for window in (1, 2, 3, 4)]
    assert all(few < more for few, more in pairwise(counts))


@pytest.mark.parametrize("way", [*FORWARD.values(), *BACKWARD.values(), LONG])
def test_each_sum_has_something_to_begin_with(way: Bilinear) -> None:
    for row in chain(way.tile, way.window, way.results, transposed(way.results)):
        assert max(row) > 0
