"""Typical programs as Triton source, in full. No Triton needed."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hemstitch.ir.graph import Op
from hemstitch.ir.ops import is_elementwise
from hemstitch.ir.types import DType
from hemstitch.targets.gpu.description import generic_gpu
from hemstitch.targets.gpu.elementwise import TABLES
from tests.compiled import plans_of
from tests.lowered import triton

PROGRAMS = 528  # that an H200 runs at once


def text_of(function, *arguments, backward=False):
    """All kernels of the program; with `backward` those of its backward pass alone."""
    plans = plans_of(function, arguments, generic_gpu(), backward)
    chosen = plans[1:] if backward else plans
    kernels = [
        triton(step.stitched.kernel, step.groups[0].hint, PROGRAMS).text
        for _, plan in chosen
        for step in plan.kernels
    ]
    return "\n\n".join(kernels)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def test_row_softmax(golden):
    golden(text_of(lambda x: torch.softmax(x, -1), zeros(8192, 100, dtype=torch.bfloat16)))


def test_softmax_of_a_few_long_rows(golden):
    golden(text_of(lambda x: torch.softmax(x, -1), zeros(2, 1 << 20)))


def test_layer_norm_backward(golden):
    arguments = [zeros(*shape).requires_grad_() for shape in ((8192, 1024), (1024,), (1024,))]

    def function(x, weight, bias):
        return F.layer_norm(x, (1024,), weight, bias)

    golden(text_of(function, *arguments, backward=True))


def test_sum_by_index(golden):
    def function(x, weight, index):
        return x.new_zeros(1000, 64).index_add(0, index, x * weight[:, None])

    golden(text_of(function, zeros(9000, 64), zeros(9000), zeros(9000, dtype=torch.int64)))


def test_rows_longer_than_a_tile(golden):
    golden(text_of(lambda x: x / x.sum(1, keepdim=True), zeros(4096, 50_000)))


def test_attention_over_rows_that_are_walked_once(golden):
    def function(q, k, v, mask):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.125 + mask, -1) @ v

    tensors = [zeros(2, 12, 1000, 64, dtype=torch.bfloat16) for _ in range(3)]
    golden(text_of(function, *tensors, zeros(2, 1, 1, 1000, dtype=torch.bfloat16)))


def test_dropout_and_argmax(golden):
    def function(x):
        return F.dropout(x, 0.1), x.argmax(1)

    golden(text_of(function, zeros(4096, 1024)))


def test_sums_of_rows_and_of_columns(golden):
    golden(text_of(lambda x: (x.sum(0), x.sum(1)), zeros(4096, 512)))


def test_every_elementwise_op_has_a_text():
    """In f32, f64, and for what integers and bools can do."""
    ops = {op for op in Op if is_elementwise(op)} - {Op.CAST, Op.CHECK}
    assert ops - {Op.NOT, Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHR} <= TABLES[DType.F32].keys()
    assert TABLES[DType.F64].keys() == TABLES[DType.F32].keys()
    for dtype in (DType.I64, DType.BOOL):
        assert {Op.NOT, Op.AND, Op.OR, Op.XOR, Op.WHERE, Op.EQ} <= TABLES[dtype].keys() <= ops


def test_tensors_of_one_shape_are_one_function(golden):
    def function(a, b, c, d, other):
        for tensor in (a, b, c, d, other):
            tensor.mul_(2.0).sub_(1.0)

    golden(text_of(function, *[zeros(3000) for _ in range(4)], zeros(50, 70)))
