"""The graph IR back to `torch.fx`. Takes a value of the IR; gives calls of ATen that compute it
from values of a traced graph. Only of what rewrites of the joint graph make: the rest of that graph
stays as PyTorch traced it, and runs so where nothing can be compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as Traced
from torch.utils._pytree import tree_leaves

from hemstitch.capture.fake_calls import call_before
from hemstitch.errors import UnsupportedError
from hemstitch.ir.calls import Call, Operand
from hemstitch.ir.dims import known
from hemstitch.ir.graph import Node, Op, call_of
from hemstitch.ir.types import DType
from hemstitch.rewrites.algebra import constant_value
from hemstitch.runtime.aten_forms import aten_form
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES

aten = torch.ops.aten
Form = Callable[[Node, Traced, list[Traced]], Traced]


class Exporter:
    """`traced`: what has each value in the traced graph. New calls come before a given one."""

    def __init__(self) -> None:
        self.traced: dict[Node, Traced] = {}

    def traced_form(self, node: Node, at: Traced) -> Traced:
        """What computes `node`, before `at`. Raises UnsupportedError for an operation that no
        rewrite of a joint graph makes."""
        if node not in self.traced:
            self.traced[node] = self._call(node, at)
        return self.traced[node]

    def _call(self, node: Node, at: Traced) -> Traced:
        if node.op is Op.RESULT:
            return self._result(node, at)
        form = FORMS.get(node.op)
        if form is None or not all(isinstance(size, int) for size in node.shape):
            raise UnsupportedError(f"{node.op.value} is not exported to torch.fx")
        # Behind the first operand of a pad is what it is filled with.
        tensors = node.inputs[:1] if node.op is Op.PAD else node.inputs
        return form(node, at, [self.traced_form(operand, at) for operand in tensors])

    def _result(self, node: Node, at: Traced) -> Traced:
        call: Call = call_of(node)
        form = aten_form(call)
        operands = [self.traced_form(operand, at) for operand in node.inputs[0].inputs]

        def filled(argument: object) -> object:
            if isinstance(argument, Operand):
                return operands[argument.index]
            if isinstance(argument, tuple):
                return [*map(filled, argument)]
            return argument

        keywords = {name: filled(value) for name, value in form.keywords}
        call_result = call_before(at, form.target, *map(filled, form.arguments), **keywords)
        return (
            call_before(at, operator.getitem, call_result, node.attr)
            if form.is_tuple
            else call_result
        )


def _shape(node: Node) -> list[int]:
    return [*map(known, node.shape)]


def _padded(node: Node, at: Traced, operands: list[Traced]) -> Traced:
    low: Any = node.attr
    x, fill = node.inputs
    sizes = zip(low, map(known, x.shape), _shape(node))
    both = [(before, whole - before - size) for before, size, whole in sizes]
    value = constant_value(fill)
    if value is None:
        raise UnsupportedError("a pad with a computed value is not exported to torch.fx")
    ends = [end for pair in both[::-1] for end in pair]
    return call_before(at, aten.constant_pad_nd.default, *operands, ends, value)


def _sliced(node: Node, at: Traced, operands: list[Traced]) -> Traced:
    [x] = operands
    ranges: Any = node.attr
    for axis, (part, size) in enumerate(zip(ranges, _shape(node))):
        if not isinstance(part.start, int) or part.step < 1:
            raise UnsupportedError("this slice is not exported to torch.fx")
        end = part.start + part.step * (size - 1) + 1
        if (part.start, part.step, end) != (0, 1, node.inputs[0].shape[axis]):
            x = call_before(at, aten.slice.Tensor, x, axis, part.start, end, part.step)
    return x


def _gathered(node: Node, at: Traced, operands: list[Traced]) -> Traced:
    """Indices are inside: they are never negative, and the IR has checked them."""
    source, *indices = operands
    addresses: Any = node.attr
    if any(address.operand is None for address in addresses[: len(indices)]):
        raise UnsupportedError("this gather is not exported to torch.fx")
    places = [indices[a.operand - 1] for a in addresses if a.operand is not None]
    return call_before(at, aten.index.Tensor, source, places)


def _iota(node: Node, at: Traced, _: list[Traced]) -> Traced:
    assert isinstance(node.attr, int)
    shape = _shape(node)
    along = call_before(at, aten.arange.default, shape[node.attr], device=_device(at))
    sizes = [size if axis == node.attr else 1 for axis, size in enumerate(shape)]
    seen = call_before(at, aten.reshape.default, along, sizes)
    return call_before(at, aten.expand.default, seen, shape)


def _constant(node: Node, at: Traced, _: list[Traced]) -> Traced:
    dtype = TORCH_DTYPES[node.type.dtype]
    return call_before(
        at, aten.full.default, _shape(node), node.attr, dtype=dtype, device=_device(at)
    )


def _cast(node: Node, at: Traced, operands: list[Traced]) -> Traced:
    return call_before(at, aten._to_copy.default, *operands, dtype=TORCH_DTYPES[node.type.dtype])


def _negation(node: Node, at: Traced, operands: list[Traced]) -> Traced:
    is_logical = node.type.dtype is DType.BOOL
    return call_before(
        at, aten.logical_not.default if is_logical else aten.bitwise_not.default, *operands
    )


def _device(at: Traced) -> torch.device:
    return next(leaf.device for leaf in tree_leaves(at.meta["val"]) if isinstance(leaf, Tensor))


def _sum(node: Node, at: Traced, operands: list[Traced]) -> Traced:
    """In the type of the elements, where PyTorch would add integers up in 64 bits."""
    dtype = TORCH_DTYPES[node.type.dtype]
    return call_before(at, aten.sum.dim_IntList, *operands, node.attr, dtype=dtype)


def _of_shape(target: Any) -> Form:
    return lambda node, at, operands: call_before(at, target, *operands, _shape(node))


def _of_axes(target: Any) -> Form:
    return lambda node, at, operands: call_before(at, target, *operands, node.attr)


def _elementwise(target: Any) -> Form:
    return lambda node, at, operands: call_before(at, target, *operands)


ELEMENTWISE: Mapping[Op, Any] = {
    Op.NEG: aten.neg.default,
    Op.ABS: aten.abs.default,
    Op.SIGN: aten.sign.default,
    Op.EXP: aten.exp.default,
    Op.EXPM1: aten.expm1.default,
    Op.LOG: aten.log.default,
    Op.LOG1P: aten.log1p.default,
    Op.SQRT: aten.sqrt.default,
    Op.RSQRT: aten.rsqrt.default,
    Op.RECIPROCAL: aten.reciprocal.default,
    Op.SIN: aten.sin.default,
    Op.COS: aten.cos.default,
    Op.TANH: aten.tanh.default,
    Op.SIGMOID: aten.sigmoid.default,
    Op.ERF: aten.erf.default,
    Op.ISNAN: aten.isnan.default,
    Op.ADD: aten.add.Tensor,
    Op.SUB: aten.sub.Tensor,
    Op.MUL: aten.mul.Tensor,
    Op.DIV: aten.div.Tensor,
    Op.POW: aten.pow.Tensor_Tensor,
    Op.MAXIMUM: aten.maximum.default,
    Op.MINIMUM: aten.minimum.default,
    Op.AND: aten.bitwise_and.Tensor,
    Op.OR: aten.bitwise_or.Tensor,
    Op.XOR: aten.bitwise_xor.Tensor,
    Op.EQ: aten.eq.Tensor,
    Op.NE: aten.ne.Tensor,
    Op.LT: aten.lt.Tensor,
    Op.LE: aten.le.Tensor,
    Op.GT: aten.gt.Tensor,
    Op.GE: aten.ge.Tensor,
    Op.WHERE: aten.where.self,
}

FORMS: Mapping[Op, Form] = {
    **{op: _elementwise(target) for op, target in ELEMENTWISE.items()},
    Op.FMA: lambda node, at, operands: call_before(
        at, aten.addcmul.default, operands[2], *operands[:2]
    ),
    Op.NOT: _negation,
    Op.CAST: _cast,
    Op.CONSTANT: _constant,
    Op.IOTA: _iota,
    Op.RESHAPE: _of_shape(aten.reshape.default),
    Op.BROADCAST: _of_shape(aten.expand.default),
    Op.PERMUTE: _of_axes(aten.permute.default),
    Op.SUM: _sum,
    Op.MAX: _of_axes(aten.amax.default),
    Op.MIN: _of_axes(aten.amin.default),
    Op.ANY: _of_axes(aten.any.dims),
    Op.ALL: _of_axes(aten.all.dims),
    Op.CONCAT: lambda node, at, operands: call_before(at, aten.cat.default, operands, node.attr),
    Op.PAD: _padded,
    Op.SLICE: _sliced,
    Op.GATHER: _gathered,
}
