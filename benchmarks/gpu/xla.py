"""The forward passes of some cases in JAX, for XLA to compile; gone without where JAX is not."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from benchmarks.cases import Arguments
from benchmarks.timing import Function


def is_there() -> bool:
    return importlib.util.find_spec("jax") is not None


def compiled(name: str, arguments: Arguments) -> Function | None:
    """The case on these arguments, whatever it is called with; a call waits for its results. None
    for a case that is not written down here."""
    if name not in CASES or not is_there():
        return None
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax: Any = importlib.import_module("jax")

    def convert(value: object) -> object:
        return jax.dlpack.from_dlpack(value.detach()) if isinstance(value, Tensor) else value

    converted = tree_map(convert, arguments)
    function = jax.jit(lambda *values: CASES[name](jax, *values))

    def call(*_: object) -> object:
        return jax.block_until_ready(function(*converted))

    return call


def _softmax(jax: Any, x: Any) -> Any:
    return jax.nn.softmax(x, -1)


def _masked_softmax(jax: Any, scores: Any, mask: Any) -> Any:
    return jax.nn.softmax(scores * 0.125 + mask, -1)


def _layer_norm(jax: Any, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def _rotary(jax: Any, x: Any, residual: Any, weight: Any, cosine: Any, sine: Any) -> Any:
    hidden = x + residual
    scale = jax.lax.rsqrt((hidden * hidden).mean(-1, keepdims=True) + 1e-6)
    heads = hidden * scale * weight
    heads = heads.reshape(*heads.shape[:-1], -1, cosine.shape[-1]).swapaxes(1, 2)
    left, right = jax.numpy.split(heads, 2, -1)
    return hidden, heads * cosine + jax.numpy.concatenate((-right, left), -1) * sine


def _lstm_cell(jax: Any, gates: Any, cell: Any) -> Any:
    enter, forget, candidate, leave = jax.numpy.split(gates, 4, -1)
    sigmoid, tanh = jax.nn.sigmoid, jax.numpy.tanh
    cell = sigmoid(forget) * cell + sigmoid(enter) * tanh(candidate)
    return sigmoid(leave) * tanh(cell), cell


def _gated_linear_unit(jax: Any, x: Any) -> Any:
    return jax.nn.glu(x, -1)


def _where_mask(jax: Any, mask: Any, x: Any, y: Any) -> Any:
    return jax.numpy.where(mask, x * 1.5, y)


def _sums(jax: Any, x: Any) -> Any:
    return x.sum(1), x.sum(0), x.sum()


def _outer_product(jax: Any, column: Any, row: Any, bias: Any) -> Any:
    return jax.numpy.tanh(column[:, None] * row[None, :] + bias)


def _chain_of_30(jax: Any, x: Any, y: Any) -> Any:
    for step in range(6):
        x = jax.nn.sigmoid(x * 1.01 + y) - 0.1 * step
        x = jax.numpy.maximum(x, y * 0.5)
    return x


def _row_sums(jax: Any, x: Any) -> Any:
    return x.sum(-1)


def _rows_then_columns(jax: Any, x: Any) -> Any:
    centred = x - x.mean(1, keepdims=True)
    return jax.numpy.tanh(centred - centred.mean(0, keepdims=True))


CASES: Mapping[str, Callable[..., Any]] = {
    "scale + mask + softmax": _masked_softmax,
    "layer norm": _layer_norm,
    "residual + RMS norm + rotary": _rotary,
    "LSTM cell, pointwise": _lstm_cell,
    "GLU": _gated_linear_unit,
    "where on a mask": _where_mask,
    "sums: rows, columns, all": _sums,
    "outer product + tanh": _outer_product,
    "chain of 30": _chain_of_30,
    "softmax of short rows": _softmax,
    "softmax of long rows": _softmax,
    "sums of short rows": _row_sums,
    "rows, columns, elementwise": _rows_then_columns,
}
