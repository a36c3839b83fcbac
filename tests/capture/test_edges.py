"""What passes along edges is as narrow as it can be: the results and gradients of the program as it
stands, with fewer columns gathered and added up by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hemstitch.ir.graph import Graph, LibraryCall, Op, toposort
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of
from tests.effort import some

Spread = Callable[..., Tensor]
Program = Callable[..., Tensor]
NODES, EDGES, FEW, HIDDEN, MANY = 7, 23, 3, 5, 11
MACHINE = generic_cpu(threads=2, lanes=16)


def by_index_add(values: Tensor, source: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    sent = values[source] if weight is None else values[source] * weight
    return sent.new_zeros(values.shape).index_add(0, target, sent)


def by_index_put(values: Tensor, source: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    sent = values[source] if weight is None else weight * values[source]
    return torch.zeros_like(values).index_put((target,), sent, accumulate=True)


def by_scatter(values: Tensor, source: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """As torch_geometric does it."""
    sent = values.index_select(0, source)
    sent = sent if weight is None else weight.view(-1, 1) * sent
    index = target.view(-1, 1).expand_as(sent)
    return sent.new_zeros(len(values), values.shape[1]).scatter_add_(0, index, sent)


SPREADS: list[Spread] = [by_index_add, by_index_put, by_scatter]


def layers(
    spread: Spread, x: Tensor, v: Tensor, b: Tensor | None, w: Tensor, *edges: Tensor
) -> Tensor:
    """From few columns to more, twice."""
    hidden = F.relu(spread(F.linear(x, v, b), *edges))
    return spread(hidden @ w, *edges)


def given(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = ((NODES, FEW), (HIDDEN, FEW), (HIDDEN,), (HIDDEN, MANY))
    source, target = torch.randint(NODES, (2, EDGES))
    floats = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    return [*floats, source, target, torch.rand(EDGES, 1, dtype=dtype)]


def results(program: Program, arguments: Sequence[Tensor | None]) -> list[Tensor]:
    """In double precision, as all comparisons are: a product that adds in another order differs."""
    copies = [
        each.detach().double().requires_grad_(each.requires_grad)
        if each is not None and each.is_floating_point()
        else each
        for each in arguments
    ]
    result = program(*copies)
    result.square().sum().backward()
    leaves = [each for each in copies if each is not None and each.requires_grad]
    assert all(each.grad is not None for each in leaves)
    return [result, *(each.grad for each in leaves if each.grad is not None)]


def agree(compiled: Program, program: Program, arguments: Sequence[Tensor | None]) -> None:
    found, expected = (results(each, arguments) for each in (compiled, program))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def widths(program: Program, arguments: Sequence[Tensor | None]) -> list[int]:
    """Columns of each sum by index, forward and backward."""
    return [
        width
        for graph, _ in plans_of(program, arguments, MACHINE, backward=True)
        for width in _widths(graph)
    ]


def _widths(graph: Graph) -> list[int]:
    nodes = toposort(graph.roots)
    calls = [n.attr for n in nodes if isinstance(n.attr, LibraryCall)]
    added = [c for c in calls if any(s in c.name for s in ("index_add", "index_put", "scatter"))]
    shapes = [n.shape for n in nodes if n.op is Op.SCATTER_ADD]
    shapes += [result[0].shape for call in added for result in call.results if result is not None]
    return [shape[1] if len(shape) > 1 else 1 for shape in shapes if isinstance(shape[-1], int)]


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(
    ("is_weighted", "has_bias"),
    some([(True, True), (False, False)], [(True, False), (False, True)]),
)
def test_results_and_gradients(spread: Spread, is_weighted: bool, has_bias: bool) -> None:
    torch._dynamo.reset()
    arguments: list[Tensor | None] = [*given()]
    arguments[2] = arguments[2] if has_bias else None
    arguments[-1] = arguments[-1] if is_weighted else None
    program = partial(layers, spread)
    agree(torch.compile(program, backend="hemstitch", fullgraph=True), program, arguments)
    with torch.no_grad():
        again = torch.compile(program, backend="hemstitch", fullgraph=True)(*arguments)
    torch.testing.assert_close(again, program(*arguments), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spread", SPREADS)
def test_the_narrower_side_is_passed(spread: Spread) -> None:
    """Forward passes what each layer is given, and once the edges' factors, for the bias; backward
    passes only the gradient of what the second layer is given, and of x."""
    found = widths(partial(layers, spread), given())
    assert sorted(found) == sorted([FEW, HIDDEN, 1, HIDDEN, FEW])


def test_wide_layers_stay() -> None:
    def program(x: Tensor, w: Tensor, *edges: Tensor) -> Tensor:
        return by_index_add(x @ w, *edges)

    x, w = torch.randn(NODES, MANY, requires_grad=True), torch.randn(MANY, FEW, requires_grad=True)
    assert widths(program, [x, w, *given()[-3:]]) == [FEW, FEW]


def test_a_product_behind_is_passed_instead_where_it_is_narrower() -> None:
    """In inference; a gradient of the weights would need both."""

    def program(x: Tensor, w: Tensor, *edges: Tensor) -> Tensor:
        return by_index_add(x, *edges) @ w

    x, w = torch.randn(NODES, MANY), torch.randn(MANY, FEW)
    arguments = [x, w, *given()[-3:]]
    [(graph, _)] = plans_of(program, arguments, MACHINE)
    assert _widths(graph) == [FEW]
    torch._dynamo.reset()
    found = torch.compile(program, backend="hemstitch")(*arguments)
    torch.testing.assert_close(found, program(*arguments), rtol=1e-4, atol=1e-4)


def _product_is_read_twice(x: Tensor, w: Tensor, *edges: Tensor) -> Tensor:
    product = x @ w
    return by_index_add(product, *edges) + product


def _factors_have_a_gradient(x: Tensor, w: Tensor, source: Tensor, *edges: Tensor) -> Tensor:
    target, weight = edges
    return by_index_add(x @ w, source, target, (x.sum(1)[source] * weight[:, 0])[:, None])


def _a_factor_for_each_column(x: Tensor, w: Tensor, source: Tensor, *edges: Tensor) -> Tensor:
    target, weight = edges
    return by_index_add(x @ w, source, target, weight.expand(EDGES, MANY).cos())


def _something_is_there(x: Tensor, w: Tensor, source: Tensor, *edges: Tensor) -> Tensor:
    target, weight = edges
    return (x @ w).sigmoid().index_add(0, target, (x @ w)[source] * weight)


def _edges_are_masked(x: Tensor, w: Tensor, source: Tensor, *edges: Tensor) -> Tensor:
    target, _ = edges
    product = x @ w
    sent = product[torch.arange(NODES) % 2 == 0]
    return torch.zeros_like(product).index_add(0, target[: len(sent)], sent)


def _all_have_one_factor(x: Tensor, w: Tensor, source: Tensor, *edges: Tensor) -> Tensor:
    target, weight = edges
    return by_index_add(x @ w, source, target, weight[:1])


def _columns_have_indices(x: Tensor, w: Tensor, source: Tensor, *edges: Tensor) -> Tensor:
    """Not lines."""
    product = x @ w
    index = (torch.arange(MANY) % NODES).view(1, -1).expand(EDGES, MANY)
    return torch.zeros_like(product).scatter_add(0, index, product[source] * edges[1])


def _some_lines_are_left(x: Tensor, w: Tensor, source: Tensor, *edges: Tensor) -> Tensor:
    target, _ = edges
    product = x @ w
    index = target[:5].view(-1, 1).expand(5, MANY)
    return torch.zeros_like(product).scatter_add(0, index, product[source])


def _some_columns_are_left(x: Tensor, w: Tensor, source: Tensor, *edges: Tensor) -> Tensor:
    target, _ = edges
    sent = (x @ w).gather(0, source.view(-1, 1).expand(-1, MANY - 2))
    return torch.zeros(NODES, MANY - 2, dtype=x.dtype).index_add(0, target, sent)


UNLIKE: list[Program] = [
    _all_have_one_factor,
    _columns_have_indices,
    _some_columns_are_left,
    _product_is_read_twice,
    _factors_have_a_gradient,
    _a_factor_for_each_column,
    _something_is_there,
    _edges_are_masked,
]


@pytest.mark.parametrize("program", UNLIKE)
def test_what_is_no_such_layer_is_right_too(program: Program) -> None:
    torch._dynamo.reset()
    x, w = torch.randn(NODES, FEW, requires_grad=True), torch.randn(FEW, MANY, requires_grad=True)
    arguments = [x, w, *given()[-3:]]
    agree(torch.compile(program, backend="hemstitch"), program, arguments)


def test_lines_that_are_not_sent_are_not_added() -> None:
    """PyTorch has no gradient of it."""
    torch._dynamo.reset()
    arguments = [torch.randn(NODES, FEW), torch.randn(FEW, MANY), *given()[-3:]]
    found = torch.compile(_some_lines_are_left, backend="hemstitch")(*arguments)
    expected = _some_lines_are_left(*arguments)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("program", [_product_is_read_twice, _factors_have_a_gradient])
def test_what_is_no_such_layer_stays(program: Program) -> None:
    x, w = torch.randn(NODES, FEW, requires_grad=True), torch.randn(FEW, MANY, requires_grad=True)
    assert max(widths(program, [x, w, *given()[-3:]])) == MANY


@pytest.mark.parametrize("sizes", [(0, 4), (5, 0), (0, 0)])
def test_no_nodes_or_no_edges(sizes: tuple[int, int]) -> None:
    torch._dynamo.reset()
    nodes, edges = sizes
    x, v, b, w, source, target, weight = given()
    arguments = [x[:nodes].detach().requires_grad_(), v, b, w]
    arguments += [source[:edges] % max(nodes, 1), target[:edges] % max(nodes, 1), weight[:edges]]
    if edges and not nodes:
        arguments[-3:] = [source[:0], target[:0], weight[:0]]
    program = partial(layers, by_index_add)
    agree(torch.compile(program, backend="hemstitch"), program, arguments)


def test_numbers_of_nodes_and_edges_may_change() -> None:
    torch._dynamo.reset()
    program = partial(layers, by_index_add)
    compiled = torch.compile(program, backend="hemstitch", dynamic=True)
    for nodes, edges in ((7, 23), (9, 4), (30, 61)):
        _, v, b, w, _, _, _ = given()
        x = torch.randn(nodes, FEW, requires_grad=True)
        source, target = torch.randint(nodes, (2, edges))
        arguments = [x, v, b, w, source, target, torch.rand(edges, 1)]
        agree(compiled, program, arguments)


@pytest.mark.parametrize("spread", [by_index_add, by_index_put, by_scatter])
def test_negative_indices_are_what_they_were(spread: Spread) -> None:
    """`index_put` takes them from the end, in backward and forward; the others refuse them."""
    torch._dynamo.reset()
    arguments = given()
    arguments[-2] = arguments[-2] - NODES
    program = partial(layers, spread)
    compiled = torch.compile(program, backend="hemstitch")
    if spread is not by_index_put:
        with pytest.raises((IndexError, RuntimeError)):
            compiled(*arguments)
        return
    agree(compiled, program, arguments)


@pytest.mark.parametrize("shape", [(), (NODES,), (NODES, FEW, 2)])
def test_what_is_no_matrix_is_left_alone(shape: tuple[int, ...]) -> None:
    """A single number has no lines."""

    def spread(values: Tensor, index: Tensor) -> Tensor:
        sent = values.gather(0, index)
        return torch.zeros_like(values).scatter_add(0, index, sent)

    values, index = torch.randn(shape), torch.zeros(shape, dtype=torch.int64)
    found = torch.compile(spread, backend="hemstitch", options={"strict": True})(values, index)
    assert torch.allclose(found, spread(values, index))
