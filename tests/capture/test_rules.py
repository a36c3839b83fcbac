"""Each rule against eager: forward values, with sizes known and with sizes symbolic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from hemstitch.capture.decompositions import decompositions
from hemstitch.capture.rules import NAMED, RULES, _overloads
from hemstitch.capture.translation import capture
from hemstitch.ir.verifier import verify
from tests.capture.helpers import execute, library_names

aten = torch.ops.aten
Function = Callable[..., Any]

UNARY = (
    *("abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh"),
    *("deg2rad", "erf", "erfc", "exp", "exp2", "expm1", "floor", "frac", "isfinite", "isinf"),
    *("isnan", "log", "log10", "log1p", "log2", "logical_not", "logit", "nan_to_num", "neg"),
    *("rad2deg", "reciprocal", "relu", "round", "rsqrt", "sgn", "sigmoid", "sign", "signbit"),
    *("sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh", "trunc"),
)
BINARY = (
    *("add", "atan2", "copysign", "div", "eq", "floor_divide", "fmax", "fmin", "fmod", "ge"),
    *("gt", "heaviside", "hypot", "le", "logaddexp", "logaddexp2", "logical_and"),
    *("logical_or", "logical_xor", "lt", "maximum", "minimum", "mul", "ne", "pow"),
    *("remainder", "sub", "xlogy"),
)
ACTIVATIONS: dict[str, Function] = {
    "elu": lambda x: F.elu(x, 0.7),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardshrink": F.hardshrink,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "selu": F.selu,
    "silu": F.silu,
    "softplus": lambda x: F.softplus(x, 2, 1.5),
    "softshrink": F.softshrink,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
}
PIECEWISE: dict[str, Function] = {  # their gradients are decomposed
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.8),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "relu6": F.relu6,
    "threshold": lambda x: F.threshold(x, 0.2, -3.0),
}
REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(),
    "sum_dims": lambda x: x.sum((0, -1), keepdim=True),
    "mean": lambda x: x.mean(1),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax((0, 1)),
    "amin": lambda x: x.amin(-1, keepdim=True),
    "max": lambda x: (*x.max(1), x.max()),
    "min": lambda x: (*x.min(0, keepdim=True), x.min()),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "argmax": lambda x: (x.argmax(), x.argmax(1), x.argmax(0, keepdim=True)),
    "argmin": lambda x: (x.argmin(), x.argmin(1)),
    "any": lambda x: ((x > 1).any(), (x > 1).any(1)),
    "all": lambda x: ((x > -1).all(), (x > -1).all(0)),
    "count_nonzero": lambda x: (x > 0).count_nonzero(),
    "var": lambda x: (x.var(), x.var(1), x.var((0, 1), correction=0, keepdim=True)),
    "std": lambda x: (x.std(), x.std(1, unbiased=False)),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (0, 2), correction=2),
    "norm": lambda x: (x.norm(), x.norm(1, dim=1), torch.linalg.vector_norm(x, math.inf)),
    "norm_3": lambda x: (torch.linalg.vector_norm(x, 3, 1), torch.linalg.vector_norm(x, 0)),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
    "nansum": lambda x: torch.where(x > 0, x, math.nan).nansum(1),
    "softmax": lambda x: (x.softmax(1), x.log_softmax(-1)),
    "scalars": lambda x: (x[0, 0, 0].sum(), x[0, 0, 0].softmax(0), x[0, 0, 0].max()),
}
VIEWS: dict[str, Function] = {
    "view": lambda x: x.view(-1, x.shape[2]),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1),
    "permute": lambda x: (x.permute(2, 0, 1), x.transpose(0, -1), x[0].t(), x.mT),
    "squeeze": lambda x: (x[:, :1].squeeze(1), x.unsqueeze(-1)),
    "select": lambda x: (x[1], x[:, -1], x[..., x.shape[2] - 1]),
    "slice": lambda x: (x[1:], x[:, :-1], x[..., ::2], x[:, -2:], x[5:], x[-100:]),
    "slice_by_size": lambda x: (x[x.shape[0] - 4 :], x[:, x.shape[0] - 1 :], x[x.shape[1] - 3 :]),
    "split": lambda x: (*x.split(2, 1), *x.split([1, x.shape[1] - 1], 1), *x.chunk(2, 2)),
    "unbind": lambda x: x.unbind(0),
    "cat": lambda x: (torch.cat([x, x.flip(0), x], 1), torch.cat([x.new_empty(0), x])),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((1, -2), (0, 1)),
    "repeat": lambda x: x.repeat(2, 1, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "pad": lambda x: (F.pad(x, (1, 2, 0, 3), value=0.5), F.pad(x, (-1, 2))),
    "scatter": lambda x: (x.slice_scatter(x[:, 1:] * 2, 1, 1), x.select_scatter(x[:, 0], 1, -1)),
    "triangle": lambda x: (x.tril(), x.triu(1), x[0].tril(-1)),
    "to": lambda x: (x.to(torch.float32), x.to(torch.int32), x.bool(), x.half()),
    "pixel_shuffle": lambda x: F.pixel_shuffle(torch.cat([x, x[:1]])[None], 2),
}
INDEXING: dict[str, Function] = {
    "embedding": lambda x, i: F.embedding(i, x[:, :, 0]),
    "index_select": lambda x, i: x.index_select(1, i[0]),
    "gather": lambda x, i: x[:, :, 0].gather(1, i[:3, :2]),
    "front": lambda x, i: x[i],
    "negative": lambda x, i: x[i - 2],
    "middle": lambda x, i: x[:, i],
    "adjacent": lambda x, i: x[:, i, i],
    "apart": lambda x, i: x[i, :, i],
    "broadcast": lambda x, i: x[i[:, :1], i[0]],
    "with_slices": lambda x, i: x[1:, i, None, -1],
    "scatter": lambda x, i: x[:3, :, 0].scatter(1, i[:3, :1], 5.0),
    "scatter_few": lambda x, i: torch.zeros_like(x[:3, :, 0]).scatter(
        1, x[:3, :, 0].topk(3).indices, x[:3, :3, 1]
    ),
    "scatter_add_few": lambda x, i: x[:3, :, 0].scatter_add(1, i[:3, :4], x[:3, 1:, 1]),
    "scatter_add": lambda x, i: x[:3, :, 0].scatter_add(1, i[:3, :1], x[:3, :1, 1]),
    "lines_added": lambda x, i: x.new_zeros(9, x.shape[2]).scatter_add(
        0, i[0, 2:, None].expand_as(x[1]), x[1]
    ),
    "lines_added_within": lambda x, i: x.new_zeros(x.shape[0], 8, x.shape[2]).scatter_add(
        1, i[:, 2:, None].expand_as(x), x
    ),
    "index_add": lambda x, i: (
        x.new_zeros(6, *x.shape[1:]).index_add(0, i[1, 2:], x, alpha=3),
        x.new_zeros(x.shape[0], 6, x.shape[2]).index_add(-2, i[2, 2:], x),
        x.new_zeros(6, x.shape[2]).index_add(0, i[0, 0], x[0, :1]),
    ),
    "index_add_halves": lambda x, i: (
        x.bfloat16()
        .new_zeros(90, x.shape[2])
        .index_add(0, i[1, 2:] + 17 * torch.arange(5), x[0].bfloat16())
    ),
    "index_put": lambda x, i: (
        x.new_zeros(5, 9, x.shape[2]).index_put((i[:, :1], i[:1] - 2), x[:, :1], True),
        x.new_zeros(9, x.shape[2]).index_put((i,), x[0, 0], accumulate=True),
        aten.index_put(x.new_zeros(x.shape[0], 9, x.shape[2]), [None, i[0, 2:]], x, True),
    ),
    "embedding_backward": lambda x, i: (
        aten.embedding_dense_backward(x, i[:, 2:], 7, -1, False),
        aten.embedding_dense_backward(x, i[:, 2:], 7, 3, False),
        aten.embedding_dense_backward(x[0, 0], i[0, 0], 7, -1, False),
    ),
}
CREATION: dict[str, Function] = {
    "like": lambda x: (torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 3)),
    "new": lambda x: (x.new_zeros(2, x.shape[0]), x.new_ones(3), x.new_full((2,), 1.5)),
    "full": lambda x: torch.full((x.shape[1], 2), 7, dtype=torch.int32),
    "arange": lambda x: (
        torch.arange(x.shape[0]),
        torch.arange(1, 9, 2),
        torch.arange(0, 1, 0.1),
    ),
    "linspace": lambda x: torch.linspace(0, 1, 7),
    "eye": lambda x: torch.eye(x.shape[0], 5),
    "sizes": lambda x: x * x.shape[0] + x.numel() // 2 - x.shape[1] / x.shape[2] ** 0.5,
    "lists": lambda x: torch._foreach_add(torch._foreach_mul([x, x[0]], 2.0), [x, x[1]], alpha=0.5),
    "list_norms": lambda x: torch._foreach_norm([x, x[0]]),
}
COMPOSITE: dict[str, Function] = {
    "where": lambda x: (torch.where(x > 0, x, 1), torch.where(x > 0, 1.0, x[0])),
    "masked_fill": lambda x: x.masked_fill(x > 0, -math.inf),
    "clamp": lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=x[0]), x.clamp_max(0.1)),
    "lerp": lambda x: (torch.lerp(x, x[0], 0.3), torch.lerp(x, x[0], 0.8), torch.lerp(x, x, x)),
    "addcmul": lambda x: (torch.addcmul(x, x, x, value=2), torch.addcdiv(x, x, x + 9, value=0.5)),
    "rounding": lambda x: (
        torch.div(x, 0.3, rounding_mode="floor"),
        torch.div(x, x[0] + 9, rounding_mode="trunc"),
    ),
    "alpha": lambda x: (torch.add(x, x[0], alpha=3), torch.sub(x, 1, alpha=2), torch.rsub(x, 1)),
    "powers": lambda x: (x**2, x**3, x**-1, x.abs() ** 0.5, 2**x, x.abs() ** x, x**5),
    "layer_norm": lambda x: aten.native_layer_norm(x, x.shape[1:], x[0] + 1, x[1], 1e-5),
    "batch_norm": lambda x: F.batch_norm(x, x[0, :, 0], x[0, :, 1].exp(), None, None, False),
    "avg_pool": lambda x: F.avg_pool2d(x, 2, 1, padding=1),
    "glu": lambda x: F.glu(torch.cat([x, x], 1), 1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
}


def check(
    function: Function, *arguments: torch.Tensor, mode: str = "real", whole: bool = False
) -> None:
    """`whole`: with no decompositions, so that the op itself reaches its rule."""

    def flat(*tensors: torch.Tensor) -> list[Any]:
        result = function(*tensors)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    table = None if whole else decompositions()
    traced = make_fx(flat, tracing_mode=mode, decomposition_table=table)(*arguments)
    captured = capture(traced, arguments)
    verify(captured.graph)
    assert not library_names(captured)
    results = execute(captured, list(arguments))
    expected = flat(*arguments)
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected):
        torch.testing.assert_close(result, wanted, equal_nan=True)


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def cases(*tables: dict[str, Function]) -> pytest.MarkDecorator:
    merged = {name: function for table in tables for name, function in table.items()}
    return pytest.mark.parametrize("function", merged.values(), ids=merged.keys())


modes = pytest.mark.parametrize("mode", ["real", "symbolic"])


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    x = torch.cat([sample(50) * 3, torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 2.5])])
    check(getattr(torch, name), x, whole=True)
    if name not in ("logit", "frac"):
        check(getattr(torch, name), torch.arange(-3, 4), whole=True)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    function = getattr(torch, name)
    x, y = sample(4, 1, 5), sample(3, 5)
    check(function, x, y, whole=True)
    check(function, torch.tensor([1.5, math.inf, math.nan, 0.0]), torch.tensor(0.0), whole=True)
    if name != "heaviside":
        check(function, torch.arange(-3, 5), torch.tensor([2.5, -1.0, 3, 0.5])[:, None], whole=True)
    if name in ("add", "eq", "div", "mul", "pow", "remainder", "sub", "floor_divide", "fmod"):
        check(lambda a: function(a, 3), torch.arange(5), whole=True)
        check(lambda a: function(a, 2.5), torch.arange(5), whole=True)
        check(lambda a: function(a, 2.5), sample(4).float(), whole=True)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise(name: str) -> None:
    function = getattr(torch, name)
    check(function, torch.arange(-8, 8), torch.arange(16), whole=True)
    check(function, torch.tensor([True, False]), torch.tensor([[True], [False]]), whole=True)
    check(lambda x: (~x, x << 2, x >> 1), torch.arange(-8, 8, dtype=torch.int32), whole=True)


@cases(ACTIVATIONS)
def test_activations_and_their_derivatives(function: Function) -> None:
    check(with_derivative(function), at_many_places(), whole=True)


@cases(PIECEWISE)
def test_piecewise_linear_functions_and_their_derivatives(function: Function) -> None:
    check(with_derivative(function), at_many_places())


def at_many_places() -> torch.Tensor:
    return torch.cat([sample(40) * 3, torch.linspace(-4, 4, 17, dtype=torch.float64)])


def with_derivative(function: Function) -> Function:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        y = function(x)
        (grad,) = torch.autograd.grad(y, x, torch.cos(x.detach()))
        return y.detach(), grad

    return both


@modes
@cases(REDUCTIONS, VIEWS, CREATION, COMPOSITE)
def test_tensors(function: Function, mode: str) -> None:
    check(function, sample(3, 4, 6), mode=mode)


@modes
@cases(INDEXING)
def test_indexing(function: Function, mode: str) -> None:
    check(function, sample(5, 5, 5), torch.randint(0, 5, (5, 7)), mode=mode)


@cases(REDUCTIONS, COMPOSITE)
def test_half_types_round_once(function: Function) -> None:
    x = sample(3, 4, 6).bfloat16()
    traced = make_fx(lambda x: function(x))(x)
    for result, wanted in zip(
        *(
            value if isinstance(value, (list, tuple)) else [value]
            for value in (execute(capture(traced, [x]), [x]), function(x))
        )
    ):
        torch.testing.assert_close(result, wanted, rtol=2e-2, atol=2e-2, equal_nan=True)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_whole(training: bool) -> None:
    x, channel = sample(4, 3, 5), sample(3)
    check(
        lambda x, c: aten._native_batch_norm_legit_functional(
            x, c, c + 1, c - 1, c.exp(), training, 0.1, 1e-5
        )[: 5 if training else 1],
        x,
        channel,
        whole=True,
    )


def test_norms_backward_whole() -> None:
    x, weight = sample(4, 6), sample(6)
    _, mean, scale = aten.native_layer_norm(x, [6], weight, weight, 1e-5)
    check(
        lambda g, x, w, mean, scale: aten.native_layer_norm_backward(
            g, x, [6], mean, scale, w, w, [True, True, True]
        ),
        *(sample(4, 6), x, weight, mean, scale),
        whole=True,
    )
    y = x.softmax(1)
    check(
        lambda g, y: (
            aten._softmax_backward_data(g, y, 1, torch.float64),
            aten._log_softmax_backward_data(g, y.log(), 0, torch.float64),
        ),
        *(sample(4, 6), y),
        whole=True,
    )
    check(
        lambda x, w: aten.native_group_norm(x, w, w, 4, 6, 5, 2, 1e-5),
        sample(4, 6, 5),
        weight,
        whole=True,
    )


def test_pooling_backward() -> None:
    x = sample(2, 3, 4, 6)
    check(
        lambda g, x: aten.avg_pool2d_backward(g, x, [2, 3], [], [0, 0], False, True, None),
        sample(2, 3, 2, 2),
        x,
        whole=True,
    )
    check(aten._adaptive_avg_pool2d_backward, sample(2, 3, 2, 3), x, whole=True)
    check(lambda x: aten._adaptive_avg_pool2d(x, [2, 3]), x, whole=True)


def test_every_name_is_an_op_of_this_torch() -> None:
    assert [name for name in NAMED if not list(_overloads(name))] == []
    assert len(RULES) > 600


def test_what_a_rule_declines_stays_whole() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.slice_scatter(x[::2] * 2, 0, 0, 4, 2), x.logcumsumexp(0)

    x = sample(4, 4)
    captured = capture(make_fx(function)(x), [x])
    assert library_names(captured) == ["aten.slice_scatter.default", "aten.logcumsumexp.default"]
    for result, wanted in zip(execute(captured, [x]), function(x)):
        assert torch.equal(result, wanted)


NOT_BY_LINES: dict[str, Function] = {
    "index_add": lambda x, i: x.index_add(0, i[0, :5], x),
    "index_put": lambda x, i: x.new_zeros(9, 5).index_put((i[0, :5],), x),
    "scatter_add": lambda x, i: x.new_zeros(5, 90).scatter_add(1, i, x.repeat(1, 4)[:, :17]),
    "index_add by columns": lambda x, i: x.new_zeros(5, 9).index_add(1, i[0, :5], x),
    "index_add of bytes": lambda x, i: x.byte().new_zeros(9, 5).index_add(0, i[0, :5], x.byte()),
    "index_add of one column": lambda x, i: x.new_zeros(9, 1).index_add(0, i[0, :5], x[:, :1]),
    "embedding_dense_backward": lambda x, i: aten.embedding_dense_backward(
        x, i[0, :5], 9, -1, True
    ),
}


@pytest.mark.parametrize("name", NOT_BY_LINES)
def test_what_does_not_add_lines_up_from_nothing_is_the_librarys(name: str) -> None:
    x, index = sample(5, 5), torch.randint(0, 5, (5, 17))
    traced = make_fx(NOT_BY_LINES[name], decomposition_table=decompositions())(x, index)
    assert [call.split(".")[1] for call in library_names(capture(traced, [x, index]))] == [
        name.split()[0]
    ]


def test_sums_in_any_order_are_not_taken_where_they_may_not_be() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(9, 5).index_add(0, index, x)

    def names(device: str) -> list[str]:
        with FakeTensorMode():
            x, index = (torch.empty(5, 5, device=device), torch.arange(5, device=device))
            return library_names(capture(make_fx(function)(x, index), [x, index]))

    assert names("cuda") == []
    torch.use_deterministic_algorithms(True)
    try:
        assert (names("cuda"), names("cpu")) == (["aten.index_add.default"], [])
    finally:
        torch.use_deterministic_algorithms(False)
