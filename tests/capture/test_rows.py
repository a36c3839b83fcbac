"""Only lines that are read are computed, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from hemstitch.capture.decompositions import decompositions
from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph, Output
from hemstitch.ir.types import DType
from hemstitch.joint.joint_graph import JointGraph
from hemstitch.rewrites.dead_rows import live_rows
from hemstitch.rewrites.row_regions import Region
from hemstitch.runtime.interpreter import run as interpret
from tests.capture.helpers import results

Program = Callable[..., Tensor]
TEXTS, WORDS, WIDTH, HEADS = 3, 10, 16, 2


def layer(x: Tensor, weights: Tensor, *, dropout: float = 0.0, causal: bool = False) -> Tensor:
    """Of a transformer."""

    def heads(each: Tensor) -> Tensor:
        return each.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    q, k, v, out, up, down = weights
    inside = F.layer_norm(x, [WIDTH])
    words = F.scaled_dot_product_attention(
        *(heads(F.linear(inside, w)) for w in (q, k, v)), dropout_p=dropout, is_causal=causal
    )
    x = x + F.dropout(F.linear(words.transpose(1, 2).flatten(2), out), dropout)
    hidden = F.gelu(F.linear(F.layer_norm(x, [WIDTH]), up, up[:, 0]))
    return x + F.dropout(F.linear(hidden, down), dropout)


def first_word(x: Tensor, weights: Tensor) -> Tensor:
    return F.layer_norm(layer(layer(x, weights), weights.cos()), [WIDTH])[:, 0].tanh()


def last_word(x: Tensor, weights: Tensor) -> Tensor:
    return layer(x, weights)[:, -1] @ weights[0]


def last_words(x: Tensor, weights: Tensor) -> Tensor:
    return layer(x, weights)[:, -3:].mean(1)


def first_texts(x: Tensor, weights: Tensor) -> Tensor:
    return layer(x, weights).log_softmax(-1)[:1]


def formula(x: Tensor, weights: Tensor) -> Tensor:
    """Attention written out, with a mask that the first word's row has a part of."""
    scores = (x @ weights[0]) @ (x @ weights[1]).transpose(1, 2)
    scores = scores.masked_fill(scores > 9, float("-inf")) + weights[2].sum()
    return (scores.softmax(-1) @ x).relu()[:, 1] * 2


def one_of_many_views(x: Tensor, weights: Tensor) -> Tensor:
    lines = x.reshape(-1, WIDTH) @ weights[0]
    cube = lines.view(TEXTS, WORDS, HEADS, -1).permute(2, 0, 1, 3).exp()
    return cube.sum(-1, keepdim=True)[:, :, 4]


def both_read_it(x: Tensor, weights: Tensor) -> Tensor:
    """The same part of the same values by several."""
    hidden = (x @ weights[0]).sigmoid()
    return hidden[:, 2] + (hidden @ weights[1])[:, 2] + torch.cat([hidden, x], -1)[:, 2, WIDTH:]


def squeezed_in_vain(x: Tensor, weights: Tensor) -> Tensor:
    """An axis that has one element in the part alone."""
    hidden = (x @ weights[0]).squeeze(1)
    return (hidden[:, None].squeeze().squeeze(2) + hidden.exp())[:, 3:4]


def of_keys_and_values(x: Tensor, weights: Tensor) -> Tensor:
    """Those of the first words are given, and have no gradient."""
    q, k, v = ((x @ w).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in weights[:3])
    k, v = (torch.cat([each.detach().cos(), each[:, :, :4]], 2) for each in (k, v))
    return F.scaled_dot_product_attention(q, k, v)[:, :, -1].flatten(1)


def read_as_a_whole(x: Tensor, weights: Tensor) -> Tensor:
    """Of what attention gives only the first words have a gradient."""
    q, k, v = ((x @ w).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in weights[:3])
    words = F.scaled_dot_product_attention(q, k, v)
    return words[:, :, :4].flatten(1) * words.detach().mean((1, 2, 3))[:, None]


PROGRAMS = [
    squeezed_in_vain,
    read_as_a_whole,
    of_keys_and_values,
    first_word,
    last_word,
    last_words,
    first_texts,
    formula,
    one_of_many_views,
]
PROGRAMS += [both_read_it]


def two_words(x: Tensor, weights: Tensor) -> Tensor:
    hidden = x @ weights[0]
    return hidden[:, 0] + hidden[:, 1]


def most_words(x: Tensor, weights: Tensor) -> Tensor:
    return (x @ weights[0])[:, 1:]


def normalised_along_words(x: Tensor, weights: Tensor) -> Tensor:
    return (x @ weights[0]).softmax(1)[:, 0]


def added_up_along_words(x: Tensor, weights: Tensor) -> Tensor:
    return (x @ weights[0]).cumsum(1)[:, 0]


def another_word_of_each_text(x: Tensor, weights: Tensor) -> Tensor:
    return layer(x, weights)[torch.arange(TEXTS), torch.tensor([0, 3, 1])]


def beside_what_has_no_gradient(x: Tensor, weights: Tensor) -> Tensor:
    words = layer(x, weights)
    return words[:, 0] + words[:, 1:].detach().mean(1)


def rolled(x: Tensor, weights: Tensor) -> Tensor:
    return layer(x, weights).roll(1, 1)[:, 0]


def among_zeros_again(x: Tensor, weights: Tensor) -> Tensor:
    return F.pad(layer(x, weights)[:, :1], (0, 0, 0, 3))


def every_fifth_word(x: Tensor, weights: Tensor) -> Tensor:
    return layer(x, weights)[:, ::5]


def features(x: Tensor, weights: Tensor) -> Tensor:
    return layer(x, weights)[..., :6]


OTHER_PARTS = [another_word_of_each_text, beside_what_has_no_gradient, rolled, among_zeros_again]
OTHER_PARTS += [every_fifth_word, features]
UNLIKE = [two_words, most_words, normalised_along_words, added_up_along_words]


def arguments(*, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    x, weights = torch.randn(TEXTS, WORDS, WIDTH), torch.randn(6, WIDTH, WIDTH) / WIDTH**0.5
    return [each.to(dtype).requires_grad_() for each in (x, weights)]


def traced(program: Program, given: list[Tensor]) -> GraphModule:
    """A result and its gradients."""

    def gradients(*tensors: Tensor) -> list[Tensor]:
        result = program(*tensors)
        return [result, *torch.autograd.grad(result.sin().sum(), tensors)]

    return make_fx(gradients, decompositions(), tracing_mode="fake")(*given)


def eliminate_dead_rows(traced: GraphModule) -> None:
    JointGraph.of(traced).rewritten(live_rows)
    traced.graph.lint()
    traced.recompile()


def run(traced: GraphModule, given: list[Tensor]) -> tuple[list[Tensor], int]:
    """What it gives, and how many operations its products take."""
    with FlopCounterMode(display=False) as counter:
        found = traced(*given)
    return found, counter.get_total_flops()


@pytest.mark.parametrize("program", [*PROGRAMS, *UNLIKE])
def test_products_of_lines_that_nobody_reads_vanish(program: Program) -> None:
    given = arguments(dtype=torch.float64)
    graph = traced(program, given)
    expected, before = run(graph, given)
    eliminate_dead_rows(graph)
    found, after = run(graph, given)
    torch.testing.assert_close(found, expected)
    share = 0.9 if program is read_as_a_whole else 0.8  # there only backward has less to do
    assert after == before if program in UNLIKE else after < share * before


@pytest.mark.parametrize("program", [*PROGRAMS, *UNLIKE, *OTHER_PARTS])
def test_results_and_gradients(program: Program) -> None:
    torch._dynamo.reset()
    given = arguments()
    doubles = [each.detach().double().requires_grad_() for each in given]
    exact = results(program, doubles)
    found = results(torch.compile(program, backend="hemstitch", fullgraph=True), given)
    for mine, true in zip(found, exact, strict=True):
        assert float((mine.double() - true).norm() / true.norm()) < 1e-5
    assert [each.stride() for each in found[1:]] == [each.stride() for each in exact[1:]]
    with torch.no_grad():
        again = torch.compile(program, backend="hemstitch", fullgraph=True)(*given)
    torch.testing.assert_close(again, found[0], rtol=1e-4, atol=1e-5)


def test_a_part_of_dropout_is_that_of_the_whole() -> None:
    """It draws the same numbers whether or not others read the other lines."""
    x, weights = arguments()

    def program(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        hidden = layer(x, weights, dropout=0.5)
        return hidden[:, 0] * 2, hidden * 2

    def first(function: Program) -> Tensor:
        torch._dynamo.reset()
        torch.manual_seed(5)
        return torch.compile(function, backend="hemstitch", fullgraph=True)(x, weights)

    part = first(lambda x, weights: program(x, weights)[0])
    whole = first(lambda x, weights: program(x, weights)[1])
    torch.testing.assert_close(part, whole[:, 0])


def test_attention_in_order_keeps_its_rows() -> None:
    """Which keys a row reads depends on its number."""
    given = arguments(dtype=torch.float64)

    def program(x: Tensor, weights: Tensor) -> Tensor:
        return layer(x, weights, causal=True)[:, -1]

    graph = traced(program, given)
    expected, _ = run(graph, given)
    eliminate_dead_rows(graph)
    torch.testing.assert_close(run(graph, given)[0], expected)


def test_empty_tensors() -> None:
    given = [torch.randn(0, 4, 6), torch.randn(6, 5)]
    graph = make_fx(lambda x, w: (x @ w).view(0, 4, 5, 1)[:, 0], tracing_mode="fake")(*given)
    eliminate_dead_rows(graph)
    assert graph(*given).shape == (0, 5, 1)


def test_a_line_that_only_the_call_knows() -> None:
    def program(x: Tensor, place: int) -> Tensor:
        return x.sin().narrow(0, place, 1).tanh()

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="hemstitch")
    for place in (2, 4, 3):
        gradients = []
        for run in (program, compiled):
            x = torch.linspace(0, 1, 24).view(6, 4).requires_grad_()
            run(x, place).sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)


def test_lines_that_nobody_reads_may_be_infinite() -> None:
    torch._dynamo.reset()
    x, weights = arguments()
    with torch.no_grad():
        x[:, 1:] = torch.inf
    compiled = torch.compile(lambda x, w: (x @ w[0])[:, 0], backend="hemstitch")
    found = results(compiled, [x, weights])
    assert all(each.isfinite().all() for each in found)
    expected = results(lambda x, w: x[:, 0] @ w[0], [x, weights])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@given(data=st.data())
@settings(deadline=None)
def test_regions_through_views(data: st.DataObject) -> None:
    """What is cut out of a view is a view of what is cut out, wherever the part can be seen."""
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    axis = data.draw(st.integers(0, len(sizes) - 1))
    sizes[axis] = size = data.draw(st.integers(2, 5))
    others = [*sizes]
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(others) - 1))
        if data.draw(st.booleans()) and place + 1 < len(others):
            others[place : place + 2] = [others[place] * others[place + 1]]
        else:
            others.insert(place, 1)
    first = data.draw(st.integers(0, size - 1))
    region = Region(axis, size, first, data.draw(st.integers(1, size - first)))
    seen = region.viewed(sizes, others)
    assert seen is not None

    builder = Builder()
    x = torch.arange(prod(sizes)).reshape(sizes)
    source = builder.input("x", 0, sizes, DType.I64, x.stride())
    cut = seen.cut(builder, builder.reshape(source, others), others)
    whole = seen.among_zeros(builder, cut, others)
    graph = Graph((source,), (Output(cut, ()), Output(whole, ())))
    part, among_zeros = interpret(graph, [x])
    expected = x.narrow(axis, first, region.length)
    assert torch.equal(part.flatten(), expected.flatten())
    zeros = torch.zeros_like(x)
    zeros.narrow(axis, first, region.length).copy_(expected)
    assert torch.equal(among_zeros, zeros.reshape(others))
    assert list(part.shape) == seen.shape(others)
    assert seen.viewed(others, sizes) == region
