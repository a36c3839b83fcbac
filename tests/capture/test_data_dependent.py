"""Programs whose sizes are read from data: kernels all the same, in parts, for any size that the
data give, none and one among them; results as in eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.compiled import watched
from tests.effort import some

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        yield


def lists(x: Tensor, w: Tensor) -> Tensor:
    first, second = (x[:2, 0] > 0).long().mul(4).tolist()
    return torch.cat([torch.ones(first) * w[0, 0], torch.ones(second).cumsum(0) * w[0, 1]]).sum()


def places(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    rows = (x[:, 0] > 0).nonzero().squeeze(1)
    return (x[rows] * w[0]).exp().sum(), rows, rows + 1, x.sin() * 2


def experts(x: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for number in range(2):
        rows = ((x[:, 0] > 0) == bool(number)).nonzero().squeeze(1)
        out = out.index_add(0, rows, F.gelu(x[rows] @ w) * number)
    return out


def counts(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    kinds, where, many = torch.unique(
        (x * 3).long(), return_inverse=True, return_counts=True, sorted=True
    )
    return (kinds.float() * w[0, 0] + 1).relu(), where + 1, many * 2, (kinds / many).sum()


def repeats(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x[:, 0].repeat_interleave((x[:, 0] > 0).long() * 3)
    return y.cumsum(0) * 2, y.sum()


def in_turn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Views of intermediate results, one read from the other."""
    y = x[x > 0] * w[0, 0]
    z = y[y < 0.5].exp()
    return z.sum(), y, z, y.view(-1, 1), z[None], y[:, None].expand(-1, 3)


def sliced(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    count = (x[:, 0] > 0).sum().item()
    torch._check(count <= x.shape[0])
    return x[:count] * w[0], x[count:].relu(), x * count


def rows(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x[x[:, 0] > 0]
    z = x[x[:, 1] > 0]
    normal = F.layer_norm(y, (x.shape[1],)) @ w
    pairs = (y @ z.t()).tanh()
    return normal, y.t(), y.softmax(1), y.softmax(0), z.log_softmax(0), y.var(1), y.sum(0), pairs


def joined(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x[x[:, 0] > 0]
    padded = F.pad(y, (0, 0, 1, 2))
    return padded, torch.cat([y, y * 2, w]), y.flip(0), y.roll(1, 0), y[:, None] * y[None]


PROGRAMS = some([lists, counts, in_turn, sliced, rows], [places, experts, repeats, joined])


def _inputs() -> Iterator[tuple[Tensor, Tensor]]:
    """With some rows, with all, none and one."""
    x, w = torch.randn(9, 5), torch.randn(5, 5)
    one = -x.abs()
    one[0] *= -1
    yield from ((rows, w) for rows in (x, x.abs(), -x.abs(), one))


def _outcome(
    function: Function, inputs: tuple[Tensor, ...], trains: bool
) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
    """Results and gradients."""
    leaves = [x.clone().requires_grad_(trains) for x in inputs]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    ends = [x.sum() for x in results if x.requires_grad]
    return results, torch.autograd.grad(ends, leaves, allow_unused=True) if ends else ()


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Function, trains: bool) -> None:
    if trains and program is repeats:
        pytest.skip("PyTorch asks whether the size is at most 1, which no trace can know")
    fast, _ = watched(program)
    for inputs in _inputs():
        ours, theirs = (_outcome(function, inputs, trains) for function in (fast, program))
        torch.testing.assert_close(ours, theirs)
        for own, eager in zip(ours[0], theirs[0]):
            assert own.requires_grad == eager.requires_grad
            steps = zip(eager.shape, eager.stride(), own.stride())
            assert not eager.numel() or all(s == 1 or a == b for s, a, b in steps)


def test_parts_are_few() -> None:
    """Both experts' rows are chosen by one kernel, gathered by one; another one, at most, follows
    the products, be these its own or the library's."""
    fast, report = watched(experts)
    fast(*next(_inputs()))
    assert report.kernel_count <= 3


def test_what_is_written_in_parts_is_written_in_order() -> None:
    def function(x: Tensor, total: Tensor) -> Tensor:
        y = x[x > 0]
        total.add_(y.sum())
        x.mul_(2)
        return y * total

    fast, _ = watched(function)
    for rows, _ in _inputs():
        ours, theirs = (rows[0].clone(), torch.ones(1)), (rows[0].clone(), torch.ones(1))
        torch.testing.assert_close(fast(*ours), function(*theirs))
        torch.testing.assert_close(ours, theirs)


def test_random_numbers_in_parts() -> None:
    """Each draw is one of its own."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        first, y = torch.rand(3), x[x > 0]
        return F.dropout(y, 0.5), y, first, torch.rand(3)

    fast, _ = watched(function)
    x = torch.randn(40)
    for _ in range(2):
        torch.manual_seed(3)
        dropped, y, first, second = fast(x)
        kept = dropped != 0
        torch.testing.assert_close(dropped, torch.where(kept, 2 * y, 0.0))
        assert 0 < kept.sum() < y.numel() and not torch.equal(first, second)


def test_a_check_between_parts() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        rows = x.nonzero()
        torch._check(rows.size(0) == weight.size(0))
        return (rows + 3) * weight

    fast, _ = watched(function)
    weight = torch.rand(4, 1)
    good = torch.tensor([0, 1, 1, 4, 2, 0])
    torch.testing.assert_close(fast(good, weight), function(good, weight))
    for bad in (torch.ones(6).long(), torch.zeros(6).long()):
        with pytest.raises(RuntimeError, match="assertion"):
            fast(bad, weight)
