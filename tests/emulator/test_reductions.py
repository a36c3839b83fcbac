"""Reductions and scans with functions of several values, and what the rewritten text means."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from testing.emulator import emulate
from testing.emulator import whole_reductions as reductions
from tests.emulator import kernels

NAN = float("nan")


def test_moments_of_rows() -> None:
    x = torch.randn(5, 100) + 10
    mean, variance = torch.empty(5), torch.empty(5)
    emulate(
        kernels.welford, 5, {"x": x, "mean": mean, "variance": variance, "N": 100, "BLOCK": 128}
    )
    torch.testing.assert_close(mean, x.double().mean(1).float(), rtol=1e-6, atol=0)
    expected = x.double().var(1, correction=0).float()
    torch.testing.assert_close(variance, expected, rtol=1e-5, atol=0)


def test_elements_are_combined_by_whole_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one by one, as Triton's interpreter does: a hundred times slower."""
    widths: list[int] = []

    def combined(*operands: Any) -> Any:
        widths.append(operands[1][0].shape[-1])
        return genuine(*operands)

    genuine = reductions._combined
    monkeypatch.setattr(reductions, "_combined", combined)
    test_moments_of_rows()
    assert widths == [64, 32, 16, 8, 4, 2, 1] * 5


def test_softmax_of_rows_in_one_reduction() -> None:
    x = torch.randn(8, 64) * 20
    peak, total = torch.empty(8), torch.empty(8)
    emulate(kernels.online_softmax, 1, {"x": x, "peak": peak, "total": total, "N": 64, "ROWS": 8})
    assert torch.equal(peak, x.amax(1))
    torch.testing.assert_close(peak + total.log(), x.double().logsumexp(1).float())


def test_the_first_of_equal_largest() -> None:
    x = torch.randint(0, 4, (8, 32)).float()
    where, value = torch.empty(2, 8, dtype=torch.int32), torch.empty(8)
    emulate(
        kernels.first_and_largest, 1, {"x": x, "where": where, "value": value, "N": 32, "ROWS": 8}
    )
    assert torch.equal(value, x.amax(1))
    first = (x == x.amax(1, keepdim=True)).int().argmax(1).int()
    assert torch.equal(where, torch.stack([first, first]))


def test_extremes_ignore_nan_and_sums_do_not() -> None:
    x = torch.tensor([1.0, NAN, 3.0, -2.0])
    out = torch.empty(3)
    emulate(kernels.extremes, 1, {"x": x, "out": out, "N": 4})
    assert out[:2].tolist() == [3.0, -2.0] and out[2].isnan()
    emulate(kernels.extremes, 1, {"x": torch.full((4,), NAN), "out": out, "N": 4})
    assert out.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_all_axes_and_methods(dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, (16, 16)).to(dtype)
    out = torch.empty(4, dtype=dtype)
    emulate(kernels.all_axes, 1, {"x": x, "out": out, "N": 16})
    expected = [x.sum(), x.sum(), x.sum(0).max(), x.sum(1).max()]
    assert torch.equal(out, torch.stack(expected).to(dtype))


@pytest.mark.parametrize("reverse", [False, True])
def test_scans(reverse: bool) -> None:
    x, weight = torch.randn(32), torch.rand(32)
    summed, linear = torch.empty(32), torch.empty(32)
    arguments = {
        "x": x,
        "weight": weight,
        "summed": summed,
        "linear": linear,
        "N": 32,
        "REVERSE": reverse,
    }
    emulate(kernels.scans, 1, arguments)
    turn = (lambda t: t.flip(0)) if reverse else (lambda t: t)
    torch.testing.assert_close(turn(summed), turn(x).cumsum(0))
    state, expected = 0.0, []
    for w, value in zip(turn(weight).tolist(), turn(x).tolist()):
        state = state * w + value
        expected.append(state)
    torch.testing.assert_close(turn(linear), torch.tensor(expected))


def test_control_flow_and_logic() -> None:
    """`and`, `or`, `not` on blocks, loops with bounds from arguments, floats that are f32."""
    out = torch.empty(8, dtype=torch.int32)
    emulate(kernels.control_flow, 1, {"out": out, "n": 7, "threshold": 0.1, "BLOCK": 8})
    value = 0 + 2 + 600 + 1000
    assert out.tolist() == [-1, -1, value, -1, value, value, -1, -1]
