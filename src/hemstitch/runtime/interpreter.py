"""The interpreter of the graph IR: evaluates nodes one by one with torch. It is the reference for
compiled code, and the library form of a kernel that could not be built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

import numpy as np
import torch

from hemstitch.ir import dims
from hemstitch.ir.calls import Call, LibraryCall, Operand
from hemstitch.ir.dims import SymbolicDim
from hemstitch.ir.elementwise import ELEMENTWISE
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import CALLED, Graph, Node, Op
from hemstitch.ir.layout import overlaps
from hemstitch.ir.philox import philox_reference
from hemstitch.ir.types import DType
from hemstitch.runtime.aten_forms import aten_form
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES

Tensor = torch.Tensor
Argument = Union[torch.Tensor, int]


def run(
    graph: Graph,
    arguments: Sequence[Argument],
    *,
    precise: bool = False,
    device: torch.device | None = None,
    rules: Mapping[Op, Rule] | None = None,
) -> list[Tensor]:
    """The values of `graph.outputs`; arguments are not written to.

    With `precise`, float64 replaces every floating-point type. `device`: of constants; by default
    the arguments'. `rules`: replace `RULES`.
    """
    symbols = bind_symbols(graph, arguments)
    known = {node: arguments[_position(node)] for node in graph.inputs}
    if precise:
        known = {node: _widened(value) for node, value in known.items()}
    in_order = (*graph.effects, *graph.roots)  # effects in the order of the program
    values = _evaluate(in_order, known, symbols, precise, device, rules or RULES)
    return [values[output.value] for output in graph.outputs]


def evaluate(
    nodes: Sequence[Node], known: Mapping[Node, Tensor], symbols: Mapping[str, int]
) -> dict[Node, Tensor]:
    """The values of `nodes` in their element types, from the values in `known`."""
    values = _evaluate(nodes, known, symbols, False, None, RULES)
    return {node: values[node] for node in nodes}


def bind_symbols(graph: Graph, arguments: Sequence[Argument]) -> dict[str, int]:
    """The value of each symbol of `graph` in a call with `arguments`."""
    return {
        name: _symbol_value(arguments[position], axis)
        for name, (position, axis) in graph.symbols.items()
    }


def call_library(
    call: Call, operands: Sequence[Tensor], symbols: Mapping[str, int]
) -> tuple[Any, ...]:
    """Run the call on operands with the strides of the trace; one entry for each result."""
    call = aten_form(call)
    strided = [
        operand if strides is None else with_strides(operand, _sizes(strides, symbols))
        for operand, strides in zip(operands, call.operand_strides)
    ]
    target: Any = call.target
    arguments = [_substitute(argument, strided, symbols) for argument in call.arguments]
    keywords = {key: _substitute(value, strided, symbols) for key, value in call.keywords}
    result = target(*arguments, **keywords)
    return tuple(result) if call.is_tuple else (result,)


def with_strides(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """`tensor` if it has these strides in all axes longer than 1, else a copy with them."""
    if all(
        size == 1 or have == want
        for size, have, want in zip(tensor.shape, tensor.stride(), strides)
    ):
        return tensor
    repeated = [size > 1 and step == 0 for size, step in zip(tensor.shape, strides)]
    distinct = tensor[tuple(slice(0, 1) if same else slice(None) for same in repeated)]
    if overlaps(tuple(distinct.shape), tuple(strides), {}):
        return tensor.contiguous()
    copy = torch.empty_strided(
        distinct.shape, tuple(strides), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(distinct).expand(tensor.shape)


@dataclass(frozen=True, slots=True)
class _Machine:
    """The context of a rule, besides its operands."""

    symbols: Mapping[str, int]
    device: torch.device
    precise: bool

    def dtype(self, dtype: DType) -> torch.dtype:
        return torch.float64 if self.precise and dtype.is_float else TORCH_DTYPES[dtype]

    def shape(self, node: Node) -> tuple[int, ...]:
        return _sizes(node.shape, self.symbols)

    def size(self, size: dims.Dim) -> int:
        return dims.evaluate(size, self.symbols)


Rule = Callable[[_Machine, Node, Sequence[Any]], Any]


def _evaluate(
    nodes: Sequence[Node],
    known: Mapping[Node, Argument],
    symbols: Mapping[str, int],
    precise: bool,
    device: torch.device | None,
    rules: Mapping[Op, Rule],
) -> dict[Node, Any]:
    machine = _Machine(symbols, device or _device(known.values()), precise)
    values: dict[Node, Any] = dict(known)
    for node in _missing(nodes, known):
        values[node] = rules[node.op](machine, node, [values[operand] for operand in node.inputs])
    return values


def _missing(nodes: Sequence[Node], known: Mapping[Node, object]) -> list[Node]:
    """The nodes to evaluate for `nodes`, in topological order; `known` and above are left out."""
    order: dict[Node, None] = {}
    stack = [(node, False) for node in reversed(nodes)]
    while stack:
        node, inputs_done = stack.pop()
        if node in order or node in known:
            continue
        if inputs_done:
            order[node] = None
        else:
            stack.append((node, True))
            stack.extend((operand, False) for operand in reversed(node.inputs))
    return list(order)


def _device(values: Any) -> torch.device:
    """The GPU, if any argument is on one, else the processor."""
    devices = (value.device for value in values if isinstance(value, Tensor))
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _position(node: Node) -> int:
    attr: Any = node.attr
    position: int = attr.position
    return position


def _symbol_value(argument: Argument, axis: int | None) -> int:
    return int(argument) if axis is None else int(argument.shape[axis])  # type: ignore[union-attr]


def _sizes(sizes: Sequence[dims.Dim], symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(dims.evaluate(size, symbols) for size in sizes)


def _widened(value: Any) -> Any:
    """Floating-point tensors as float64; anything else as it is."""
    if isinstance(value, Tensor) and value.dtype in _FLOATS:
        return value.to(torch.float64)
    return value


# --- sources


def _input(machine: _Machine, node: Node, _: Sequence[Tensor]) -> Tensor:
    raise KeyError(f"no value was given for the graph input {node.attr}")


def _constant(machine: _Machine, node: Node, _: Sequence[Tensor]) -> Tensor:
    value: Any = node.attr
    dtype = machine.dtype(node.type.dtype)
    return torch.full(machine.shape(node), value, dtype=dtype, device=machine.device)


def _size(machine: _Machine, node: Node, _: Sequence[Tensor]) -> Tensor:
    size: Any = node.attr
    return torch.tensor(machine.size(size), dtype=torch.int64, device=machine.device)


def _iota(machine: _Machine, node: Node, _: Sequence[Tensor]) -> Tensor:
    axis: Any = node.attr
    return _index_along(axis, machine.shape(node), machine.device)


def _philox(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    shape = machine.shape(node)
    uniform = philox_reference(int(operands[0]), np.arange(math.prod(shape), dtype=np.int64))
    return torch.from_numpy(uniform).reshape(shape).to(machine.device, machine.dtype(DType.F32))


def _index_along(axis: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    index = torch.arange(shape[axis], device=device)
    return index.reshape([-1 if a == axis else 1 for a in range(len(shape))]).expand(shape)


# --- elementwise


def _elementwise(function: Callable[..., Tensor]) -> Rule:
    def rule(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
        return function(*map(_compute_form, operands)).to(machine.dtype(node.type.dtype))

    return rule


def _compute_form(operand: Tensor) -> Tensor:
    return operand.float() if operand.dtype in (torch.float16, torch.bfloat16) else operand


def _identity(x: Tensor) -> Tensor:
    return x


def _integer_safe(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Integer remainders: 0 for a divisor of 0, and no trap for the smallest integer by -1."""

    def safe(x: Tensor, y: Tensor) -> Tensor:
        return function(x, y if y.is_floating_point() else _nonzero_divisor(y))

    return safe


def _division(rounding_mode: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Rounded division. Of integers it is 0 for a divisor of 0, and wraps for -1."""

    def divide(x: Tensor, y: Tensor) -> Tensor:
        if y.is_floating_point():
            return torch.div(x, y, rounding_mode=rounding_mode)
        whole = torch.div(x, _nonzero_divisor(y), rounding_mode=rounding_mode)
        return torch.where(y == 0, 0, torch.where(_is_minus_one(y), -x, whole))

    return divide


def _nonzero_divisor(divisor: Tensor) -> Tensor:
    return torch.where((divisor == 0) | _is_minus_one(divisor), 1, divisor)


def _is_minus_one(x: Tensor) -> Tensor:
    """False for unsigned types, where torch takes -1 for the largest number."""
    return (x < 0) & (x == -1)


# --- views


def _broadcast(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    return operands[0].expand(machine.shape(node))


def _reshape(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    return operands[0].reshape(machine.shape(node))


def _permute(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    order: Any = node.attr
    return operands[0].permute(order)


def _unfold(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    (x,) = operands
    windows: Any = node.attr
    unfolded = x.unfold(windows.axis, windows.size, windows.step)
    return unfolded.narrow(windows.axis, 0, machine.shape(node)[windows.axis])


def _slice(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    (x,) = operands
    ranges: Any = node.attr
    for axis, (part, length) in enumerate(zip(ranges, machine.shape(node))):
        start = machine.size(part.start)
        last = start + part.step * (length - 1)
        if length == 0:
            x = x.narrow(axis, 0, 0)
            continue
        low, high = min(start, last), max(start, last)
        x = x[(slice(None),) * axis + (slice(low, high + 1, abs(part.step) or 1),)]
        if part.step < 0:
            x = x.flip(axis)
    return x


def _pad(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    x, fill = operands
    low: Any = node.attr
    result = fill.expand(machine.shape(node)).clone()
    result[tuple(slice(start, start + size) for start, size in zip(low, x.shape))] = x
    return result


def _concat(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    axis: Any = node.attr
    return torch.cat(list(operands), axis)


def _gather(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    source, shape = operands[0], machine.shape(node)
    return source[_places(node, operands, shape, source.shape)].expand(shape)


def _scatter_add(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    value, shape = _compute_form(operands[0]), machine.shape(node)
    places = _places(node, operands, tuple(value.shape), shape)
    sums = value.new_zeros(shape).index_put(places, value, accumulate=True) if shape else value
    return sums.to(machine.dtype(node.type.dtype))


def _places(
    node: Node, operands: Sequence[Tensor], loop_shape: tuple[int, ...], addressed: Sequence[int]
) -> tuple[Tensor, ...]:
    """The indices into each axis of `addressed` for a loop over the shape `loop_shape`."""
    addresses: Any = node.attr
    indices = tuple(
        _index_along(address.axis, loop_shape, operands[0].device)
        if address.operand is None
        else operands[address.operand].long()
        for address in addresses
    )
    for address, along, size in zip(addresses, indices, addressed):
        if bool(((along < 0) | (along >= size)).any()):
            raise address.failure.exception()
    return indices


def _check(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    condition, x = operands
    assert isinstance(node.attr, Failure)
    if not bool(condition.all()):
        raise node.attr.exception()
    return x


# --- reductions


def _reduction(function: Callable[..., Tensor]) -> Rule:
    """`function(x, dim)` over the reduced axes, collapsed into one last axis."""

    def rule(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
        x = _compute_form(operands[0])
        axes: Any = node.attr
        remaining = [axis for axis in range(x.dim()) if axis not in axes]
        length = math.prod(x.shape[axis] for axis in axes)
        flat = x.permute((*remaining, *axes)).reshape(
            *(x.shape[axis] for axis in remaining), length
        )
        return function(flat, -1).to(machine.dtype(node.type.dtype))

    return rule


def _sum(x: Tensor, dim: int) -> Tensor:
    return torch.sum(x, dim, dtype=x.dtype)


def _prod(x: Tensor, dim: int) -> Tensor:
    return torch.prod(x, dim, dtype=x.dtype)


def _extreme(function: Callable[..., Tensor], identity: str) -> Callable[..., Tensor]:
    """Of no elements it is the identity: the `identity` limit ("min" or "max") of the type."""

    def rule(x: Tensor, dim: int) -> Tensor:
        if x.shape[dim]:
            return function(x, dim)
        if x.is_floating_point():
            value = math.inf if identity == "max" else -math.inf
        else:
            value = getattr(torch.iinfo(x.dtype), identity)
        return x.new_full(x.shape[:dim], value)

    return rule


def _arg(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(x: Tensor, dim: int) -> Tensor:
        return function(x.to(torch.uint8) if x.dtype is torch.bool else x, dim)

    return rule


def _scan(function: Callable[..., Tensor]) -> Rule:
    def rule(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
        x = _compute_form(operands[0])
        return function(x, node.attr, dtype=x.dtype).to(machine.dtype(node.type.dtype))

    return rule


# --- library


def _dot(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> Tensor:
    dtype = machine.dtype(node.type.dtype)
    a, b = (operand.to(dtype) for operand in operands)
    return torch.matmul(a, b)


def _library(machine: _Machine, node: Node, operands: Sequence[Tensor]) -> tuple[Any, ...]:
    call: Any = node.attr
    if not machine.precise:
        return call_library(call, operands, machine.symbols)
    results = call_library(_in_float64(aten_form(call)), operands, machine.symbols)
    return tuple(map(_widened, results))


def _result(machine: _Machine, node: Node, operands: Sequence[Any]) -> Tensor:
    index: Any = node.attr
    value: Tensor = operands[0][index]
    return value


def _in_float64(call: LibraryCall) -> LibraryCall:
    """The call with float64 for every floating-point dtype among its arguments."""
    return replace(
        call,
        arguments=tuple(_widened_dtype(argument) for argument in call.arguments),
        keywords=tuple((key, _widened_dtype(value)) for key, value in call.keywords),
    )


def _widened_dtype(argument: object) -> object:
    return torch.float64 if argument in _FLOATS else argument


def _substitute(argument: object, operands: Sequence[Tensor], symbols: Mapping[str, int]) -> object:
    match argument:
        case Operand(index):
            return operands[index]
        case SymbolicDim():
            return dims.evaluate(argument, symbols)
        case tuple():
            return [_substitute(part, operands, symbols) for part in argument]
        case _:
            return argument


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Elementwise operations that torch names otherwise, or that it has no function for.
_TORCH: Mapping[Op, Callable[..., Tensor]] = {
    Op.NOT: torch.bitwise_not,
    Op.FLOORDIV: _division("floor"),
    Op.TRUNCDIV: _division("trunc"),
    Op.FMOD: _integer_safe(torch.fmod),
    Op.REMAINDER: _integer_safe(torch.remainder),
    Op.AND: torch.bitwise_and,
    Op.OR: torch.bitwise_or,
    Op.XOR: torch.bitwise_xor,
    Op.SHL: torch.bitwise_left_shift,
    Op.SHR: torch.bitwise_right_shift,
    Op.FMA: lambda x, y, z: torch.addcmul(z, x, y),
}

RULES: dict[Op, Rule] = {
    Op.INPUT: _input,
    Op.CONSTANT: _constant,
    Op.SIZE: _size,
    Op.IOTA: _iota,
    Op.PHILOX: _philox,
    **{op: _elementwise(_TORCH.get(op) or getattr(torch, op.value)) for op in ELEMENTWISE},
    Op.CAST: _elementwise(_identity),
    Op.WHERE: _elementwise(torch.where),
    Op.CHECK: _check,
    Op.BROADCAST: _broadcast,
    Op.RESHAPE: _reshape,
    Op.PERMUTE: _permute,
    Op.SLICE: _slice,
    Op.PAD: _pad,
    Op.CONCAT: _concat,
    Op.UNFOLD: _unfold,
    Op.GATHER: _gather,
    Op.SCATTER_ADD: _scatter_add,
    Op.SUM: _reduction(_sum),
    Op.PROD: _reduction(_prod),
    Op.MAX: _reduction(_extreme(torch.amax, "min")),
    Op.MIN: _reduction(_extreme(torch.amin, "max")),
    Op.ANY: _reduction(torch.any),
    Op.ALL: _reduction(torch.all),
    Op.ARGMAX: _reduction(_arg(torch.argmax)),
    Op.ARGMIN: _reduction(_arg(torch.argmin)),
    Op.CUMSUM: _scan(torch.cumsum),
    Op.CUMPROD: _scan(torch.cumprod),
    Op.DOT: _dot,
    **dict.fromkeys((*CALLED.values(), Op.LIBRARY), _library),
    Op.RESULT: _result,
}
