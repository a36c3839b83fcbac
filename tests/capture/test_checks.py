"""What eager refuses at run time is refused: the same exception says the same, nobody gets a
result, and the next call is right again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, tensor

from tests.effort import some

Function = Callable[..., Any]
Case = tuple[Function, tuple[Any, ...], tuple[Any, ...]]  # what it is called with, good and bad
X = torch.arange(20.0).reshape(4, 5) / 20
LINES = torch.ones(10, 5)
FEW, FEW_OUTSIDE, FEW_BELOW = tensor([[0, 4]] * 4), tensor([[0, 5]] * 4), tensor([[-1, 4]] * 4)
MANY = tensor([[0, 1, 2, 3, 4, 3, 2, 1, 0]] * 4)
CLASSES = tensor([0, 4, -100, 2])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function: Function, target: str = "auto", **keywords: Any) -> Function:
    options = {"strict": True, "check": True, "target": target}
    return torch.compile(function, backend="hemstitch", options=options, **keywords)


def raised(function: Function, arguments: tuple[Any, ...]) -> Exception:
    with pytest.raises(Exception) as caught:
        function(*arguments)
    return caught.value


def assert_refuses_as_eager(function: Function, case: Case) -> None:
    eager, good, bad = case
    for _ in range(2):
        torch.testing.assert_close(function(*good), eager(*good), equal_nan=True)
        mine, theirs = raised(function, bad), raised(eager, bad)
        assert type(mine) is type(theirs)
        assert _said(theirs).startswith(_said(mine)), (mine, theirs)


def _said(error: Exception) -> str:
    """Without the value that was refused."""
    return re.sub(r"(index|Target) -?\d+", r"\1", str(error)).partition("\n")[0]


def _with_gradients(function: Function) -> Function:
    def step(x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        loss = function(x, *others)
        return loss.detach(), torch.autograd.grad(loss, x)[0]

    return step


def _to_lines(i: Tensor, lines: Tensor) -> Tensor:
    return torch.zeros(4, 5).scatter_add(0, i[:, None].expand(10, 5), lines) * 2


def _divided(name: str, dtype: torch.dtype, other: Any = None) -> Case:
    def function(a: Tensor, b: Tensor) -> Tensor:
        if name == "trunc":
            return torch.div(a, b, rounding_mode="trunc") + 1
        return getattr(torch, name)(a, b) + 1

    a, b = tensor([7, 100, 3] * 7, dtype=dtype), tensor([2, 1, 3] * 7, dtype=dtype)
    zero = b.clone()
    zero[-1] = 0
    return function, (a, b), (a, zero)


INDICES: dict[str, Case] = {
    "scatter of a number": (lambda x, i: x.scatter(1, i, 1.0) * 2, (X, FEW), (X, FEW_OUTSIDE)),
    "scatter, negative": (lambda x, i: x.scatter(1, i, X) * 2, (X, FEW), (X, FEW_BELOW)),
    "scatter_add": (lambda x, i: x.scatter_add(1, i, X) * 2, (X, FEW), (X, FEW_OUTSIDE)),
    "scatter, along rows": (
        lambda x, i: x.scatter(0, i, X) * 2,
        (X, tensor([[0, 3, 1, 2, 0]])),
        (X, tensor([[0, 4, 1, 2, 0]])),
    ),
    "gather": (lambda x, i: x.gather(1, i) * 2, (X, FEW), (X, FEW_BELOW)),
    "embedding": (F.embedding, (tensor([3, 0]), X), (tensor([4, 0]), X)),
    "index": (lambda x, i: x[i] * 2, (X, tensor([-4, 3])), (X, tensor([0, -5]))),
    "index_copy": (
        lambda x, i: x.index_copy(0, i, X[:2]) * 2,
        (X, tensor([3, 0])),
        (X, tensor([-1, 0])),
    ),
    "lines are added": (
        _to_lines,
        (tensor([0, 3] * 5), LINES),
        (tensor([0, 4] * 5), LINES),
    ),
    "cross_entropy": (
        F.cross_entropy,
        (X, CLASSES),
        (X, tensor([0, 4, -1, 2])),
    ),
}
MORE_INDICES: dict[str, Case] = {
    "scatter, many a line": (
        lambda x, i: x.scatter(1, i, 1.0) * 2,
        (X, MANY),
        (X, MANY + 1),
    ),
    "gather, 32 bits": (lambda x, i: x[i] * 2, (X, FEW[0].int() - 4), (X, FEW[0].int() + 4)),
    "take": (torch.take, (X, FEW * 4), (X, FEW * 5)),
    "index_select": (
        lambda x, i: x.index_select(0, i) * 2,
        (X, tensor([3])),
        (X, tensor([-1])),
    ),
    "index_fill": (
        lambda x, i: x.index_fill(0, i, 1.0) * 2,
        (X, tensor([3, -4])),
        (X, tensor([3, -5])),
    ),
    "index_add": (
        lambda i, lines: torch.zeros(4, 5).index_add(0, i, lines) * 2,
        (tensor([0, 3] * 5), LINES),
        (tensor([0, -1] * 5), LINES),
    ),
    "index_add, 32 bits": (
        lambda i, lines: torch.zeros(4, 5).index_add(0, i, lines) * 2,
        (tensor([0, 3] * 5).int(), LINES),
        (tensor([0, -1] * 5).int(), LINES),
    ),
    "index_put": (
        lambda i, lines: torch.zeros(4, 5).index_put((i,), lines, accumulate=True) * 2,
        (tensor([0, -4] * 5), LINES),
        (tensor([0, -5] * 5), LINES),
    ),
    "nll_loss of images": (
        lambda x, i: F.nll_loss(x.reshape(1, 4, 5), i, weight=torch.ones(4)),
        (X, tensor([[0, 1, 2, 3, 0]])),
        (X, tensor([[0, 1, 2, 4, 0]])),
    ),
    "cross_entropy, smooth": (
        lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1, ignore_index=7),
        (X, tensor([0, 4, 7, 2])),
        (X, tensor([0, 4, 5, 2])),
    ),
    "max_unpool": (
        lambda x, i: F.max_unpool1d(x, i, 2),
        (torch.ones(1, 1, 2), tensor([[[0, 3]]])),
        (torch.ones(1, 1, 2), tensor([[[0, 4]]])),
    ),
}
NUMBERS: dict[str, Case] = {
    "//": _divided("floor_divide", torch.int64),
    "%, 8 bits": _divided("remainder", torch.int8),
    "chosen away": (
        lambda a, b: torch.where(b != 0, a // b, 0),
        (tensor([7, 5, 3]), tensor([1, 2, 1])),
        (tensor([7, 5, 3]), tensor([1, 0, 1])),
    ),
    "binary_cross_entropy": (
        F.binary_cross_entropy,
        (X, X),
        (X * 2, X),
    ),
    "binary_cross_entropy's target": (
        F.binary_cross_entropy,
        (X, X),
        (X, X - 0.5),
    ),
    "bernoulli": (
        lambda p: torch.bernoulli(p) * 2,
        (tensor([0.0, 1.0]),),
        (tensor([0.0, float("nan")]),),
    ),
}
MORE_NUMBERS: dict[str, Case] = {
    **{f"fmod {t}": _divided("fmod", t) for t in (torch.int16, torch.int32, torch.uint8)},
    **{f"trunc {t}": _divided("trunc", t) for t in (torch.int64, torch.uint8)},
    "by one number": (
        lambda a, b: (a % b).sum(),
        (tensor([7, 5, 3]), tensor(2)),
        (tensor([7, 5, 3]), tensor(0)),
    ),
    "of a number": (
        lambda b: 7 // b,
        (tensor([7, 5, 3]),),
        (tensor([7, 0, 3]),),
    ),
}
CASES = some([*INDICES.items(), *NUMBERS.items()], [*MORE_INDICES.items(), *MORE_NUMBERS.items()])


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_what_eager_refuses_is_refused(case: Case) -> None:
    assert_refuses_as_eager(compiled(case[0]), case)


@pytest.mark.parametrize("case", [INDICES["scatter_add"], NUMBERS["//"], INDICES["cross_entropy"]])
def test_kernels_of_gpus_check_as_well(case: Case) -> None:
    """Emulated: on a GPU they trap, as eager's do."""
    pytest.importorskip("triton")
    assert_refuses_as_eager(compiled(case[0], "interpret"), case)


def test_checks_of_symbolic_sizes() -> None:
    def function(x: Tensor, i: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        few = i[:, :1] + 0
        return x.scatter(1, few, 1.0) * 2, x.gather(1, i) + 1, a // (a.shape[0] - 3)

    fast, x = compiled(function, dynamic=True), torch.rand(6, 9)
    for index, a in ((8, 5), (9, 5), (3, 3)):
        arguments = x, torch.full((6, 4), index), torch.arange(a)
        if (index, a) == (8, 5):
            torch.testing.assert_close(fast(*arguments), function(*arguments))
            continue
        mine, theirs = raised(fast, arguments), raised(function, arguments)
        assert type(mine) is type(theirs)
        assert _said(theirs).startswith(_said(mine))


def test_what_is_empty_fails_nowhere() -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a[3:] // b, (a[3:] * 2).sum()

    fast = compiled(function, dynamic=True)
    for a, b in ((torch.arange(9), tensor(2)), (torch.arange(3), tensor(0))):
        torch.testing.assert_close(fast(a, b), function(a, b))
    assert isinstance(raised(fast, (torch.arange(4), tensor(0))), RuntimeError)


@pytest.mark.parametrize("cut", [0, 1])
def test_an_extreme_of_nothing(cut: int) -> None:
    """Where the sizes are known, and where the call brings them."""

    def of_rows(x: Tensor, k: int) -> Tensor:
        return x[:, k:].max(1).values * 2

    def of_all(x: Tensor, k: int) -> Tensor:
        return x[k:].min() + x[k:].max()

    for function in (of_rows, of_all):
        torch._dynamo.reset()
        case = function, (torch.rand(5, 5), cut), (torch.rand(5, 5), 5)
        fast = compiled(function, dynamic=bool(cut))
        torch.testing.assert_close(fast(*case[1]), function(*case[1]))
        mine, theirs = raised(fast, case[2]), raised(function, case[2])
        assert type(mine) is type(theirs)
        assert _said(theirs).startswith(_said(mine))


def test_gradients_are_refused_too() -> None:
    def words(weight: Tensor, i: Tensor) -> Tensor:
        return F.cross_entropy(F.embedding(i, weight).relu() @ weight.T, i)

    step = _with_gradients(words)
    fast = _with_gradients(compiled(words))
    good, bad = (X, tensor([0, 3, 1])), (X, tensor([0, 4, 1]))
    for _ in range(2):
        torch.testing.assert_close(fast(*good), step(*good))
        assert type(raised(fast, bad)) is type(raised(step, bad)) is IndexError


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_does_not_fit_a_slice(dynamic: bool) -> None:
    def function(x: Tensor, new: Tensor) -> Tensor:
        return x.slice_scatter(new * 2, 1, 1, 3) + 1

    fast = compiled(function, dynamic=dynamic)
    for columns, new_columns in ((5, 2), (3, 2), (1, 0)):
        good = torch.rand(4, columns), torch.rand(4, new_columns)
        torch.testing.assert_close(fast(*good), function(*good))
    for columns, new_columns in ((5, 5), (5, 0), (3, 3), (2, 2), (1, 1)):
        bad = torch.rand(4, columns), torch.rand(4, new_columns)
        assert type(raised(fast, bad)) is type(raised(function, bad)) is RuntimeError
