"""How many kernels typical programs become, what they move, and that their numbers are right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import cases
from hemstitch.report.explain import explain

OPTIONS = {"strict": True, "check": True}
TOLERANCE = 1e-5  # of the largest element


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape) * 31 + len(shape))
    return torch.randn(*shape, generator=generator)


def learned(*shape, seed=0):
    return random(*shape, seed=seed).requires_grad_()


def leaves(value):
    found = torch.utils._pytree.tree_leaves(value)
    return [x.detach() for x in found if isinstance(x, torch.Tensor)]


def wide(value):
    """A copy, with float64 in place of float32."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone()
        copy = copy.double() if copy.dtype is torch.float32 else copy
        return copy.requires_grad_(value.requires_grad)
    return type(value)(map(wide, value)) if isinstance(value, (list, tuple)) else value


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return type(value)(map(copied, value)) if isinstance(value, (list, tuple)) else value


def assert_near(found, expected):
    for new, old in zip(leaves(found), leaves(expected), strict=True):
        assert new.shape == old.shape
        if old.numel():
            scale = max(1.0, float(old.abs().max()))
            assert float((new.double() - old.double()).abs().max()) <= TOLERANCE * scale


def check_numbers(function, arguments, backward=False):
    """Against the same program in float64: results, gradients, and what became of arguments."""
    given, exact = copied(arguments), wide(arguments)
    torch._dynamo.reset()
    found = torch.compile(function, backend="hemstitch", options=OPTIONS)(*given)
    expected = function(*exact)
    assert_near(found, expected)
    if backward:
        found.sum().backward()
        expected.sum().backward()
        assert_near([x.grad for x in given], [x.grad for x in exact])
    assert_near(given, exact)


def faked(arguments):
    """As large as they say, and not there: what is only counted need not run."""
    mode = FakeTensorMode()

    def fake(x):
        return mode.from_tensor(x) if isinstance(x, torch.Tensor) else x

    return torch.utils._pytree.tree_map(fake, arguments)


def kernels(function, *arguments, backward=False):
    report = explain(function, *faked(arguments), backward=backward, options=OPTIONS)
    return report.kernels


def softmax(x, mask):
    return torch.softmax(x * 0.125 + mask, -1)


def test_softmax_with_scale_and_mask():
    arguments = random(8, 12, 128, 128), random(8, 1, 1, 128)
    assert len(kernels(softmax, *arguments)) == 1
    check_numbers(softmax, arguments)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def test_layer_norm_reads_everything_once():
    arguments = random(128, 1024), random(1024), random(1024, seed=1)
    (kernel,) = kernels(layer_norm, *arguments)
    assert kernel.bytes_read == 4 * (128 * 1024 + 2 * 1024)
    assert kernel.bytes_written == 4 * 128 * 1024
    check_numbers(layer_norm, arguments)


def test_layer_norm_backward():
    arguments = learned(128, 1024), learned(1024), learned(1024, seed=1)
    found = kernels(layer_norm, *arguments, backward=True)
    assert [kernel.graph for kernel in found] == ["forward", "backward"]
    check_numbers(layer_norm, arguments, backward=True)


def block_end(x, bias, residual, weight, shift, p=0.1):
    hidden = F.dropout(F.gelu(x + bias), p) + residual
    return F.layer_norm(hidden, (1024,), weight, shift)


def test_bias_gelu_dropout_residual_layer_norm():
    arguments = (
        *(random(512, 1024), random(1024), random(512, 1024, seed=1)),
        *(random(1024, seed=2), random(1024, seed=3)),
    )
    assert len(kernels(block_end, *arguments)) == 1

    def without_chance(*arguments):
        return block_end(*arguments, p=0.0)

    check_numbers(without_chance, arguments)


def cross_entropy(x, target):
    return F.cross_entropy(x, target, label_smoothing=0.1)


def test_cross_entropy_with_label_smoothing():
    arguments = random(512, 1000), torch.arange(512) * 7 % 1000
    assert len(kernels(cross_entropy, *arguments)) == 1
    check_numbers(cross_entropy, arguments)


def rotated_norm(x, residual, weight, cos, sin):
    hidden = x + residual
    scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
    heads = (hidden * scale * weight).view(4, 128, 12, 64).transpose(1, 2)
    first, second = heads.chunk(2, -1)
    return hidden, heads * cos + torch.cat([-second, first], -1) * sin


def test_rms_norm_residual_rotary():
    arguments = (
        *(random(4, 128, 768), random(4, 128, 768, seed=1), random(768)),
        *(random(128, 64), random(128, 64, seed=1)),
    )
    assert len(kernels(rotated_norm, *arguments)) <= 2
    check_numbers(rotated_norm, arguments)


def batch_norm(x, weight, bias, mean, variance):
    return F.batch_norm(x, mean, variance, weight, bias, training=True)


def test_batch_norm_training():
    arguments = (
        *(random(16, 64, 28, 28), random(64), random(64, seed=1)),
        *(random(64, seed=2), random(64, seed=3).abs()),
    )
    assert len(kernels(batch_norm, *arguments)) == 1
    check_numbers(batch_norm, arguments)


def cell(gates, state):
    enter, forget, new, leave = gates.chunk(4, 1)
    state = forget.sigmoid() * state + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * state.tanh(), state


def test_pointwise_part_of_an_lstm_cell():
    arguments = random(256, 4096), random(256, 1024)
    assert len(kernels(cell, *arguments)) == 1
    check_numbers(cell, arguments)


SHAPES = (
    *((96, 96), (96,), (384, 96), (384,), (96, 384), (16, 96), (2, 96)),
    *((125, 8), (17,)),
)


def adamw(parameters, gradients, means, squares, step):
    for p, gradient, mean, square in zip(parameters, gradients, means, squares):
        p.mul_(1 - 1e-3 * 0.01)
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (square / (1 - 0.999**step)).sqrt() + 1e-8
        p.addcdiv_(mean / (1 - 0.9**step), root, value=-1e-3)


def test_adamw_over_many_tensors():
    def arguments(count):
        def tensors(seed):
            return [random(*SHAPES[k % 9], seed=seed + k) for k in range(count)]

        return tensors(0), tensors(100), tensors(200), [x.abs() for x in tensors(300)], 3

    assert len(kernels(adamw, *arguments(30))) <= 2
    check_numbers(adamw, arguments(9))


def test_pytorchs_own_adamw():
    """Its step counters are tensors that every row reads and the kernel replaces."""

    def arguments(count):
        shapes = [SHAPES[k % 9] for k in range(count)]
        weights, gradients = ([random(*shape, seed=seed) for shape in shapes] for seed in (0, 90))
        means = [torch.zeros(shape) for shape in shapes]
        squares = [torch.rand(shape) for shape in shapes]
        return weights, gradients, means, squares, [torch.ones(()) for _ in shapes]

    assert len(kernels(cases.adamw, *arguments(30))) <= 2
    check_numbers(cases.adamw, arguments(9))


def rows_then_columns(x):
    rows = x / x.exp().sum(1, keepdim=True)
    return (rows - rows.sum(0)) * 2


def test_row_reduction_column_reduction_elementwise():
    arguments = (random(1024, 512),)
    assert len(kernels(rows_then_columns, *arguments)) <= 2
    check_numbers(rows_then_columns, arguments)


def steps(x):
    hidden = x[:, 0]
    for step in range(1, x.shape[1]):
        hidden = (hidden + x[:, step]).tanh()
    return hidden


def test_gradients_of_steps_lie_side_by_side():
    """Not a sum of as many paddings as there are steps, which every element would have to test."""
    arguments = (learned(16, 9, 32),)
    report = explain(steps, *copied(arguments), options=OPTIONS, backward=True)
    assert not any(" if " in kernel.ir for kernel in report.kernels)
    assert report.bytes_read + report.bytes_written < 9 * random(16, 9, 32).nbytes
    check_numbers(steps, arguments, backward=True)
