"""Sizes of a trace: every formula evaluates to what sympy says, and symbols are found."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.functions import Mod

from hemstitch.capture.symbolic_sizes import Sizes
from hemstitch.errors import UnsupportedError
from hemstitch.ir import dims
from hemstitch.ir.builder import Builder


def symbolic_tensor(*shape: int) -> torch.Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(shape))
    return mode.from_tensor(torch.empty(*shape), symbolic_context=context)


FORMULAS = {
    "sum": lambda a, b: 3 * a + b - 2,
    "product": lambda a, b: (a + 1) * (b - 1) * a,
    "floor": lambda a, b: (2 * a + 3) // 2 + (b * 5) // a,
    "floor_negative": lambda a, b: (a - 7) // 3,
    "remainder": lambda a, b: (3 * a + 2) % 3 + (a * b) % 5 + 17 % a,
    "power": lambda a, b: a**2 + b**3,
    "extremes": lambda a, b: torch.sym_max(a, b - 3) + torch.sym_min(a, 4),
    "ceiling": lambda a, b: -(-a // 4),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name: str) -> None:
    random = Random(0)
    x = symbolic_tensor(7, 11)
    sizes = Sizes(Builder())
    sizes.bind([x])
    formula = FORMULAS[name]
    dim = sizes.dim(formula(*x.shape))
    first, second = (str(size.node.expr) for size in x.shape)
    assert sizes.places == {first: (0, 0), second: (0, 1)}
    assert sizes.hints == {first: 7, second: 11}
    for _ in range(20):
        a, b = random.randint(2, 40), random.randint(2, 40)
        expected = formula(sympy.Integer(a), sympy.Integer(b)) if "extreme" not in name else None
        value = dims.evaluate(dim, {first: a, second: b})
        assert value == (max(a, b - 3) + min(a, 4) if expected is None else expected)


@pytest.mark.parametrize("factor", [1.5, 0.25, 2.0])
def test_the_whole_part_of_a_size_times_a_fraction(factor: float) -> None:
    """As `interpolate` has it."""
    x = symbolic_tensor(7)
    sizes = Sizes(Builder())
    sizes.bind([x])
    dim = sizes.dim(torch.sym_int(x.shape[0] * factor))
    (name,) = sizes.places
    assert [dims.evaluate(dim, {name: n}) for n in range(30)] == [
        int(n * factor) for n in range(30)
    ]
    third = sizes.dim(torch.sym_int(x.shape[0] / 3))
    assert [dims.evaluate(third, {name: n}) for n in range(30)] == [n // 3 for n in range(30)]
    with pytest.raises(UnsupportedError, match="not known before the call"):
        sizes.dim(torch.sym_int(x.shape[0] * 0.1))


ROUNDED = {
    "up": lambda n: math.ceil((4 + n % 2) / 2) - 1,
    "up, a product": lambda n: math.ceil(n * 0.75),
    "up, what is negative": lambda n: math.ceil((3 - n) / 4),
    "down, what is negative": lambda n: math.floor((3 - n) / 4),
    "to even, a half": lambda n: (n + 1) // 2 * 2,
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_fraction_of_a_size_is_rounded_as_python_does(name: str) -> None:
    x = symbolic_tensor(7)
    sizes = Sizes(Builder())
    sizes.bind([x])
    dim = sizes.dim(ROUNDED[name](x.shape[0]))
    (symbol,) = sizes.places
    assert [dims.evaluate(dim, {symbol: n}) for n in range(30)] == [
        ROUNDED[name](n) for n in range(30)
    ]


def test_what_divides_a_size_is_undone_by_itself() -> None:
    """As where a matrix is read in lines of another length, and backward puts it together."""
    x = symbolic_tensor(12, 4)
    n, k = x.shape
    assert n % k == 0  # which the trace remembers
    sizes = Sizes(Builder())
    sizes.bind([x])
    assert sizes.dim((n // k) * k + 1) == sizes.dim(n + 1)
    assert sizes.dim((k // n) * n) != sizes.dim(k)


def test_numbers_come_before_tensor_sizes() -> None:
    x = symbolic_tensor(7)
    sizes = Sizes(Builder())
    sizes.bind([x, x.shape[0]])
    assert list(sizes.places.values()) == [(1, None)]


def test_a_symbol_is_solved_for_where_it_never_stands_alone() -> None:
    x = symbolic_tensor(6)
    (n,) = x.shape
    sizes = Sizes(Builder())
    sizes.bind([x.new_empty(4 * n + 3)])
    (name,) = sizes.places
    assert sizes.hints == {name: 27}
    assert dims.evaluate(sizes.dim(n * n), {name: 27}) == 36


def test_what_no_argument_tells_is_refused() -> None:
    (n,) = symbolic_tensor(6).shape
    with pytest.raises(UnsupportedError, match="not known before the call"):
        Sizes(Builder()).dim(n)


def test_no_guard_is_added() -> None:
    x = symbolic_tensor(6, 8)
    environment = x.shape[0].node.shape_env
    before = len(environment.guards)
    sizes = Sizes(Builder())
    sizes.bind([x])
    sizes.dims([x.shape[0] * 2 + x.shape[1], *x.stride()])
    sizes.number(x.shape[0] / 3)
    assert len(environment.guards) == before


def test_a_quotient_that_divides_another_stays() -> None:
    """Its fraction would divide one number by a half, of which there is no floor."""
    x = symbolic_tensor(8)
    (n,) = x.shape
    environment = n.node.shape_env
    environment.divisible = {Mod(n.node.expr, 4)}
    sizes = Sizes(Builder())
    sizes.bind([x])
    (name,) = sizes.hints
    assert dims.evaluate(sizes.dim(n // (2 * (n // 4))), {name: 8}) == 2
    largest = torch.sym_max(1, n // (2 * (n // 4)))
    assert dims.evaluate(sizes.dim(4 * (n // 4) * largest), {name: 8}) == 16


def test_what_is_subtracted_may_be_negative_and_so_may_numbers() -> None:
    n, m = dims.symbol("n"), dims.symbol("m", signed=True)
    never = (n * 2 + 1, n % 3, dims.choice("max", (m, n)), m % n)
    sometimes = (n - 1, m * n, (m + 1) // 2, dims.choice("min", (n, m)))
    assert not any(map(dims.may_be_negative, never))
    assert all(map(dims.may_be_negative, sometimes))


def test_what_divides_a_sum_divides_its_multiples() -> None:
    """Whichever terms cancel: 16*n*n - 8*n is a multiple of 2*n - 1."""
    n, m = dims.symbol("n"), dims.symbol("m")
    divisors = (n * 2 - 1, n - m, n * m * 4 + n * 6, n * n - n + 1)
    quotients = (n * 8, n * n + n + 1, m * 3 - n, n * 2 + 1, n - 1)
    for divisor in divisors:
        for quotient in quotients:
            assert dims.divides(divisor, divisor * quotient)
            assert dims.quotient(divisor * quotient, divisor) == quotient
            assert not dims.divides(divisor, divisor * quotient + 1)
            assert not dims.divides(divisor, divisor * quotient + m)


def _shifted_by_row(queries: torch.Tensor) -> torch.Tensor:
    """Scores of relative positions, as XLNet has them: read in lines of another length."""
    scores = queries @ torch.cat([queries, queries * 2], 2).transpose(-1, -2)
    batch, heads, rows, places = scores.shape
    lines = scores.reshape(batch, heads, places, rows)[:, :, 1:]
    shifted = lines.reshape(batch, heads, rows, places - 1)
    return torch.index_select(shifted, 3, torch.arange(rows)).softmax(-1)


def test_lines_of_another_length() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(_shifted_by_row, backend="hemstitch", options={"strict": True})
    for rows in (9, 4):
        queries = torch.randn(2, 4, rows, 16, requires_grad=True)
        torch._dynamo.mark_dynamic(queries, 2)
        result, expected = compiled(queries), _shifted_by_row(queries)
        weights = torch.randn_like(expected)
        gradients = [torch.autograd.grad((r * weights).sum(), queries) for r in (result, expected)]
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def _written_and_read(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    one, rest, strided = x.clone(), x.clone(), x.clone()
    one[n] = -1
    rest[n:].mul_(2)
    strided[n : n + 2 : 2] += 5
    return [one, rest, strided, x[n] + 1, x[:n].exp(), x * (n % 7)]


def _put(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    return [
        torch.select_scatter(x, x[0] * 2, 0, n),
        torch.slice_scatter(x, x[:2] * 3, 0, n, n + 2),
    ]


@pytest.mark.parametrize("program", [_written_and_read, _put])
def test_places_that_count_from_the_end(program: Callable[..., list[torch.Tensor]]) -> None:
    """The heap was written to in front of the result where such a number was a symbol."""
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="hemstitch")
    x = torch.arange(9.0)
    for n in (-3, -4, -6, 3, 5):
        torch.testing.assert_close(compiled(x, n), program(x, n))
    for n in (30, -30):
        with pytest.raises((IndexError, RuntimeError)):
            compiled(x, n)


def _small_parts(x: torch.Tensor) -> list[torch.Tensor]:
    """Their sizes are formulas that guards say to be 1, 0 and 2."""
    last, none, two = x.chunk(2, 0)[-1], x[3:], x[: x.shape[0] - 1]
    return [
        *(torch.fmax(last, x), x.masked_fill(last > 0, 2.0), last.expand_as(x) * 2),
        *(torch.cat([none, x]), last - two, torch.where(two > last, two, last), last.squeeze(0)),
        torch.lerp(x, last, 0.25).sum(0),
    ]


def test_what_a_guard_says_a_formula_is_broadcasts() -> None:
    """A size of 1 that looked like another one was read as if it had all elements."""
    torch._dynamo.reset()
    compiled = torch.compile(_small_parts, backend="hemstitch", dynamic=True)
    for shape in ((3, 1), (3, 4), (3, 1, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), _small_parts(x))
