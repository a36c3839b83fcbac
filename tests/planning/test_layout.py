"""How values lie between kernels: as what they are computed from, where that is not by rows."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemstitch.driver.verified import difference
from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import InputAttr, Op, Range, toposort
from hemstitch.ir.ops import is_elementwise
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.planning.intermediate_layout import orders, strides_in_order
from hemstitch.planning.materialisation import materialisation
from hemstitch.stitching.group import Tensor as InMemory
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

SHAPE = (2, 3, 4, 5)
BY_CHANNELS = (60, 1, 15, 3)


def order_of_sum(*layouts: tuple[int, ...]) -> tuple[int, ...] | None:
    """Of the sum of inputs that lie like this, one after the other."""
    builder = Builder()
    inputs = [builder.input(f"x{k}", k, SHAPE, DType.F32, s) for k, s in enumerate(layouts)]
    total = builder.make(Op.EXP, inputs[0])
    for x in inputs[1:]:
        total = builder.make(Op.ADD, total, x)
    half = builder.make(Op.MUL, total, builder.constant(0.5, DType.F32, SHAPE))
    tensors = {}
    for x in inputs:
        assert isinstance(x.attr, InputAttr)
        tensors[x] = InMemory(x, x.attr.strides)
    return orders(toposort([half]), tensors).get(half)


def test_what_is_computed_lies_as_what_it_is_made_of() -> None:
    assert order_of_sum(BY_CHANNELS) == (0, 2, 3, 1)
    assert order_of_sum(BY_CHANNELS, BY_CHANNELS) == (0, 2, 3, 1)
    assert strides_in_order(SHAPE, (0, 2, 3, 1)) == BY_CHANNELS


@pytest.mark.parametrize(
    "layouts",
    [
        (contiguous_strides(SHAPE),),
        (BY_CHANNELS, contiguous_strides(SHAPE)),
        (contiguous_strides(SHAPE), BY_CHANNELS),
        ((120, 1, 30, 6),),  # with gaps
        ((0, 1, 15, 3),),  # expanded
    ],
)
def test_else_it_lies_by_rows(layouts: tuple[tuple[int, ...], ...]) -> None:
    assert order_of_sum(*layouts) is None


def pooled(weight: Tensor, x: Tensor) -> Tensor:
    y = F.max_pool2d(F.relu(F.conv2d(x, weight)), 3, stride=2, padding=1)
    return F.conv2d(y, weight[:, :, :1, :1].relu()).exp() + y


def test_what_is_seen_through_windows_lies_as_what_they_show() -> None:
    builder = Builder()
    x = builder.input("x", 0, SHAPE, DType.F32, BY_CHANNELS)
    zero = builder.constant(0, DType.F32)
    padded = builder.pad(builder.make(Op.EXP, x), (0, 0, 1, 1), (2, 3, 6, 7), zero)
    parts = [
        builder.slice(padded, (Range(0), Range(0), Range(k), Range(k)), SHAPE) for k in range(3)
    ]
    largest = builder.make(Op.MAXIMUM, builder.make(Op.MAXIMUM, *parts[:2]), parts[2])
    found = orders(toposort([largest]), {x: InMemory(x, BY_CHANNELS)})
    assert found[largest] == (0, 2, 3, 1)
    weight, images = torch.randn(6, 6, 3, 3), torch.randn(2, 6, 19, 19)
    ((_, plan),) = plans_of(pooled, (weight, images), generic_cpu(2, 16))
    between = [t for step in plan.kernels for t in step.writes if t.node.shape[:2] == (2, 6)]
    assert any(tensor.node.op is Op.MAXIMUM for tensor in between)
    assert all(tensor.strides[1] == 1 for tensor in between if tensor.node.op is Op.MAXIMUM)


class Block(nn.Module):
    """Its gradients go two ways, and meet again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + x).mean((2, 3))


def test_no_tensor_of_images_by_channels_lies_by_rows() -> None:
    model = nn.Sequential(Block(), nn.Flatten(), nn.Linear(6, 6)).to(
        memory_format=torch.channels_last
    )
    blocks = nn.Sequential(nn.Conv2d(3, 6, 1), Chain(), model).to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    graphs = plans_of(blocks, (x,), generic_cpu(2, 8), backward=True)
    for _, plan in graphs:
        for step in plan.kernels:
            for tensor in step.stitched.tensors:
                shape = tensor.node.shape
                if len(shape) == 4 and shape[0] == len(x) and 9 in shape:
                    channels = next(axis for axis, size in enumerate(shape) if size in (3, 6))
                    assert tensor.strides[channels] == 1, (step.stitched.kernel.name, tensor)


@pytest.mark.parametrize("order", [(0, 3, 1, 2), (0, 1, 2, 3)])
def test_what_a_product_makes_lies_as_its_rows(order: tuple[int, ...]) -> None:
    builder = Builder()
    left, right = (
        builder.input(f"x{n}", n, shape, DType.F32, contiguous_strides(shape))
        for n, shape in enumerate(((40, 3), (3, 7)))
    )
    images = builder.reshape(builder.dot(left, right), (2, 4, 5, 7))
    seen = builder.permute(images, order)
    result = builder.make(Op.TANH, seen)
    found = orders(toposort([result]), {}).get(result, (0, 1, 2, 3))
    assert found == tuple(map(order.index, range(4)))
    assert seen is images or strides_in_order(seen.shape, found)[1] == 1


class Chain(nn.Module):
    """Long enough that one kernel does not do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Inner() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.convolution(x)) + x)


def test_gradients_by_channels_are_right() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(3, 6, 1), Chain(), Block())
    x = torch.randn(4, 3, 9, 9)
    exact = [p.detach().double() for p in model.parameters()]
    names = [name for name, _ in model.named_parameters()]
    wanted = torch.func.functional_call(
        model.double(), {n: p.requires_grad_() for n, p in zip(names, exact)}, (x.double(),)
    )
    expected = torch.autograd.grad(wanted.square().sum(), exact)
    model = model.float().to(memory_format=torch.channels_last)
    given = x.contiguous(memory_format=torch.channels_last)
    result = torch.compile(model, backend="hemstitch")(given)
    found = torch.autograd.grad(result.square().sum(), list(model.parameters()))
    for name, ours, theirs in zip(names, found, expected):
        if theirs.norm() > 1e-9:  # a bias before a batch norm: noise about zero
            assert difference(ours, theirs) < 2e-4, name


def scores(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of a language model, and a loss of most of them."""
    result = (x.flatten(0, 1).tanh() @ weight).exp().unflatten(0, x.shape[:2])
    return result, result[:, :-1].flatten(0, 1).logsumexp(1)


def turned(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    result = (x.exp() * weight.sum()).permute(2, 0, 1).contiguous()
    return result, x.exp().sum((1, 2)) / result.amax((0, 1)).sum()


@pytest.mark.parametrize(("function", "tensors"), [(scores, 3), (turned, 3)])
def test_a_result_is_where_kernels_read_it(function, tensors: int) -> None:
    """Though the caller has it as a view of what they made: nothing is stored twice."""
    x, weight = torch.randn(3, 5, 24), torch.randn(24, 40)
    ((_, plan),) = plans_of(function, (x, weight), generic_cpu(threads=2, lanes=16))
    written = [t for step in plan.kernels for t in step.writes if prod(t.node.shape) > 100]
    assert len(written) == 1, written
    found = torch.compile(function, backend="hemstitch", options={"check": True})(x, weight)
    expected = function(x, weight)
    torch.testing.assert_close(found, expected)
    assert found[0].stride() == expected[0].stride() and found[0]._base is None


def test_what_a_reshape_sees_in_one_piece_stays_so() -> None:
    """Channels and lines that are one step of a product, though images lie by channels."""
    builder = Builder()
    x = builder.input("x", 0, SHAPE, DType.F32, BY_CHANNELS)
    y = builder.make(Op.EXP, x)
    steps = builder.reshape(builder.permute(y, (3, 0, 1, 2)), (5, 2, 12))
    pixels = builder.reshape(y, (2, 3, 20))
    tensors = {x: InMemory(x, BY_CHANNELS)}
    assert orders(toposort([y]), tensors)[y] == (0, 2, 3, 1)
    assert orders(toposort([pixels]), tensors)[y] == (0, 2, 3, 1)
    assert y not in orders(toposort([steps, pixels]), tensors)


@pytest.mark.parametrize(
    "between", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Upsample(scale_factor=2)], ids=str
)
def test_what_each_element_of_a_window_gets_lies_by_channels(between: nn.Module) -> None:
    """Seen as windows, it is repeated along two more axes."""
    norm, ends = nn.BatchNorm2d(6), [nn.Conv2d(6, 6, 3, padding=1) for _ in range(2)]
    model = nn.Sequential(ends[0], norm, nn.ReLU(), between, ends[1])
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(4, 6, 8, 8).contiguous(memory_format=torch.channels_last)
    graphs = plans_of(model, (x,), generic_cpu(2, 8), backward=True)
    for graph, _ in graphs:
        nodes = toposort(graph.roots)
        order = orders(nodes, materialisation(graph).tensors)
        images = [n for n in nodes if is_elementwise(n.op) and n.shape == x.shape]
        assert images
        assert {order[node] for node in images} == {(0, 2, 3, 1)}
