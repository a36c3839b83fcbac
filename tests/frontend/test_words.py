"""Convolutions along texts of few words: products of the table, gathered, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import hemstitch
from hemstitch.explain import Report
from tests.frontend.helpers import convolutions, results

Program = Callable[..., Tensor]
TEXTS, LENGTH, WORDS, FEATURES, CHANNELS = 3, 40, 6, 70, 5


def one(words: Tensor, table: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    return F.conv1d(F.embedding(words, table).transpose(1, 2), first, bias).relu()


def two(words: Tensor, table: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    """Of several widths and strides, as text classifiers have them, one without a bias."""
    text = F.embedding(words, table).permute(0, 2, 1)
    wide = F.conv1d(text, first, bias, stride=2).relu()
    return torch.cat([wide.amax(2), F.conv1d(text, second, stride=3).tanh().sum(2)], 1)


def pooled(words: Tensor, table: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    """Behind it is a call of the library, which looks at how images lie."""
    text = F.embedding(words, table).transpose(1, 2)
    return F.adaptive_max_pool1d(F.conv1d(text, first, bias), 3).flatten(1)


def padded(words: Tensor, table: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    """The word 2 has no gradient."""
    text = F.embedding(words, table, padding_idx=2).transpose(1, 2)
    return F.conv1d(text, first, bias) + F.conv1d(text, second[..., :3], bias)


def stacked(words: Tensor, table: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    hidden = F.conv1d(F.embedding(words, table).transpose(1, 2), first, bias).relu()
    return F.conv1d(hidden, second[:, :CHANNELS], bias)


PROGRAMS = [one, two, pooled, padded, stacked]


def read_elsewhere(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    text = F.embedding(words, table)
    return F.conv1d(text.transpose(1, 2), weights[0]).sum(2) + text.sum((1, 2))[:, None]


def beyond_the_ends(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    return F.conv1d(F.embedding(words, table).transpose(1, 2), weights[0], padding=1)


def apart(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    """Each place in a text has something of its own."""
    return F.conv1d((F.embedding(words, table) * 2).transpose(1, 2), weights[0])


def in_groups(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    text = F.embedding(words, table).transpose(1, 2)
    return F.conv1d(text, weights[0][:, : FEATURES // 5], groups=5)


def twice(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    """The embedding's gradient is that of the convolution, and as much again."""
    text = F.embedding(words, table).transpose(1, 2)
    return F.conv1d(text + text, weights[0])


UNLIKE = [twice, read_elsewhere, beyond_the_ends, apart, in_groups]


def given(words: int = WORDS, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (words, FEATURES), (CHANNELS, FEATURES, 3), (CHANNELS, FEATURES, 4), (CHANNELS,)
    floats = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    return [torch.randint(words, (TEXTS, LENGTH)), *floats]


@pytest.mark.parametrize("program", [*PROGRAMS, *UNLIKE])
def test_results_and_gradients(program: Program) -> None:
    torch._dynamo.reset()
    arguments = given()
    expected = results(program, arguments)
    found = results(torch.compile(program, backend="hemstitch", fullgraph=True), arguments)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
        assert mine.stride() == theirs.stride()
    with torch.no_grad():
        again = torch.compile(program, backend="hemstitch", fullgraph=True)(*arguments)
    torch.testing.assert_close(again, program(*arguments))
    assert again.stride() == expected[0].stride()


@pytest.mark.parametrize("program", PROGRAMS)
def test_such_convolutions_vanish(program: Program) -> None:
    behind = 2 if program is stacked else 0  # its second layer, and that one's gradients
    assert convolutions(program, given()) == behind
    with torch.no_grad():
        assert convolutions(program, given(), backward=False) == behind // 2


@pytest.mark.parametrize("program", UNLIKE)
def test_others_stay(program: Program) -> None:
    assert convolutions(program, given()) == 2


def test_it_depends_on_how_many_words_there_are() -> None:
    """And windows; more products of words than of windows are no gain."""
    assert convolutions(one, given(words=TEXTS * LENGTH)) == 2


@pytest.mark.parametrize("is_frozen", [(1,), (2,), (1, 2), (2, 3, 4)])
def test_some_have_no_gradient(is_frozen: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    arguments = given()
    for place in is_frozen:
        arguments[place].requires_grad_(requires_grad=False)
    expected = results(two, arguments)
    found = results(torch.compile(two, backend="hemstitch", fullgraph=True), arguments)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_of_single_precision_it_is_as_exact_as_the_library() -> None:
    """By the mean of several texts."""
    torch._dynamo.reset()
    compiled = torch.compile(two, backend="hemstitch")
    distances = [_distances(compiled, given(dtype=torch.float32)[1:]) for _ in range(8)]
    for mine, theirs in torch.tensor(distances).mean(0):
        assert mine <= 2 * theirs


def _distances(compiled: Program, weights: list[Tensor]) -> list[tuple[float, float]]:
    """From doubles, of the result and each gradient: the compiled program's and eager's."""
    words = torch.randint(WORDS, (16, 500))
    doubles = [each.detach().double().requires_grad_() for each in weights]
    exact = results(two, [words, *doubles])
    found, eager = (results(program, [words, *weights]) for program in (compiled, two))
    return [
        (_distance(mine, true), _distance(theirs, true))
        for mine, theirs, true in zip(found, eager, exact, strict=True)
    ]


def _distance(found: Tensor, exact: Tensor) -> float:
    found, exact = found.detach().double(), exact.detach()
    return float((found - exact).norm() / exact.norm())


def test_lengths_may_change() -> None:
    """Then the library convolves."""
    torch._dynamo.reset()
    compiled = torch.compile(one, backend="hemstitch", dynamic=True)
    for length in (LENGTH, 7, 61):
        words, *others = given()
        arguments = [words.repeat(1, 2)[:, :length], *others]
        for mine, theirs in zip(results(compiled, arguments), results(one, arguments), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("word", [-1, WORDS])
def test_words_that_do_not_exist_are_refused(word: int) -> None:
    torch._dynamo.reset()
    arguments = given()
    arguments[0][1, 7] = word
    with pytest.raises(IndexError):
        torch.compile(one, backend="hemstitch")(*arguments)


def test_frozen_tables_are_multiplied_once() -> None:
    """A model that answers gathers and adds up."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(WORDS, FEATURES)
            self.layer = torch.nn.Conv1d(FEATURES, CHANNELS, 3)

        def forward(self, words: Tensor) -> Tensor:
            return self.layer(self.table(words).transpose(1, 2)).relu()

    torch._dynamo.reset()
    model, words = Model().eval(), torch.randint(WORDS, (TEXTS, LENGTH))
    with torch.no_grad():
        compiled = torch.compile(model, backend="hemstitch", options={"freeze": True})
        for _ in range(2):
            torch.testing.assert_close(compiled(words), model(words), rtol=1e-4, atol=1e-4)
        each = hemstitch.explain(model, words)
        frozen = hemstitch.explain(model, words, options={"freeze": True})
    assert not each.once and frozen.once
    assert products(each) == 1 and products(frozen) == 0


def products(report: Report) -> int:
    """That each call multiplies."""
    kernels = sum(kernel.ops.count("dot") for kernel in report.kernels)
    return kernels + sum(".mm." in call for call in report.library_calls)
