"""Convolutions along embedded texts, as text classifiers have them: results and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.capture.helpers import results
from tests.effort import IS_WHOLE, some

Program = Callable[..., Tensor]
TEXTS, LENGTH, WORDS, FEATURES, CHANNELS = 3, 40, 6, 70, 5
MANY = 200  # words, more than there are windows


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


def as_images(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    """Of one channel each, whose columns are features, as text classifiers often have them."""
    text = F.embedding(words, table)
    lines = F.conv2d(text.unsqueeze(1), weights[0].mT.unsqueeze(1)).relu().squeeze(3)
    return F.max_pool1d(lines, lines.shape[2]).squeeze(2)


def as_images_and_along_the_text(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    lines = F.conv1d(F.embedding(words, table).transpose(1, 2), weights[0])
    return lines + as_images(words, table, *weights)[:, :, None]


UNLIKE = [twice, read_elsewhere, beyond_the_ends, apart, in_groups, as_images]


def largest(words: Tensor, table: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    """Of a text; of several widths."""
    text = F.embedding(words, table, padding_idx=1).transpose(1, 2)
    layers = F.conv1d(text, first, bias).relu(), F.conv1d(text, second, stride=2)
    return torch.cat([F.max_pool1d(each, each.shape[2]).squeeze(2) for each in layers], 1)


def largest_by_index(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    first, _, bias = weights
    hidden = F.conv1d(F.embedding(words, table).transpose(1, 2), first)
    return (hidden + bias[:, None]).relu().max(-1).values


def largest_of_parts_that_overlap(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    text = F.embedding(words, table).transpose(1, 2)
    hidden = F.gelu(F.conv1d(text, weights[1])) * 3  # of 37 windows
    return F.adaptive_max_pool1d(hidden, 2).flatten(1)


def largest_of_what_is_dropped(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    """By a mask that the program makes of the result."""
    hidden = F.conv1d(F.embedding(words, table).transpose(1, 2), weights[0])
    mask = (hidden.detach() * 1000).sin() > 0
    return F.adaptive_max_pool1d((hidden * mask).tanh(), 1).squeeze(-1)


MAXIMA = [largest, largest_by_index, largest_of_parts_that_overlap, largest_of_what_is_dropped]


def smallest_difference(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    """What a maximum is taken of goes on as well."""
    hidden = F.conv1d(F.embedding(words, table).transpose(1, 2), weights[0])
    return F.max_pool1d(hidden, 38).squeeze(2) - hidden.mean(2)


def equal_maxima(words: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    """All of which have a gradient."""
    return F.conv1d(F.embedding(words, table).transpose(1, 2), weights[0]).relu().amax(2)


def given(words: int = WORDS, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (words, FEATURES), (CHANNELS, FEATURES, 3), (CHANNELS, FEATURES, 4), (CHANNELS,)
    floats = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    return [torch.randint(words, (TEXTS, LENGTH)), *floats]


ALL = [*PROGRAMS, *UNLIKE, *MAXIMA, as_images_and_along_the_text, smallest_difference, equal_maxima]


@pytest.mark.parametrize("program", ALL)
@pytest.mark.parametrize("count", some([WORDS], [MANY]))
def test_results_and_gradients(program: Program, count: int) -> None:
    torch._dynamo.reset()
    arguments = given(count)
    expected = results(program, arguments)
    how = {"backend": "hemstitch", "fullgraph": True, "options": {"strict": True}}
    found = results(torch.compile(program, **how), arguments)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
        assert mine.stride() == theirs.stride()
    if count == MANY and not IS_WHOLE:
        return
    with torch.no_grad():
        again = torch.compile(program, **how)(*arguments)
    torch.testing.assert_close(again, program(*arguments))
    assert again.stride() == expected[0].stride()


@pytest.mark.parametrize("program", [two, largest])
@pytest.mark.parametrize("is_frozen", some([(1,), (2, 3, 4)], [(2,), (1, 2)]))
def test_some_have_no_gradient(program: Program, is_frozen: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    arguments = given(MANY)
    for place in is_frozen:
        arguments[place].requires_grad_(requires_grad=False)
    expected = results(program, arguments)
    found = results(torch.compile(program, backend="hemstitch", fullgraph=True), arguments)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_lengths_may_change() -> None:
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
