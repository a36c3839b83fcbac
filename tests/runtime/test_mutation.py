"""Arguments updated in place, from their own old contents and each other's."""

from __future__ import annotations

import pytest
import torch

from hemstitch.report.explain import explain

OPTIONS = {"strict": True, "check": True}


def transpose(x):
    x.copy_(x.t().clone())


def transpose_and_add(x):
    x.copy_(x.t() + x)


def flip(x):
    x.copy_(x.flip(0))


def shift(x):
    x[1:] = x[:-1].clone()


def roll(x):
    x.copy_(torch.cat([x[3:], x[:3]]))


def subtract_mean_of_columns(x):
    before = x.exp()
    x.sub_(x.mean(0))
    return before


def divide_by_sum_of_rows(x):
    x.div_(x.exp().sum(1, keepdim=True))
    return x + 1


def read_before_and_after(x):
    old = x.sum(1)
    x.mul_(2)
    return old, x.t().contiguous(), x.sum(0)


def several_times(x):
    x.add_(1)
    y = x * x
    x.mul_(y)
    return y.sum()


@pytest.mark.parametrize(
    "function",
    [
        *(transpose, transpose_and_add, flip, shift, roll, subtract_mean_of_columns),
        *(divide_by_sum_of_rows, read_before_and_after, several_times),
    ],
    ids=lambda f: f.__name__,
)
def test_one_argument(function):
    given = torch.randn(37, 37)
    exact = given.clone()
    expected = function(exact)
    found = torch.compile(function, backend="hemstitch", options=OPTIONS)(given)
    torch.testing.assert_close(given, exact)
    torch.testing.assert_close(found, expected)


def swap(a, b):
    old = a.clone()
    a.copy_(b)
    b.copy_(old)


def swap_transposed(a, b):
    old = a.clone()
    a.copy_(b.t())
    b.copy_(old.t())


def rotate(a, b):
    """A plane rotation."""
    old = a.clone()
    a.mul_(0.6).add_(b, alpha=-0.8)
    b.mul_(0.6).add_(old, alpha=0.8)


def cross_over(a, b):
    """One new value is computed, the other only moved."""
    old = a.clone()
    a.copy_(b.t() + 1)
    b.copy_(old.flip(0))


@pytest.mark.parametrize(
    "function", [swap, swap_transposed, rotate, cross_over], ids=lambda f: f.__name__
)
def test_two_arguments(function):
    given = [torch.randn(19, 19) for _ in range(2)]
    exact = [x.clone() for x in given]
    function(*exact)
    torch.compile(function, backend="hemstitch", options=OPTIONS)(*given)
    torch.testing.assert_close(given, exact)


@pytest.mark.parametrize("function", [transpose, flip, roll], ids=lambda f: f.__name__)
def test_a_moved_argument_goes_through_memory(function):
    report = explain(function, torch.randn(37, 37))
    assert (report.kernel_count, report.library_calls) == (2, [])


def turn(x, y):
    before = x.real.clone()
    x.mul_(1j).add_(y)
    return before + x.imag


def turn_and_swap(x, y):
    old = x.clone()
    x.copy_(y * 2j)
    y.copy_(old.conj())
    return torch.view_as_real(x).sum(0)


@pytest.mark.filterwarnings("error:H007")
@pytest.mark.parametrize("function", [turn, turn_and_swap, swap], ids=lambda f: f.__name__)
def test_complex_arguments(function):
    given = [torch.randn(5, 7, dtype=torch.complex64) for _ in range(2)]
    exact = [x.clone() for x in given]
    expected = function(*exact)
    found = torch.compile(function, backend="hemstitch", options=OPTIONS)(*given)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(given, exact)


def update_and_sum(x, y):
    x.mul_(0.9).add_(y)
    return x.sum(1)


def update_and_softmax(x, y):
    """The old contents are read in all three loops of a row."""
    x.mul_(2)
    return torch.softmax(x * y, -1)


@pytest.mark.parametrize("function", [update_and_sum, update_and_softmax], ids=lambda f: f.__name__)
def test_an_update_in_place_stays_one_kernel(function):
    given = [torch.randn(64, 64) for _ in range(2)]
    exact = [x.clone() for x in given]
    assert explain(function, *given).kernel_count == 1
    expected = function(*exact)
    found = torch.compile(function, backend="hemstitch", options=OPTIONS)(*given)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(given, exact)


def test_a_clone_is_memory_of_its_own():
    def function(x):
        old = x.clone()
        x.add_(1)
        return old, x.clone()

    x = torch.randn(5, 7)
    before = x.clone()
    old, new = torch.compile(function, backend="hemstitch", options=OPTIONS)(x)
    assert torch.equal(old, before) and torch.equal(new, x) and torch.equal(x, before + 1)
    assert len({t.data_ptr() for t in (x, old, new)}) == 3
