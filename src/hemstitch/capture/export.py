"""The graph IR back to `torch.fx`. Takes a value of the IR; gives calls of ATen that compute it
from values of a traced graph. Only of what rewrites of the joint graph make: the rest of that graph
stays as PyTorch traced it, and runs so where nothing can be compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node as Traced

from hemstitch.capture.fake_calls import call_before
from hemstitch.errors import UnsupportedError
from hemstitch.ir.calls import Call, Operand
from hemstitch.ir.dims import known
from hemstitch.ir.graph import Node, Op, call_of
from hemstitch.rewrites.algebra import constant_value
from hemstitch.runtime.aten_forms import aten_form

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
        made = call_before(at, form.target, *map(filled, form.arguments), **keywords)
        return call_before(at, operator.getitem, made, node.attr) if form.is_tuple else made


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


def _of_shape(target: Any) -> Form:
    return lambda node, at, operands: call_before(at, target, *operands, _shape(node))


def _of_axes(target: Any) -> Form:
    return lambda node, at, operands: call_before(at, target, *operands, node.attr)


FORMS: Mapping[Op, Form] = {
    Op.RESHAPE: _of_shape(aten.reshape.default),
    Op.BROADCAST: _of_shape(aten.expand.default),
    Op.PERMUTE: _of_axes(aten.permute.default),
    Op.SUM: _of_axes(aten.sum.dim_IntList),
    Op.CONCAT: lambda node, at, operands: call_before(at, aten.cat.default, operands, node.attr),
    Op.PAD: _padded,
    Op.SLICE: _sliced,
}
