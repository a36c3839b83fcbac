"""What `verify` compares with eager: single wrong elements are seen, rounding is not."""

from __future__ import annotations

import pytest
import torch

from hemstitch.driver.verified import agree, disagreement
from hemstitch.errors import DifferenceError
from hemstitch.runtime.executable import Executable
from tests.effort import some

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
F = torch.nn.functional


def compiled(function):
    torch._dynamo.reset()
    options = {"verify": True, "strict": True, "cache": False}
    return torch.compile(function, backend="hemstitch", options=options)


@pytest.fixture
def spoil(monkeypatch):
    """From then on a result of every compiled graph has this element."""
    call = Executable.__call__

    def spoil(number, place, value):
        def wrong(self, arguments):
            results = call(self, arguments)
            results[number][place] = value
            return results

        monkeypatch.setattr(Executable, "__call__", wrong)

    return spoil


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 7, 1000, 1_000_000])
@pytest.mark.parametrize("wrong", [0.0, float("nan"), float("inf"), -3.0])
def test_one_wrong_element(dtype, size, wrong):
    expected = (torch.rand(size) + 0.5).to(dtype)  # none is near zero
    result = expected.clone()
    place = size // 2
    result[place] = wrong
    why = str(disagreement(result, expected))
    assert f"the worst at ({place},)" in why and f"1 of {size}" in why
    assert not agree(expected, result)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_whole_numbers_are_equal(dtype):
    expected = torch.ones(3, 5, dtype=dtype)
    result = expected.clone()
    result[2, 1] = 0
    assert "(2, 1)" in str(disagreement(result, expected))
    assert agree(expected, expected.clone())


def test_complex_numbers():
    expected = torch.randn(4, 5, dtype=torch.complex64)
    result = expected * (1 + 1e-7)
    assert agree(result, expected)
    result[3, 2] = result[3, 2].conj()
    assert "(3, 2, 1)" in str(disagreement(result, expected))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_few_roundings_pass(dtype):
    exact = torch.randn(64, 512, dtype=torch.float64) * 10 ** torch.randn(64, 1).double()
    exact[0, :3] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    expected = exact.to(dtype)
    assert agree((expected * 1.5) / 1.5, expected)
    sums = (part.cumsum(1).to(dtype) for part in (exact[1:], exact[1:].flip(1)))
    assert not agree(*sums)


def test_empty_and_other_shapes():
    assert agree(torch.empty(0, 3), torch.empty(0, 3))
    assert not agree(torch.empty(3), torch.empty(0, 3))
    assert not agree(torch.ones(3), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", some([torch.float32, torch.bfloat16], [torch.float64]), ids=str)
def test_one_wrong_element_of_a_result(dtype, spoil):
    def program(x, weight):
        return torch.softmax(x @ weight / 8, -1), x.sum(0)

    torch.manual_seed(0)
    x, weight = torch.randn(300, 64).to(dtype), torch.randn(64, 100).to(dtype)
    compiled(program)(x, weight)
    spoil(0, (200, 99), 0.5)
    with pytest.raises(DifferenceError, match=r"worst at \(200, 99\): 0.5 in place of"):
        compiled(program)(x, weight)


def test_positions_and_conditions_are_exact(spoil):
    def program(x):
        return x.argmax(-1), x > 0

    x = torch.randn(50, 9)
    x[7] = 1.0  # of equals the first is the only one
    compiled(program)(x)
    spoil(0, 7, 1)
    with pytest.raises(DifferenceError, match=r"worst at \(7,\): 1 in place of 0"):
        compiled(program)(x)


def no_gradient_but_rounding(x, weight, bias):
    """Of a bias of keys: softmax does not see what all scores of a row have in common."""
    keys, values = F.linear(x, weight, bias), x
    return F.softmax(F.linear(x, weight) @ keys.mT * 3, -1) @ values


def cancelling_sums(x, weight, bias):
    at_once = (x.sum((0, 1)) @ weight).sum()
    return F.layer_norm(x, x.shape[-1:]).sum(-1), (x @ weight).sum() - at_once


def close_decisions(x, weight, bias):
    scores = x @ weight + bias
    return scores.argmax(-1), scores.relu(), (scores - scores.mean(-1, keepdim=True)) > 0


def exponents(x, weight, bias):
    return torch.exp(10 * F.linear(x, weight, bias)).log1p(), torch.sin(1e3 * x), x.cumsum(1)


PROGRAMS = [no_gradient_but_rounding, cancelling_sums, close_decisions, exponents]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("dtype", some([torch.float32], [torch.bfloat16, torch.float64]), ids=str)
def test_no_false_alarm(program, dtype):
    torch.manual_seed(0)
    function = compiled(program)
    for _ in range(2):
        tensors = torch.randn(4, 33, 32), torch.randn(32, 32), torch.randn(32)
        arguments = [tensor.to(dtype).requires_grad_() for tensor in tensors]
        result = function(*arguments)
        results = result if isinstance(result, tuple) else (result,)
        floats = [y for y in results if y.requires_grad]
        torch.autograd.backward(floats, [torch.randn_like(y) for y in floats])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_block_of_a_transformer_has_no_false_alarm(dtype):
    block = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True).to(dtype)
    function = compiled(block)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, 9, 32).to(dtype).requires_grad_()
        (function(x) * torch.randn(2, 9, 32)).sum().backward()


def test_what_a_custom_operation_writes_to_is_compared_once():
    """Each reference has arguments of its own."""

    @torch.library.custom_op("hemstitch_test::grow", mutates_args=("x",))
    def grow(x: torch.Tensor) -> None:
        x.add_(1.0)

    def program(x):
        grow(x)
        return x * 2

    x = torch.zeros(5)
    assert torch.equal(compiled(program)(x), torch.full((5,), 2.0))
    assert torch.equal(x, torch.ones(5))
