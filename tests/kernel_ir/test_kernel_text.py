"""Typical programs as kernel IR, in full, for a machine of eight lanes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hemstitch.kernel_ir.printer import show
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of


def text_of(function, *arguments, threads=4, backward=False):
    """All kernels of the program; with `backward` those of its backward pass alone."""
    plans = plans_of(function, arguments, generic_cpu(threads, 8), backward)
    chosen = plans[1:] if backward else plans
    kernels = [step.stitched.kernel for _, plan in chosen for step in plan.kernels]
    return "\n\n".join(show(kernel) for kernel in kernels) + "\n"


def zeros(*shape):
    return torch.zeros(shape)


def learned(*shape):
    return torch.zeros(shape, requires_grad=True)


def test_row_softmax(golden):
    golden(text_of(lambda x: torch.softmax(x, -1), zeros(64, 128)))


def test_few_long_rows_softmax(golden):
    golden(text_of(lambda x: torch.softmax(x, -1), zeros(2, 1 << 20), threads=8))


def test_layer_norm_backward(golden):
    def function(x, weight, bias):
        return F.layer_norm(x, (256,), weight, bias)

    arguments = learned(64, 256), learned(256), learned(256)
    golden(text_of(function, *arguments, backward=True))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=["columns", "rows", "all"])
def test_sum(golden, axes):
    golden(text_of(lambda x: x.sum(axes), zeros(2048, 512)))


def test_batch_norm_training(golden):
    def function(x, weight, bias, mean, variance):
        return F.batch_norm(x, mean, variance, weight, bias, training=True)

    vectors = [zeros(32) for _ in range(4)]
    golden(text_of(function, zeros(8, 32, 14, 14), *vectors))


def test_sum_by_index(golden):
    def function(x, weight, index):
        return x.new_zeros(100, 64).index_add(0, index, x * weight[:, None])

    golden(text_of(function, zeros(300, 64), zeros(300), torch.zeros(300, dtype=torch.int64)))


def test_rotary(golden):
    def function(x, cos, sin):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    golden(text_of(function, zeros(2, 4, 32, 64), zeros(32, 64), zeros(32, 64)))


def test_adamw_of_two_tensors(golden):
    def function(parameters, gradients, means, squares):
        for p, gradient, mean, square in zip(parameters, gradients, means, squares):
            p.mul_(0.99)
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            p.addcdiv_(mean, square.sqrt() + 1e-8, value=-1e-3)

    golden(text_of(function, *([zeros(64, 32), zeros(32)] for _ in range(4))))
