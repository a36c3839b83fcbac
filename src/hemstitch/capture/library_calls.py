"""Ops that stay whole: an fx node to a call with its operands and results as traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree

from hemstitch.capture.collectives import is_collective, is_under_way
from hemstitch.capture.effects import has_effects
from hemstitch.capture.expressions import Expr
from hemstitch.capture.runtime_assertions import Promised
from hemstitch.capture.structured_calls import structured
from hemstitch.capture.symbolic_sizes import Sizes
from hemstitch.errors import UnsupportedError
from hemstitch.ir.builder import NOTHING
from hemstitch.ir.calls import Call, LibraryCall, Operand
from hemstitch.ir.dims import Dim, SymbolicDim, without_floors
from hemstitch.ir.graph import Node, op_of_call
from hemstitch.ir.types import DType, TensorType
from hemstitch.runtime.torch_dtypes import from_torch

aten = torch.ops.aten
REPLACING = frozenset(
    (
        *("index_put", "index_copy", "index_add", "index_fill", "index_reduce", "put"),
        *("scatter", "scatter_add", "scatter_reduce", "masked_scatter", "as_strided_scatter_from"),
    )
)
KNOWN = ("aten", "prims", "hemstitch")  # namespaces of operations
Environment = Mapping[torch.fx.Node, Any]
WITHIN = "hemstitch within"  # in a node's meta: what is wanted of it, see `Within`


@dataclass(frozen=True, slots=True)
class Structured:
    """Calls `target` with the structure of arguments it was traced with, from a flat list.

    `numbers`: the leaves that are tensors here but Python numbers to `target`.
    """

    target: Any
    structure: Any
    numbers: frozenset[int]

    def __call__(self, *leaves: Any) -> Any:
        plain = [
            leaf.item() if index in self.numbers else leaf for index, leaf in enumerate(leaves)
        ]
        arguments, keywords = pytree.tree_unflatten(plain, self.structure)
        return self.target(*arguments, **keywords)


def tensor_type(tensor: torch.Tensor, sizes: Sizes, device: torch.device) -> TensorType:
    """OPAQUE for anything but plain strided tensors of a type that the IR computes with, on the
    device that kernels run on."""
    strided = tensor.layout is torch.strided and not tensor.is_quantized
    plain = strided and tensor.device == device and not tensor.is_neg()
    dtype = from_torch(tensor.dtype) if plain else DType.OPAQUE
    return TensorType(sizes.dims(tensor.shape), dtype)


def strides_of(tensor: torch.Tensor, sizes: Sizes) -> tuple[Dim, ...]:
    """Those of a dense tensor in plain sizes: where PyTorch has `max(1, size)`, in case the tensor
    is empty, with the size."""
    if tensor.layout is not torch.strided:
        return ()
    shape = sizes.dims(tensor.shape)
    return tuple(without_floors(step, shape) for step in sizes.dims(tensor.stride()))


def holds_operands(target: object) -> bool:
    """Whether somebody may look into the operands' memory after the call: its results, or a
    collective that is under way. A schema says so of views, except of the ops called unsafe, which
    are views that promise not to be written to, unless it is their indices that are unsafe."""
    if isinstance(target, OpOverload):
        name = target._schema.name
        is_view = target.is_view or ("unsafe" in name and "index" not in name)
        return is_view or is_collective(target)
    return isinstance(target, HigherOrderOperator)


def may_keep_operands(target: object) -> bool:
    """Whether it runs code of which nothing is known: a custom operation may be a logger."""
    return isinstance(target, OpOverload) and target.namespace not in KNOWN


def in_place_form(target: object) -> OpOverload | None:
    """What replaces elements of its first argument where `target` gives a copy of it with these
    elements replaced, or added to: caches of keys and values that models generate with, sums by
    index."""
    if not isinstance(target, OpOverload) or target.namespace not in KNOWN:
        return None
    name = target.overloadpacket.__name__
    if name not in REPLACING:
        return None
    twin = getattr(getattr(torch.ops, target.namespace), f"{name}_")
    return getattr(twin, target._overloadname, None)


def make_library(
    node: torch.fx.Node, environment: Environment, sizes: Sizes, device: torch.device
) -> tuple[Any, Node]:
    """What the fx node gives (a Value, a size, None, or a tuple of those), and the call."""
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs), is_leaf=_is_slice)
    operands = list(dict.fromkeys(leaf for leaf in leaves if _is_operand(leaf, environment)))
    flat = [_argument(leaf, operands, environment) for leaf in leaves]
    numbers = frozenset(
        index
        for index, leaf in enumerate(leaves)
        if leaf in operands and environment[leaf].is_number
    )
    target: Any = node.target
    keywords: dict[str, Any] = {}
    if numbers or isinstance(target, HigherOrderOperator):
        target, arguments = Structured(target, structure, numbers), tuple(flat)
    else:
        arguments, keywords = _as_tuples(pytree.tree_unflatten(flat, structure))
    traced = node.meta.get("val")
    is_tuple = isinstance(traced, (tuple, list))
    parts: Any = traced if is_tuple else (traced,)
    results = tuple(_result_type(part, sizes, device, is_under_way(node)) for part in parts)
    if node.meta.get("unbacked_bindings"):
        target, arguments = _promised(node, target, arguments, results)
    call = LibraryCall(
        name=str(node.target),
        target=target,
        arguments=arguments,
        keywords=tuple(keywords.items()),
        operand_strides=tuple(_operand_strides(operand, sizes) for operand in operands),
        results=results,
        is_tuple=is_tuple,
        effects=has_effects(node),
        holds_operands=holds_operands(node.target),
        may_keep_operands=may_keep_operands(node.target),
        in_place=in_place_form(target),
    )
    inputs = [environment[operand].node for operand in operands]
    described = structured(call, [x.type for x in inputs], node.meta.get(WITHIN))
    if described is None:
        return _made(sizes, call, inputs, parts, is_tuple)
    structured_call, places = described
    return _made(sizes, structured_call, [inputs[place] for place in places], parts, is_tuple)


def _made(
    sizes: Sizes, call: Call, inputs: Sequence[Node], parts: Sequence[Any], is_tuple: bool
) -> tuple[Any, Node]:
    values = tuple(
        _plain(part, sizes) if result is None else Expr(sizes.builder, result)
        for result, part in zip(sizes.builder.call(call, inputs), parts)
    )
    node = sizes.builder.make(op_of_call(call), *inputs, attr=call, type=NOTHING)
    return (values if is_tuple else values[0]), node


def call_of_numbers(
    name: str, function: Any, values: Sequence[Any]
) -> tuple[LibraryCall, tuple[Node, ...]]:
    """A call with effects of a function of Python numbers, and its operands. `values`: those in
    tensors, sizes or constants."""
    operands = list(dict.fromkeys(value.node for value in values if isinstance(value, Expr)))
    flat = [Operand(operands.index(v.node)) if isinstance(v, Expr) else v for v in values]
    numbers = frozenset(place for place, v in enumerate(values) if isinstance(v, Expr))
    _, structure = pytree.tree_flatten((tuple(values), {}), is_leaf=_is_value)
    call = LibraryCall(
        name=name,
        target=Structured(function, structure, numbers),
        arguments=tuple(flat),
        keywords=(),
        operand_strides=((),) * len(operands),
        results=(None,),
        effects=True,
    )
    return call, tuple(operands)


def _is_value(leaf: object) -> bool:
    return isinstance(leaf, (Expr, SymbolicDim))


def _promised(
    node: torch.fx.Node,
    target: Any,
    arguments: tuple[object, ...],
    results: Sequence[tuple[TensorType, tuple[Dim, ...]] | None],
) -> tuple[Promised, tuple[object, ...]]:
    """A call whose results have sizes that the trace knows by the program's own checks."""
    if any(result is None for result in results):
        raise UnsupportedError(f"{node.target} gives numbers that only the call knows")
    shapes = tuple(None if result is None else result[0].shape for result in results)
    return Promised(str(node.target), target), (shapes, *arguments)


def _is_slice(leaf: object) -> bool:
    return isinstance(leaf, slice)


def _is_operand(leaf: object, environment: Environment) -> bool:
    return isinstance(leaf, torch.fx.Node) and isinstance(environment[leaf], Expr)


def _argument(leaf: Any, operands: list[Any], environment: Environment) -> object:
    if not isinstance(leaf, torch.fx.Node):
        return leaf
    return Operand(operands.index(leaf)) if leaf in operands else environment[leaf]


def _as_tuples(structure: Any) -> Any:
    """Lists as tuples, at any depth; a dict stays one at the top, where it holds the keywords."""
    if isinstance(structure, (list, tuple)):
        return tuple(_as_tuples(part) for part in structure)
    if isinstance(structure, dict):
        return {key: _as_tuples(part) for key, part in structure.items()}
    return structure


def _operand_strides(operand: torch.fx.Node, sizes: Sizes) -> tuple[Dim, ...] | None:
    traced = operand.meta.get("val")
    if is_under_way(operand) or not isinstance(traced, torch.Tensor):
        return None
    return strides_of(traced, sizes)


def _result_type(
    part: Any, sizes: Sizes, device: torch.device, is_filled_later: bool
) -> tuple[TensorType, tuple[Dim, ...]] | None:
    """What is filled later is OPAQUE until then: no kernel reads it, and nothing copies it."""
    if isinstance(part, (list, tuple)):
        raise UnsupportedError("an operator returns lists within a list")
    if not isinstance(part, torch.Tensor):
        return None
    type_ = tensor_type(part, sizes, device)
    if is_filled_later:
        type_ = TensorType(type_.shape, DType.OPAQUE)
    return type_, strides_of(part, sizes)


def _plain(part: Any, sizes: Sizes) -> Any:
    """A result that is no tensor, as known from the trace."""
    return sizes.number(part) if isinstance(part, (torch.SymInt, torch.SymFloat)) else part
