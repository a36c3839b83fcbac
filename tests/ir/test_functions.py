"""The functions of the graph IR in NumPy, against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hemstitch.ir.functions import fused_multiply_add


@pytest.mark.parametrize("number", [np.float16, np.float32, np.float64])
def test_a_fused_multiply_add_rounds_once(number: type[np.floating]) -> None:
    """Also where the sum cancels, and where what is added is next to nothing."""
    random, unit = np.random.default_rng(3), np.finfo(number).eps
    a, b = (random.standard_normal(4096).astype(number) for _ in range(2))
    c = (-a.astype(np.float64) * b * (1 + random.standard_normal(4096) * unit)).astype(number)
    c[::3] = (random.standard_normal(len(c[::3])) * unit**1.5).astype(number)
    result = fused_multiply_add(a, b, c)
    assert result.dtype == number
    up, down = (np.nextafter(result, number(side)) for side in (np.inf, -np.inf))
    for x, y, z, *near in zip(a, b, c, result, up, down):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        errors = [abs(Fraction(float(value)) - exact) for value in near]
        assert errors[0] == min(errors)


def test_of_special_values() -> None:
    values = np.array([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 5e-324])
    a, b, c = (x.ravel() for x in np.meshgrid(values, values, values))
    with np.errstate(all="ignore"):
        result, expected = fused_multiply_add(a, b, c), a * b + c
        assert fused_multiply_add(np.array(1.5e308), np.array(1.5), np.array(-1.5e308)) == 7.5e307
    np.testing.assert_array_equal(result, expected)
    number = ~np.isnan(result)
    np.testing.assert_array_equal(np.signbit(result)[number], np.signbit(expected)[number])
