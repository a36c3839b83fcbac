"""Whether two lists of numbers are in the same order."""

from __future__ import annotations

from collections.abc import Sequence


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's: 1 for the same order, -1 for the opposite, nan for less than two pairs."""
    if len(pairs) < 2:
        return float("nan")
    first, second = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    middle = (len(pairs) - 1) / 2
    products = sum((a - middle) * (b - middle) for a, b in zip(first, second))
    squares = [sum((rank - middle) ** 2 for rank in ranks) for ranks in (first, second)]
    size = float((squares[0] * squares[1]) ** 0.5)
    return products / size if size else float("nan")


def _ranks(values: Sequence[float]) -> list[float]:
    """Equal values share the mean of their places."""
    return [
        sum(other < value for other in values) + (sum(o == value for o in values) - 1) / 2
        for value in values
    ]
