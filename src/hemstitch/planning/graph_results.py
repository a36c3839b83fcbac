"""Materialisation of graph results: where callers find outputs, and where backward finds saved
activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Union

from hemstitch.errors import UnsupportedError
from hemstitch.ir.calls import holds_operands
from hemstitch.ir.dims import Dim, product
from hemstitch.ir.graph import Graph, InputAttr, Node, Op, Output
from hemstitch.ir.layout import repeats
from hemstitch.ir.ops import is_view
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.planning.materialised_views import (
    Alias,
    Materialisation,
    alias_of,
    existing_copy,
    new_tensor,
    opaque_alias,
    same_strides,
)
from hemstitch.stitching.group import Tensor, Write, is_member
from hemstitch.stitching.view_indices import INVERTIBLE, strides_below

Taken = set[Union[Tensor, Node]]  # memory that belongs to a result


def materialise_outputs(needs: Materialisation, graph: Graph) -> None:
    """Memory for results that the caller owns, and for mutated inputs."""
    taken: Taken = set()
    changed = {output.mutates for output in graph.outputs}
    for number, output in enumerate(graph.outputs):
        if output.mutates is not None:
            tensor = needs.tensors[output.mutates]
            if needs.tensors.get(output.value) is not tensor:
                # Not split into parts, as by `write`: a part may read what another replaces.
                needs.writes.append(Write(output.value, tensor, tensor.strides))
            needs.outputs[number] = Alias(tensor, tensor.node.shape, tensor.strides, 0)
        elif not output.may_share:
            expanded = _expanded(needs, output, changed, taken)
            needs.outputs[number] = expanded or _output(needs, output.value, output.strides, taken)


def _expanded(
    needs: Materialisation, output: Output, changed: set[Node | None], taken: Taken
) -> Alias | None:
    """An alias for an expanded result, which has one element under many indices in eager PyTorch;
    else None. If its elements are an argument's or a result's, with which eager PyTorch shares
    nothing, it is an alias of a copy."""
    if not repeats(output.value.shape, output.strides):
        return None
    alias = alias_of(needs.tensors, output.value)
    if alias is None or not same_strides(output.value.shape, alias.strides, output.strides):
        return _repeated(needs, output, taken)
    if alias.tensor.node in changed:
        return None
    tensor = alias.tensor
    if not taken.isdisjoint(_shown(needs, tensor)) or tensor.is_argument:
        tensor = needs.write(tensor.node, new_tensor(needs, tensor.node, tensor.strides))
    else:
        needs.require(alias)
    taken.update(_shown(needs, tensor))
    return replace(alias, tensor=tensor)


def _repeated(needs: Materialisation, output: Output, taken: Taken) -> Alias | None:
    """An alias of new memory for the operand of an expanding view, if it has the layout of the
    result's elements; else None."""
    value, strides = output.value, output.strides
    orders: list[tuple[int, ...]] = []
    while value.op is Op.PERMUTE:
        below = strides_below(value, strides)
        assert below is not None
        orders.append(value.attr)  # type: ignore[arg-type]
        (value,), strides = value.inputs, below
    if value.op is not Op.BROADCAST:
        return None
    (source,) = value.inputs
    is_repeated = [size != wide for size, wide in zip(source.shape, value.shape)]
    axes = zip(value.shape, strides, is_repeated)
    if any((step == 0) != repeats_ for size, step, repeats_ in axes if size != 1):
        return None
    operand_strides = tuple(1 if repeats_ else step for step, repeats_ in zip(strides, is_repeated))
    alias = _output(needs, source, operand_strides, taken)
    steps = tuple(0 if repeats_ else step for step, repeats_ in zip(alias.strides, is_repeated))
    for order in reversed(orders):
        steps = tuple(steps[axis] for axis in order)
    return Alias(alias.tensor, output.value.shape, steps, alias.offset)


def materialise_saved(needs: Materialisation, graph: Graph) -> None:
    """Memory for activations saved for backward: an alias of a tensor in memory, where its strides
    fit. A result of the user may be one, since its version counter tells autograd of writes."""
    own = {alias.tensor: alias for alias in needs.outputs.values()}
    private: Taken = {shown for tensor in own for shown in _shown(needs, tensor)}
    taken = {*private}
    changed = {output.mutates for output in graph.outputs}
    changed |= {node for node in graph.inputs if _is_written(node)}
    for number, output in enumerate(graph.outputs):
        if number in needs.outputs:
            continue
        alias = alias_of(needs.in_memory, output.value)
        if (
            alias is not None
            and same_strides(output.value.shape, alias.strides, output.strides)
            and _may_be_saved(needs, alias, own.get(alias.tensor), private)
            and changed.isdisjoint(map(_node, _shown(needs, alias.tensor)))
        ):
            needs.require(alias)
            needs.outputs[number] = alias
        elif copy := existing_copy(needs, output.value, output.strides, own):
            needs.outputs[number] = Alias(copy, output.value.shape, output.strides, 0)
        else:
            needs.outputs[number] = _saved(needs, output, taken)


def _may_be_saved(needs: Materialisation, alias: Alias, own: Alias | None, private: Taken) -> bool:
    """Whether the alias is a result itself, or shares no memory with one."""
    is_result = own is not None and alias.shows_as(own)
    return is_result or private.isdisjoint(_shown(needs, alias.tensor))


def _is_written(argument: Node) -> bool:
    return isinstance(argument.attr, InputAttr) and argument.attr.is_written


def _saved(needs: Materialisation, output: Output, taken: Taken) -> Alias:
    """New memory for a saved activation. Raises UnsupportedError where it would not have the layout
    that backward expects."""
    value, strides = output.value, output.strides
    alias = _expanded(needs, output, set(), taken) or _output(needs, value, strides, taken)
    if value.type.dtype is not DType.OPAQUE and not same_strides(
        value.shape, alias.strides, strides
    ):
        raise UnsupportedError(f"{value.type}, kept for backward with the strides {strides}")
    return alias


def _output(needs: Materialisation, value: Node, strides: tuple[Dim, ...], taken: Taken) -> Alias:
    """A tensor of its own for every result, since the caller may write to one and keep the others.
    It has the strides of eager PyTorch, which the program and a compiled backward rely on, even if
    elements are far apart. Eager PyTorch keeps what lies between them; here nothing does."""
    if value.type.dtype is DType.OPAQUE:
        return opaque_alias(needs, value)
    alias = alias_of(needs.tensors, value)
    shown = set() if alias is None else {*_shown(needs, alias.tensor)}
    is_free = alias is not None and _is_owned(needs, alias) and taken.isdisjoint(shown)
    if alias is not None and is_free and same_strides(value.shape, alias.strides, strides):
        taken |= shown
        return alias
    if repeats(value.shape, strides):
        strides = contiguous_strides(value.shape)
    source, source_strides = _below_bijective_views(needs, value, strides)
    if is_member(source) and source not in needs.tensors and source not in taken:
        tensor = needs.tensors[source] = Tensor(source, source_strides)
    else:
        tensor = needs.write(value, new_tensor(needs, value, strides))
    taken.add(tensor)
    return Alias(tensor, value.shape, strides, 0)


def _is_owned(needs: Materialisation, alias: Alias) -> bool:
    """Whether a library call or kernels compute the alias, and nothing else in its tensor."""
    tensor = alias.tensor
    is_computed = needs.tensors.get(tensor.node) is tensor and not tensor.is_argument
    is_whole = product(alias.shape) == product(tensor.node.shape)
    return not _shows_argument(needs, tensor) if tensor.is_result else is_computed and is_whole


def _shows_argument(needs: Materialisation, result: Tensor) -> bool:
    return any(_node(shown).op is Op.INPUT for shown in _shown(needs, result))


def _node(shown: Tensor | Node) -> Node:
    return shown.node if isinstance(shown, Tensor) else shown


def _shown(needs: Materialisation, tensor: Tensor) -> Iterator[Tensor | Node]:
    """The tensor, and what it is a view of, if a library call returns a view: tensors, and nodes
    that are put in memory for that call."""
    yield tensor
    [call] = tensor.node.inputs if tensor.is_result else [None]
    if call is None or not holds_operands(call.attr):
        return
    for value in call.inputs:
        if alias := alias_of(needs.tensors, value):
            yield from _shown(needs, alias.tensor)
            continue
        yield value
        while is_view(value.op) and len(value.inputs) == 1:
            (value,) = value.inputs
            yield value


def _below_bijective_views(
    needs: Materialisation, value: Node, strides: tuple[Dim, ...]
) -> tuple[Node, tuple[Dim, ...]]:
    """The value below reshapes and permutations, and its strides. If it is put in memory with these
    strides, its other readers use it too."""
    while value.op in INVERTIBLE and value not in needs.fusion_barriers:
        below = strides_below(value, strides)
        if below is None or value.inputs[0] in needs.tensors:
            break
        (value,), strides = value.inputs, below
    return value, strides
