"""`as_strided` sees the memory that a value would be in, also of slices, and of arguments that
share theirs, which AOTAutograd makes parts of one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from hemstitch.errors import GraphWarning

Program = Callable[..., Any]


def _slices(x: Tensor) -> list[Tensor]:
    y = x * 2
    columns = y[:, ::2]
    return [
        columns.as_strided((2, 2), (2, 1)),
        columns.as_strided((3, 2), (4, 1)),
        y[1:].as_strided((2, 2), (2, 1), 0),
        y[1:].as_strided((2, 2), (1, 3)),
        y.chunk(2, 1)[1].as_strided((2, 2), (4, 1)),
        y.t()[2:].as_strided((4,), (3,)),
        torch.as_strided_copy(y[1:], (2, 2), (1, 3)),
    ]


def _beside_others(x: Tensor) -> list[Tensor]:
    """Where what it sees is a part of a result, or in the memory of intermediates."""
    y, z = x[:1, :3] * 3, x[:1] * 2
    sorted_rows = (x.cos() * 3).sort(0).values
    return [torch.cat([y, z], 1), z.as_strided((2, 2), (1, 1), 1) * 2, sorted_rows + 1]


def _scattered(x: Tensor) -> list[Tensor]:
    y, new = x * 2, x[:2, :2] + 7
    return [
        torch.as_strided_scatter(y, new, (2, 2), (3, 1), 2),
        torch.as_strided_scatter(y[1:], new, (2, 2), (3, 1), 2),
        torch.as_strided_scatter(y[:, :2], new, (2, 2), (2, 1), 1),
        torch.as_strided_scatter(y[1:], new[:1], (1, 2), (2, 1)),
        (x.exp() * 2).sort(1).values,
    ]


def _of_an_argument(x: Tensor) -> list[Tensor]:
    x.add_(1)
    return [x[1:].as_strided((2, 2), (1, 4)), x.as_strided((2, 2), (1, 4)), x * 2]


def _written_where_it_overlaps(x: Tensor) -> list[Tensor]:
    a, b, c, d = x * 2, x * 3, x * 4, x.bfloat16()
    repeated = a.as_strided((4, 2), (1, 1))
    repeated.chunk(2, 1)[-1].index_fill_(1, torch.zeros(1, dtype=torch.int64), 1e4)
    rows = b.as_strided((3, 3), (2, 1), 1)
    rows[0, -1].fill_(torch.nan)
    rows[1, 1:].mul_(-2)
    rows[2, :2].copy_(x[0, :2])
    c.as_strided((4, 2), (1, 1), 2)[:, :1].mul_(0.5)
    d.as_strided((4, 2), (1, 1)).t()[1:].zero_()
    e = x * 2
    rows = e.as_strided((4, 2), (1, 1))
    rows.copy_(rows.flip(0))
    return [a, repeated * 1, b, c, d, e]


def _replaced_where_it_overlaps(x: Tensor) -> list[Tensor]:
    """These copy memory as it lies: one element stands for several."""
    windows, rows = (x * 2).unfold(1, 3, 1), x[:1].expand(3, -1)
    return [
        windows.select_scatter(windows.select(2, 1), 2, 0),
        x.unfold(1, 3, 1).slice_scatter(windows[..., 1:2], 2, 0, 1),
        windows.diagonal_scatter(windows.diagonal(0, 0, 2) + 1, 0, 0, 2),
        rows.select_scatter(x[1], 0, 1),
    ]


def _argument_written_where_it_overlaps(x: Tensor) -> list[Tensor]:
    rows = x.as_strided((4, 2), (1, 1), 6)  # of memory, wherever x begins
    rows.masked_fill_(x[0, :2] > 0, -3)
    x.as_strided((4, 2), (1, 1))[:, :1].fill_(5)
    windows = x.as_strided((3, 3), (2, 1))
    windows[1].copy_(x[0, 2:].sum() * 0 + windows[1].clone())  # equal to what is there
    windows[torch.tensor([2, 0])] = 7
    windows.copy_(torch.where(windows > 5, x[2:3, :1], windows))
    windows[1:].abs_()
    return [x * 2]


def _as_other_arguments_say(x: Tensor) -> list[Tensor]:
    rows, columns = x.shape
    y = x.t() * 2
    y.as_strided((rows - 1, 2), (columns - rows, 1), rows - 1)[1:].fill_(3)
    return [
        x[:, 1:].as_strided((rows, 2), (1, rows)),
        y[rows - 1 :].as_strided((2, columns - 3), (1, rows)),
        torch.as_strided_scatter(y[1:], x[:2, :2], (2, 2), (rows, 1), rows),
        y,
    ]


PROGRAMS = (
    _as_other_arguments_say,
    *(_slices, _beside_others, _scattered, _of_an_argument),
    *(_written_where_it_overlaps, _replaced_where_it_overlaps, _argument_written_where_it_overlaps),
)


def _compiled(program: Program, dynamic: bool) -> Program:
    torch._dynamo.reset()
    return torch.compile(program, backend="hemstitch", dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_elements_that_eager_sees(program: Program, dynamic: bool) -> None:
    compiled = _compiled(program, dynamic)
    for start, rows in ((0, 3), (5, 3), *(((2, 4),) if dynamic else ())):
        memory = torch.randn(40)
        x, same = (m[start:][: rows * (rows + 1)].view(rows, -1) for m in (memory, memory.clone()))
        with warnings.catch_warnings():
            warnings.simplefilter("error", GraphWarning)
            found = compiled(x)
        torch.testing.assert_close(found, program(same), equal_nan=True)
        torch.testing.assert_close(x, same)


def _windows_filled(x: Tensor) -> Tensor:
    y = x * 2
    y.unfold(1, 2, 1)[:, ::2].fill_(5)
    return y


def _argument_windows_multiplied(x: Tensor) -> Tensor:
    x.unfold(1, 3, 2).mul_(2)
    return x.sin()


def _view_of_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y[1:].as_strided((3, 2), (2, 1))[1].mul_(3)
    return y


def _multiplied_in_turn(x: Tensor) -> Tensor:
    y = x * 2
    rows = y.as_strided((3, 2), (1, 1))
    rows *= 3
    rows[torch.tensor([2, 1])] = x[:2, :2]
    torch.nn.functional.silu(rows[1:], True)
    rows.masked_scatter_(x[:, :2] > 0, x[:, 1:3].clone())
    rows.copy_(rows.flip(0)).index_fill_(0, torch.tensor([1]), rows[2, 1].detach())
    return y


def _repetitions_written(x: Tensor) -> Tensor:
    y = x * 2
    y[:1].expand(3, -1)[:, :2].zero_()
    return y


@pytest.mark.filterwarnings("error::hemstitch.errors.GraphWarning")
def test_nothing_overlaps_where_there_is_nothing_nor_is_written() -> None:
    mask = torch.tensor([True, False]).expand(3, 2)
    masked = _compiled(lambda x, y: (x & y) | x, dynamic=False)
    assert torch.equal(masked(mask, ~mask), mask)
    program = _compiled(lambda x: x.expand(2, *x.shape).mul_(2), dynamic=False)
    assert program(torch.zeros(0, 3)).shape == (2, 0, 3)


REFUSED = (_windows_filled, _argument_windows_multiplied, _view_of_a_view, _multiplied_in_turn)


@pytest.mark.parametrize(
    ("program", "gradients"),
    # Eager gives repetitions that are written to no gradient.
    [*product(REFUSED, (False, True)), (_repetitions_written, False)],
)
def test_writes_that_aotautograd_refuses_run_in_eager(
    program: Program, gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEMSTITCH_STRICT", "0")
    outcomes = []
    for function in (program, _compiled(program, dynamic=False)):
        leaf = torch.linspace(-1, 1, 15).requires_grad_(gradients)
        x = (leaf * 1).view(3, 5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", GraphWarning)
            y = function(x)
        if gradients:
            y.square().sum().backward()
        outcomes.append((y, x, leaf.grad))
    assert [warning.category for warning in caught] == [GraphWarning]
    torch.testing.assert_close(outcomes[1], outcomes[0])


def test_a_write_that_eager_refuses_raises_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEMSTITCH_STRICT", "0")
    program = _compiled(lambda x: (x * 2).expand(2, 3, 5).add_(1), dynamic=False)
    x = torch.randn(3, 5, requires_grad=True)
    with pytest.warns(GraphWarning), pytest.raises(RuntimeError, match="single memory location"):
        program(x)


def test_training_writes_to_an_argument_that_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEMSTITCH_STRICT", "0")

    def program(x: Tensor) -> Tensor:
        x[0].mul_(3)
        return x.square()

    outcomes = []
    for function in (program, _compiled(program, dynamic=False)):
        leaf = torch.linspace(-1, 1, 15, requires_grad=True)
        memory = leaf * 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", GraphWarning)
            y = function(memory.as_strided((3, 4), (2, 1), 1))
        y.sum().backward()
        outcomes.append((y, memory, leaf.grad))
    assert [warning.category for warning in caught] == [GraphWarning]
    torch.testing.assert_close(outcomes[1], outcomes[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_writes_where_elements_overlap(dynamic: bool) -> None:
    def program(x: Tensor) -> list[Tensor]:
        y = x * 2
        view = y.as_strided((4, 2), (1, 1))
        view[1].copy_(x[0, :2])
        view[:, :1] *= 7.0
        x.as_strided((3, 3), (2, 1), 1)[1, 1:].mul_(-2)
        return [y, view * 1, x.sin()]

    outcomes = []
    for function in (program, _compiled(program, dynamic)):
        leaf = torch.linspace(-1, 1, 15, requires_grad=True)
        x = (leaf * 1).view(3, 5)
        results = function(x)
        weights = [torch.arange(1.0, y.numel() + 1).view(y.shape) for y in results]
        torch.stack([(y * weight).sum() for y, weight in zip(results, weights)]).sum().backward()
        outcomes.append([*results, x, leaf.grad])
    torch.testing.assert_close(outcomes[1], outcomes[0])


def _write_to_the_first(a: Tensor, b: Tensor) -> Any:
    a.add_(1)
    return a.sum() + b


def _write_to_the_second(a: Tensor, b: Tensor) -> Any:
    b.mul_(2)
    return a * 3, b.sin()


PAIRS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "row and all": lambda x: (x[0], x),
    "overlapping": lambda x: (x[:3], x[1:]),
    "between": lambda x: (x[:, ::2], x[:, 1::2]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [_write_to_the_first, _write_to_the_second])
@pytest.mark.filterwarnings("error::hemstitch.errors.GraphWarning")
def test_arguments_that_share_memory(program: Program, dynamic: bool) -> None:
    compiled = torch.compile(program, backend="hemstitch", dynamic=dynamic)
    for pair in PAIRS.values():
        torch._dynamo.reset()
        outcomes = []
        for function in (program, compiled):
            leaf = torch.linspace(-1, 1, 40, requires_grad=True)
            x = (leaf * 1)[8:32].view(4, 6)
            results = function(*pair(x))
            listed = results if isinstance(results, tuple) else (results,)
            torch.stack([result.square().sum() for result in listed]).sum().backward()
            outcomes.append([*listed, x, leaf.grad])
        torch.testing.assert_close(outcomes[1], outcomes[0])
