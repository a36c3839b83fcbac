"""Arguments and buffers that are one number in a tensor of f64, which PyTorch may read as one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

F64 = torch.float64


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=F64))
        self.register_buffer("sums", torch.zeros((), dtype=F64))

    def forward(self, x: Tensor, limit: float) -> Tensor:
        self.calls.add_(1)
        self.sums += x.detach().sum()
        return F.threshold(x * 2, limit, 0.25) / self.calls


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEMSTITCH_STRICT", "1")
    torch._dynamo.reset()


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
def test_writes_to_buffers(trains: bool) -> None:
    """And beside a number that changes, for which PyTorch does trace again."""
    eager, ours = Counting(), Counting()
    compiled = torch.compile(ours, backend="hemstitch")
    for limit in (0.5, 0.25, 0.125, 0.75):
        x, y = (torch.linspace(-1, 1, 6).requires_grad_(trains) for _ in range(2))
        expected, found = eager(x, limit), compiled(y, limit)
        torch.testing.assert_close(found, expected)
        assert [*ours.buffers()] == [*eager.buffers()]
        if trains:
            expected.sum().backward()
            found.sum().backward()
            assert x.grad is not None
            torch.testing.assert_close(y.grad, x.grad)


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.int64], ids=str)
def test_writes_to_arguments(dtype: torch.dtype) -> None:
    """Nobody reads what `fill_` gives; they are traced once."""

    def program(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        a.fill_(3)
        b.mul_(2)
        return x * a + b

    def arguments() -> list[Tensor]:
        return [torch.tensor(1, dtype=dtype), torch.tensor(5, dtype=dtype), torch.ones(3)]

    counter = CompileCounterWithBackend("hemstitch")
    eager, ours = arguments(), arguments()
    expected, found = program(*eager), torch.compile(program, backend=counter)(*ours)
    assert [*map(Tensor.tolist, [found, *ours])] == [*map(Tensor.tolist, [expected, *eager])]
    assert counter.frame_count == 1


def test_one_that_is_read_as_a_number() -> None:
    def program(a: Tensor, x: Tensor) -> Tensor:
        return x * a.item() + a

    compiled = torch.compile(program, backend="hemstitch")
    for number in (0.5, 0.25, 4.0):
        a, x = torch.tensor(number, dtype=F64), torch.ones(3)
        torch.testing.assert_close(compiled(a, x), program(a, x))
