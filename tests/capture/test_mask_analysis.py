"""What a mask that the program makes excludes is not multiplied, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import inf

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from hemstitch.capture.decompositions import decompositions
from hemstitch.capture.translation import capture
from hemstitch.ir.calls import Matmul
from hemstitch.ir.graph import Op, operation_of, toposort
from hemstitch.matmul import written_numbers
from hemstitch.matmul.mask_analysis import mark_masked_matmuls, masked_matmuls
from tests.capture.helpers import results
from tests.effort import some

BATCH, ROWS, KEYS, WIDTH = 3, 40, 40, 16
FORWARD = ["column within row", "step within row"]
BACKWARD = ["row within step", "column within row", "column within step", "step within row"]
LOWEST = torch.finfo(torch.float32).min


def rows_and_keys(keys: int = KEYS) -> tuple[Tensor, Tensor]:
    return torch.arange(ROWS)[:, None], torch.arange(keys)[None]


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, low: float = -inf) -> Tensor:
    scores = torch.where(mask, q @ k.transpose(-1, -2) * 0.25, low)
    return torch.softmax(scores, -1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, keys = rows_and_keys(k.shape[1])
    return attended(q, k, v, keys <= rows)


def with_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, keys = rows_and_keys()
    mask = (rows >= keys) & torch.ones((), dtype=torch.bool)
    return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], mask, 0.1)[:, 0]


def by_filling(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, keys = rows_and_keys()
    scores = torch.tanh(q @ k.transpose(-1, -2) / 3) * 3
    weights = torch.softmax(scores.masked_fill(~(keys <= rows), -inf), -1)
    return F.dropout(weights, 0.1) @ v


def by_adding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, keys = rows_and_keys()
    bias = torch.zeros(ROWS, KEYS).masked_fill(keys > rows, -inf)
    exponentials = torch.exp(q @ k.transpose(-1, -2) * 0.25 + bias)
    return exponentials / exponentials.sum(-1, keepdim=True) @ v


def with_padding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of which only a call knows how much it is."""
    rows, keys = rows_and_keys()
    return attended(q, k, v, (keys <= rows) & ((v[:, None, :, 0] < 2) | (keys == rows)))


def marks(program: Callable[..., object], *, backward: bool = True) -> list[str]:
    """What is said of its matmuls, producers first."""

    def traced(*operands: Tensor) -> object:
        found = program(*operands)
        if not backward:
            return found
        assert isinstance(found, Tensor)
        return found, *torch.autograd.grad(found.sum(), operands)

    operands = [torch.randn(BATCH, n, WIDTH, requires_grad=backward) for n in (ROWS, KEYS, KEYS)]
    table = decompositions()
    gm = make_fx(traced, decomposition_table=table, tracing_mode="fake")(*operands)
    captured = capture(gm, operands)
    marked = mark_masked_matmuls(captured.graph, captured.builder)
    operations = [operation_of(node) for node in toposort(marked.roots) if node.op is Op.MATMUL]
    matmuls = [operation for operation in operations if isinstance(operation, Matmul)]
    return [str(matmul.within) for matmul in matmuls if matmul.within is not None]


@pytest.mark.parametrize("program", [causal, with_dropout, by_filling, by_adding, with_padding])
def test_half_of_causal_attention_is_excluded(program: Callable[..., Tensor]) -> None:
    assert sorted(marks(program)) == sorted(FORWARD + BACKWARD)


def test_rows_that_begin_later_and_windows() -> None:
    def later(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys = rows_and_keys()
        return attended(q, k, v, keys < rows + 9)

    def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys = rows_and_keys()
        return attended(q, k, v, (keys > rows - 5) & (keys < rows + KEYS - 1))

    assert marks(later, backward=False) == [f"{band} plus 8" for band in FORWARD]
    assert marks(window, backward=False) == ["row within column plus 4", "row within step plus 4"]


def shown(q: Tensor, k: Tensor, v: Tensor) -> object:
    """Somebody looks at all scores."""
    scores = q @ k.transpose(-1, -2)
    rows, keys = rows_and_keys()
    return scores, torch.softmax(torch.where(keys <= rows, scores, -inf), -1) @ v


def divided(q: Tensor, k: Tensor, v: Tensor) -> object:
    """Zero would become infinite."""
    rows, keys = rows_and_keys()
    return torch.where(keys <= rows, 1 / (q @ k.transpose(-1, -2)), 0.0)


def lowest(q: Tensor, k: Tensor, v: Tensor) -> object:
    """Where a row has no other numbers, these are its softmax."""
    rows, keys = rows_and_keys()
    return attended(q, k, v, (keys <= rows) & (keys > 2), LOWEST)


def negative(q: Tensor, k: Tensor, v: Tensor) -> object:
    """What was -inf becomes inf."""
    rows, keys = rows_and_keys()
    return torch.exp(torch.where(keys <= rows, q @ k.transpose(-1, -2), -inf) * -1.0) @ v


def entropy(q: Tensor, k: Tensor, v: Tensor) -> object:
    """Zero times -inf, and -inf less -inf, are not zero."""
    rows, keys = rows_and_keys()
    scores = torch.where(keys <= rows, (q * k).sum(-1, keepdim=True), -inf)
    weights = torch.softmax(scores, -1)
    return (weights * scores) @ v, torch.exp(scores - scores.clone()) @ v


def everything(q: Tensor, k: Tensor, v: Tensor) -> object:
    rows, keys = rows_and_keys()
    return attended(q, k, v, keys <= rows + KEYS)


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (shown, FORWARD[1:]),
        (divided, []),
        (lowest, []),
        (negative, FORWARD[:1]),
        (entropy, []),
        (everything, []),
    ],
)
def test_what_somebody_may_see_is_multiplied(
    program: Callable[..., object], found: Sequence[str]
) -> None:
    assert marks(program, backward=False) == found


def test_products_that_are_turned_or_in_other_places() -> None:
    def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys = rows_and_keys()
        scores = torch.where(rows <= keys, k @ q.transpose(-1, -2), -inf)
        return torch.softmax(scores.transpose(-1, -2), -1) @ v

    def with_batch_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys = rows_and_keys()
        scores = torch.where(keys <= rows, q @ k.transpose(-1, -2), -inf)
        return torch.softmax(scores, -1).transpose(0, 2) @ v.transpose(0, 1)[:, :BATCH]

    assert marks(turned, backward=False) == ["row within column", "step within row"]
    assert marks(with_batch_last, backward=False) == FORWARD[:1]


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        *product([causal, with_dropout, by_filling, with_padding], [torch.float32]),
        *product(some([with_dropout], [causal, by_filling, with_padding]), [torch.bfloat16]),
    ],
)
def test_it_makes_no_difference(
    program: Callable[..., Tensor], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a bit: what is left out is zero."""
    given = [torch.randn(BATCH, n, WIDTH).to(dtype).requires_grad_() for n in (ROWS, KEYS, KEYS)]
    found: list[list[Tensor]] = []
    for masked in (masked_matmuls, lambda nodes, roots: {}):
        monkeypatch.setattr("hemstitch.matmul.mask_analysis.masked_matmuls", masked)
        monkeypatch.setattr("hemstitch.joint.joint_graph.masked_matmuls", masked)
        torch._dynamo.reset()
        torch.manual_seed(3)
        found.append(results(torch.compile(program, backend="hemstitch", dynamic=False), given))
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.usefixtures("kernels_multiply")
def test_numbers_that_are_not_finite_stay_behind_the_mask() -> None:
    """As in the library's attention; a row that sees them is as eager's."""
    q, k, v = (torch.randn(BATCH, n, WIDTH) for n in (ROWS, KEYS, KEYS))
    k[:, 30], v[:, 33] = torch.nan, inf
    found = torch.compile(causal, backend="hemstitch", dynamic=False)(q, k, v)
    without = [x.clone() for x in (q, k, v)]
    for x in without[1:]:
        x[:, 30:] = 0.0
    torch.testing.assert_close(found[:, :30], causal(*without)[:, :30])
    assert found[:, 30:].isnan().all()


@pytest.mark.usefixtures("kernels_multiply")
def test_attention_by_the_library_with_a_mask() -> None:
    """Both of its products are marked."""

    def answered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys = torch.arange(256)[:, None], torch.arange(256)[None]
        return F.scaled_dot_product_attention(q, k, v, (keys <= rows + 3)[None, None])

    q, k, v = (torch.randn(2, 2, 256, 32) for _ in range(3))
    with torch.no_grad():
        found = torch.compile(answered, backend="hemstitch", dynamic=False)(q, k, v)
    exact = answered(q.double(), k.double(), v.double())
    assert (found - exact).norm() < 1e-6 * exact.norm()


def test_sizes_that_only_a_call_knows_are_left_alone() -> None:
    compiled = torch.compile(causal, backend="hemstitch", dynamic=True)
    for keys in (KEYS, KEYS + 3):
        q, k, v = (torch.randn(BATCH, n, WIDTH) for n in (ROWS, keys, keys))
        torch.testing.assert_close(compiled(q, k, v), causal(q, k, v))


def test_only_small_numbers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_numbers, "MAX_ELEMENTS", 8)
    assert marks(causal) == []


def test_nothing_is_masked_in_nothing_and_errors_come_where_it_runs() -> None:
    def of_no_batch(x: Tensor) -> Tensor:
        return torch.where(torch.arange(4).expand(x.shape[0], 1, 4) <= 2, x, -inf)

    def outside(x: Tensor) -> Tensor:
        return x + torch.arange(4)[torch.arange(2, 6)]

    none = torch.empty(0, 4, 4)
    assert torch.compile(of_no_batch, backend="hemstitch")(none).shape == none.shape
    with pytest.raises(IndexError):
        torch.compile(outside, backend="hemstitch")(torch.randn(4))
