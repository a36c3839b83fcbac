"""EVT's rows about what is fused with a product of matrices: the nodes of an epilogue's tree, its
layouts, unit patterns, the layers of a transformer. On a processor, whose kernels here multiply
whatever they can; tests/printed emulates the same kinds of kernels for GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hemstitch.matmul.lowering.blocking import Blocking
from hemstitch.measure.matmul_tuner import UNFUSED, Tuner
from hemstitch.planning.plan import KernelStep
from hemstitch.report.explain import Report, explain
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

pytestmark = pytest.mark.usefixtures("kernels_multiply")

MULTIPLYING = replace(generic_cpu(2, 8), launch_seconds=1.0)
M, K, N = 37, 29, 53  # odd, none a multiple of a vector
Program = Callable[..., Any]


def matrices(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(shape).to(dtype) for shape in shapes]


def tensors(found: object) -> list[Tensor]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


def compiled(program: Program) -> Program:
    torch._dynamo.reset()
    return torch.compile(program, backend="hemstitch", options={"strict": True})


def report(program: Program, *arguments: Tensor, **more: Any) -> Report:
    torch._dynamo.reset()
    return explain(program, *arguments, **more)


def assert_exact(program: Program, arguments: Sequence[Tensor], least: float = 1e-6) -> None:
    """At most twice eager's distance from float64, by relative norm."""
    double = [x.double() if x.is_floating_point() else x for x in arguments]
    exact, eager = tensors(program(*double)), tensors(program(*arguments))
    for found, near, wanted in zip(tensors(compiled(program)(*arguments)), eager, exact):
        assert found.dtype is near.dtype and found.shape == near.shape
        scale = float(wanted.double().norm()) or 1.0
        error = float((found.double() - wanted.double()).norm())
        allowed = 2 * float((near.double() - wanted.double()).norm()) + least * scale
        assert error <= allowed, (error / scale, allowed / scale)


def assert_one_kernel(program: Program, *arguments: Tensor) -> Report:
    """That, the library is not called, and the values are right."""
    found = report(program, *arguments)
    assert (found.kernel_count, found.library_calls) == (1, []), str(found)
    assert_exact(program, arguments)
    return found


# --- nodes of the tree

LOADS: dict[str, tuple[Program, tuple[int, ...]]] = {
    "auxiliary": (lambda x, w, other: x @ w + other, (M, N)),
    "row": (lambda x, w, other: x @ w * other, (N,)),
    "column": (lambda x, w, other: x @ w - other, (M, 1)),
    "scalar": (lambda x, w, other: x @ w / other, ()),
    "accumulator alone": (lambda x, w, other: (x @ w).relu() * other.sum(), (1,)),
}


@pytest.mark.parametrize("name", LOADS)
def test_EV_17_each_load_node(name: str) -> None:
    program, shape = LOADS[name]
    assert_one_kernel(program, *matrices((M, K), (K, N), shape))


def test_EV_17_random_numbers_are_drawn_in_the_epilogue() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(x @ w, 0.25)

    x, w = matrices((M, K), (K, N))
    found = report(program, x, w)
    assert found.kernel_count == 1 and found.library_calls == ["hemstitch.draw_seeds"]
    result, whole = compiled(program)(x, w), x @ w
    kept = result != 0
    torch.testing.assert_close(result[kept], whole[kept] / 0.75)
    assert abs(float(kept.float().mean()) - 0.75) < 4 * math.sqrt(0.75 * 0.25 / kept.numel())


STORES: dict[str, Program] = {
    "auxiliary": lambda x, w: (lambda y: (y, y.relu()))(x @ w),
    "sums of columns": lambda x, w: (x @ w).sum(0),
    "sums of rows": lambda x, w: (x @ w).sum(1),
    "sum of all": lambda x, w: (x @ w).sum(),
    "largest of rows": lambda x, w: (x @ w).amax(1),
    "several": lambda x, w: (lambda y: (y, y.sum(0), y.sum(1), y.tanh()))(x @ w),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", STORES)
def test_EV_18_each_store_node(name: str, dtype: torch.dtype) -> None:
    """Sums of half types are added up in float32."""
    program, given = STORES[name], matrices((M, K), (K, N), dtype=dtype)
    assert report(program, *given).kernel_count == 1
    assert_exact(program, given, 1e-6 if dtype is torch.float32 else 4e-3)


COMPUTES: dict[str, Program] = {
    "add": lambda y: y + 1.5,
    "sub": lambda y: 2 - y,
    "mul": lambda y: y * y,
    "div": lambda y: y / (1 + y * y),
    "neg": lambda y: -y,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu, tanh": lambda y: F.gelu(y, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "leaky relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "exp": lambda y: (y * 0.1).exp(),
    "where": lambda y: torch.where(y > 0, y, y * 0.5),
    "compare": lambda y: (y.ge(0.5) ^ y.lt(-0.5)).to(y.dtype),
    "not equal": lambda y: y.ne(0).to(y.dtype) + y.eq(1),
    "clamp": lambda y: y.clamp(-1, 1),
    "one-hot": lambda y: F.one_hot((y > 0).long(), 2)[..., 1] * y,
    "cast": lambda y: y.to(torch.bfloat16).to(y.dtype),
}


@pytest.mark.parametrize("name", COMPUTES)
def test_EV_19_each_compute_node(name: str) -> None:
    function = COMPUTES[name]

    def program(x: Tensor, w: Tensor) -> Tensor:
        return function(x @ w)

    given = matrices((M, K), (K, N))
    found = report(program, *given)
    checks = [name for name in found.library_calls if name == "aten._assert_async.msg"]
    assert found.kernel_count == 1 and found.library_calls == checks, str(found)
    assert bool(checks) == (name == "one-hot")  # of which PyTorch asserts what its classes are
    torch.testing.assert_close(compiled(program)(*given), program(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu, tanh", "tanh", "sigmoid", "silu"])
def test_EV_19_activations_in_backward(name: str) -> None:
    """What follows the gradient of a product's result into the products that use it."""

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return COMPUTES[name](x @ w).square().sum()

    given = [matrix.requires_grad_() for matrix in matrices((M, K), (K, N))]
    expected = torch.autograd.grad(loss(*(x.double() for x in given)), given)
    found = torch.autograd.grad(compiled(loss)(*given), given)
    for ours, exact in zip(found, expected):
        assert float((ours - exact).norm() / exact.norm()) < 1e-5
    calls = report(loss, *given, backward=True).library_calls
    assert calls == []


def test_EV_20_a_node_with_three_users_is_computed_once() -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = torch.tanh(x @ w)
        return y, y * y, y + 1, (y * 2).exp()

    found = assert_one_kernel(program, *matrices((M, K), (K, N)))
    assert found.kernels[0].ir.count("tanh.f32") == 1


def test_EV_20_one_value_twice_and_results_that_are_used() -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x @ w
        z = y + y
        return y, z, z * y

    found = assert_one_kernel(program, *matrices((M, K), (K, N)))
    assert found.kernels[0].ir.count(" dot.f32 ") == 1


# --- layouts


def figure_11(x: Tensor, w: Tensor, bias: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    moved = ((x @ w).reshape(128, 4, 64) + bias).permute(2, 1, 0)
    total = moved.sum((0, 1))
    return total, torch.relu(moved) * other.permute(2, 1, 0)


def test_EV_21_no_layout_is_left_of_figure_11() -> None:
    given = matrices((128, 32), (32, 256), (4, 64), (128, 4, 64))
    found = assert_one_kernel(figure_11, *given)
    kernel = found.kernels[0]
    assert "permute" not in kernel.ops and "reshape" not in kernel.ops
    assert sorted(kernel.writes.values()) == [128 * 4, 128 * 256 * 4]
    assert sum(kernel.reads.values()) == 4 * (128 * 32 + 32 * 256 + 256 + 128 * 256)


def test_EV_22_a_bias_of_two_axes_becomes_a_row() -> None:
    """(4, 64):(64, 1) is (128, 4, 64):(0, 64, 1) in the epilogue: one row of 256."""

    def program(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return (x @ w).reshape(128, 4, 64) + bias

    given = matrices((128, 32), (32, 256), (4, 64))
    found = assert_one_kernel(program, *given)
    lines = found.kernels[0].ir.splitlines()
    [bias] = [line.split()[1].rstrip(":") for line in lines if "f32[256]" in line]
    loads = [line for line in lines if f"= {bias}[" in line]
    assert loads and all(load.split("[")[1].count("*") == 0 for load in loads)


# --- the paper's unit patterns (artifact and CUTLASS, papers.md D.9)

B, H = 3, 4
UNITS: dict[str, tuple[Program, list[tuple[int, ...]]]] = {
    "mm + bias, gelu, both": (
        lambda x, w, b: (lambda y: (y, F.gelu(y, approximate="tanh")))(x @ w.t() + b),
        [(M, K), (N, K), (N,)],
    ),
    "mm + bias, tanh": (lambda x, w, b: torch.tanh(x @ w + b), [(M, K), (K, N), (N,)]),
    "mm, tanh backward, sums": (
        lambda g, w, y: (lambda d: (d, d.sum(0)))((g @ w) * (1 - y * y)),
        [(M, K), (K, N), (M, N)],
    ),
    "mm, add, add, permute": (
        lambda x, w, a, b: ((x @ w).reshape(4, 9, N) + a + b).permute(1, 0, 2).contiguous(),
        [(36, K), (K, N), (N,), (4, 9, N)],
    ),
    "several adds as outputs": (
        lambda x, w, a, b: (lambda y: (y + a, y + b, y + a + b))(x @ w),
        [(M, K), (K, N), (N,), (M, N)],
    ),
    "mm, sum": (lambda x, w: (x @ w).sum((0, 1)), [(M, K), (K, N)]),
    "mm + bias, relu, mask": (
        lambda x, w, b: (lambda y: (y, (y != 0)))(torch.relu(x @ w + b)),
        [(M, K), (K, N), (N,)],
    ),
    "bmm of permuted operands": (
        lambda a, b: torch.bmm(a.transpose(1, 2), b.transpose(1, 2)) * 2,
        [(B, K, M), (B, N, K)],
    ),
    "bmm, permuted result": (
        lambda a, b: (torch.bmm(a, b) + 1).permute(1, 0, 2).contiguous(),
        [(B, M, K), (B, K, N)],
    ),
    "bmm, permute, view, sum": (
        lambda a, b: torch.bmm(a, b).permute(1, 0, 2).reshape(M, B * N).sum(0) * 0.5,
        [(B, M, K), (B, K, N)],
    ),
    "bmm, scale, mask, both": (
        lambda a, b, mask: (lambda y: (y, y + mask))(
            torch.bmm(a, b).reshape(1, B, M, N) / math.sqrt(K)
        ),
        [(B, M, K), (B, K, N), (1, 1, 1, N)],
    ),
    "softmax, loads and stores": (
        lambda x, row, column: (lambda y: (y, y * row + column, y.sum(0)))(torch.softmax(x, -1)),
        [(M, N), (N,), (M, 1)],
    ),
    "layer norm, affine": (
        lambda x, w, b: F.layer_norm(x, (N,), w, b),
        [(M, N), (N,), (N,)],
    ),
    "softmax backward": (
        lambda g, y: torch.ops.aten._softmax_backward_data(g, y, -1, y.dtype) * 2,
        [(M, N), (M, N)],
    ),
    "mm, row maximum": (lambda x, w: (x @ w).amax(-1), [(M, K), (K, N)]),
    "mm, quantised": (
        lambda x, w, s: (x @ w / s).round().clamp(-128, 127).to(torch.int8),
        [(M, K), (K, N), (N,)],
    ),
    "two products, gated": (
        lambda x, w, v: F.silu(x @ w) * (x @ v),
        [(M, K), (K, N), (K, N)],
    ),
    "mm, residual": (lambda x, w, r: r + (x @ w) * 0.5, [(M, K), (K, N), (M, N)]),
}


@pytest.mark.parametrize("name", UNITS)
def test_EV_23_unit_patterns(name: str) -> None:
    program, shapes = UNITS[name]
    given = matrices(*shapes)
    found = report(program, *given)
    assert (found.kernel_count, found.library_calls) == (1, []), str(found)
    eager = tensors(program(*given))
    for ours, wanted in zip(tensors(compiled(program)(*given)), eager):
        if wanted.dtype is torch.int8:  # a tie in rounding may go either way
            assert int((ours.int() - wanted.int()).abs().max()) <= 1
        else:
            torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)


# --- layers


def attention(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    def heads(w: Tensor) -> Tensor:
        return (x @ w).reshape(B, M, H, 16).transpose(1, 2)

    scores = heads(wq) @ heads(wk).transpose(-1, -2) * 0.25
    merged = (torch.softmax(scores, -1) @ heads(wv)).transpose(1, 2).reshape(B, M, H * 16)
    return merged @ wo


def test_EV_24_heads_are_split_and_merged_without_a_copy() -> None:
    given = matrices((B, M, H * 16), *[(H * 16, H * 16)] * 4)
    found = report(attention, *given)
    assert found.library_calls == []
    assert all(" dot.f32 " in kernel.ir for kernel in found.kernels)
    assert found.kernel_count <= 3
    assert_exact(attention, given)


def test_EV_30_self_attention_is_at_most_five_kernels() -> None:
    def layer(x: Tensor, *weights: Tensor) -> Tensor:
        *inside, wo = weights
        q, k, v = ((x @ w + 0.1).reshape(B, M, H, 16).transpose(1, 2) for w in inside)
        mask = torch.ones(M, M, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2) * 0.25).masked_fill(~mask, -math.inf)
        shares = F.dropout(torch.softmax(scores, -1), 0.1)
        merged = (shares @ v).transpose(1, 2).reshape(B, M, H * 16)
        return F.layer_norm(x + F.dropout(merged @ wo, 0.1), (H * 16,))

    given = matrices((B, M, H * 16), *[(H * 16, H * 16)] * 4)
    found = report(layer, *given)
    assert found.kernel_count <= 5 and found.library_calls == ["hemstitch.draw_seeds"]


MAINLOOPS: dict[str, tuple[Program, list[tuple[int, ...]], int]] = {
    "mm": (lambda x, w, b: F.gelu(x @ w + b), [(M, K), (K, N), (N,)], 0),
    "bmm": (lambda x, w, b: F.gelu(x @ w + b), [(B, M, K), (B, K, N), (N,)], 0),
    "a large mm": (lambda x, w, b: F.gelu(x @ w + b), [(130, 700), (700, 300), (300,)], 0),
    "convolution": (
        lambda x, w, b: F.gelu(F.conv2d(x, w, None, 1, 1) + b),
        [(2, 8, 9, 9), (5, 8, 3, 3), (5, 1, 1)],
        1,
    ),
    "convolution, 1 x 1": (
        lambda x, w, b: F.gelu(F.conv2d(x, w) + b),
        [(2, 8, 9, 9), (5, 8, 1, 1), (5, 1, 1)],
        0,
    ),
}


def channels_last(given: list[Tensor]) -> list[Tensor]:
    """The first, if it is an image."""
    first, *others = given
    is_image = first.dim() == 4
    return [first.contiguous(memory_format=torch.channels_last) if is_image else first, *others]


@pytest.mark.parametrize("name", MAINLOOPS)
def test_EV_26_mainloops_with_epilogues(name: str) -> None:
    """Convolutions with larger windows are the library's, with one kernel behind them."""
    program, shapes, calls = MAINLOOPS[name]
    given = channels_last(matrices(*shapes))
    found = report(program, *given)
    assert (found.kernel_count, len(found.library_calls)) == (1, calls), str(found)
    assert_exact(program, given)


def test_EV_26_gradients_of_convolutions() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        return F.gelu(F.conv2d(F.relu(x), w, None, 1, 1)).square().sum()

    given = [x.requires_grad_() for x in matrices((2, 8, 9, 9), (5, 8, 3, 3))]
    expected = torch.autograd.grad(loss(*(x.double() for x in given)), given)
    for ours, exact in zip(torch.autograd.grad(compiled(loss)(*given), given), expected):
        assert float((ours - exact).norm() / exact.norm()) < 1e-5


def test_EV_26_sparse_products_are_the_librarys() -> None:
    dense = torch.randn(20, 20) * (torch.rand(20, 20) < 0.2)
    sparse, x, b = dense.to_sparse_csr(), torch.randn(20, 7), torch.randn(7)

    def program(x: Tensor, b: Tensor) -> Tensor:
        return F.relu(torch.sparse.mm(sparse, x) + b)

    found = torch.compile(program, backend="hemstitch")(x, b)
    torch.testing.assert_close(found, F.relu(dense @ x + b), rtol=1e-5, atol=1e-5)


def test_EV_27_softmax_with_mask_and_dropout_is_one_kernel() -> None:
    def program(x: Tensor, mask: Tensor) -> Tensor:
        return F.dropout(torch.softmax(x + mask, -1), 0.1)

    found = report(program, *matrices((B, H, M, N), (B, 1, 1, N)))
    assert found.kernel_count == 1 and found.library_calls == ["hemstitch.draw_seeds"]


def test_EV_27_backward_of_layer_norm_and_dropout_is_one_kernel() -> None:
    """The parameters' gradients are sums of columns in it."""

    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.dropout(F.layer_norm(x, (N,), w, b), 0.1)

    given = [x.requires_grad_() for x in matrices((M, N), (N,), (N,))]
    found = report(loss, *given, backward=True)
    backward = [kernel for kernel in found.kernels if kernel.graph == "backward"]
    results = [name for name in backward[0].writes if name.startswith("out")]
    assert len(backward) == 1 and len(results) == 3


def test_EV_28_batch_norm_and_relu_behind_a_convolution_are_one_kernel() -> None:
    """With the library's convolution that makes two launches, as in the paper."""

    def program(x: Tensor, w: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        y = F.conv2d(x, w, None, 1, 1)
        return F.relu(F.batch_norm(y, None, None, gamma, beta, training=True))

    given = channels_last(matrices((4, 8, 9, 9), (6, 8, 3, 3), (6,), (6,)))
    found = report(program, *given)
    assert (found.kernel_count, len(found.library_calls)) == (1, 1), str(found)
    assert_exact(program, given)


def test_EV_32_a_reduction_and_its_reader_behind_a_product() -> None:
    """A block of rows holds whole rows, so layer norm, softmax and RMS norm follow in it."""

    def rms(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    for norm in (lambda y: F.layer_norm(y, (N,)), lambda y: torch.softmax(y, -1), rms):
        assert_one_kernel(lambda x, w, f=norm: f(x @ w), *matrices((M, K), (K, N)))


def test_EV_32_sums_of_columns_and_their_reader_wait_for_all_rows() -> None:
    """What needs all rows of the product is another phase, behind a barrier."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return y - y.mean(0)

    found = report(program, *matrices((512, 64), (64, 96)))
    assert found.library_calls == []
    assert found.kernel_count == 2 or found.kernels[0].barriers >= 1, str(found)
    assert_exact(program, matrices((512, 64), (64, 96)))


# --- what is one kernel whatever the plan


def test_EV_10_what_must_be_fused() -> None:
    """Views and permuted operands have no kernel of their own, random numbers are made where they
    are used."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = F.dropout(x.transpose(0, 1).reshape(M, 2 * K) @ w.t(), 0.5)
        return y.reshape(M * N)

    found = report(program, *matrices((2 * K, M), (N, 2 * K)))
    assert found.kernel_count == 1 and found.library_calls == ["hemstitch.draw_seeds"]
    assert {"dot", "uniform"} <= {*found.kernels[0].ops, *_words(found.kernels[0].ir)}


def _words(text: str) -> set[str]:
    return {word for word in ("uniform",) if f"{word}(" in text}


def test_EV_10_sums_and_statistics_are_no_leaves() -> None:
    """The paper ends a kernel at each; here what reads them follows in it."""

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        mean = x.mean(-1, keepdim=True)
        deviation = (x - mean).square().mean(-1, keepdim=True).rsqrt()
        normed = (x - mean) * deviation * w
        return normed, mean, deviation, normed.sum(0)

    assert_one_kernel(program, *matrices((M, N), (N,)))


@pytest.mark.needs_gpu("capture and replay")
def test_EV_34_a_hundred_calls_are_equal_and_allocate_nothing_new() -> None:
    """Results that nobody holds any more are written to again."""

    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(x @ w + b)

    given = matrices((512, 300), (300, 600), (600,))
    function = compiled(program)
    first = function(*given).clone()
    places = set()
    for _ in range(100):
        result = function(*given)
        assert torch.equal(result, first)
        places.add(result.data_ptr())
    assert len(places) <= 2


def test_EV_31_blockings_are_timed_bare_and_with_the_epilogue(tmp_path: Path) -> None:
    """And remembered: a second process measures nothing, a half type is another key."""
    asked: list[int] = []

    def clock(step: KernelStep, threads: int, blocking: Blocking) -> float:
        asked.append(len(step.groups[0].members))
        return 1.0 / blocking.columns

    def steps(dtype: torch.dtype) -> list[KernelStep]:
        given = matrices((64, 300), (300, 280), (280,), dtype=dtype)
        [(_, found)] = plans_of(lambda x, w, b: F.gelu(x @ w + b), given, MULTIPLYING)
        return list(found.kernels)

    [step] = steps(torch.float32)
    found = Tuner(tmp_path, clock).blocking(step)
    assert found.columns == max(candidate.columns for candidate in UNFUSED)
    assert asked.count(min(asked)) == len(UNFUSED) and max(asked) == len(step.groups[0].members)
    count = len(asked)
    assert Tuner(tmp_path, clock).blocking(step) == found and len(asked) == count
    [half] = steps(torch.bfloat16)
    Tuner(tmp_path, clock).blocking(half)
    assert len(asked) > count
