"""Where the caller finds what a call gives back, and backward what is kept for it."""

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
    agree,
    alias_of,
    another,
    copy_of,
    uncopied,
)
from hemstitch.stitching.group import Tensor, Write, is_member
from hemstitch.stitching.view_indices import INVERTIBLE, strides_below

Taken = set[Union[Tensor, Node]]  # memory that is a result's, or will be


def demand_outputs(found: Materialisation, graph: Graph) -> None:
    """Results that are the caller's alone, and mutated inputs."""
    taken: Taken = set()
    changed = {output.mutates for output in graph.outputs}
    for number, output in enumerate(graph.outputs):
        if output.mutates is not None:
            tensor = found.tensors[output.mutates]
            if found.tensors.get(output.value) is not tensor:
                # Not in parts, as `write` would: one part may read what another replaces.
                found.writes.append(Write(output.value, tensor, tensor.strides))
            found.outputs[number] = Alias(tensor, tensor.node.shape, tensor.strides, 0)
        elif not output.may_share:
            expanded = _expanded(found, output, changed, taken)
            found.outputs[number] = expanded or _output(found, output.value, output.strides, taken)


def _expanded(
    found: Materialisation, output: Output, changed: set[Node | None], taken: Taken
) -> Alias | None:
    """Where eager gives one element under many indices (an expanded gradient), so do we: of a copy
    if those elements are an argument or a result already, with which it shares nothing in eager."""
    if not repeats(output.value.shape, output.strides):
        return None
    alias = alias_of(found.tensors, output.value)
    if alias is None or not agree(output.value.shape, alias.strides, output.strides):
        return _repeated(found, output, taken)
    if alias.tensor.node in changed:
        return None
    tensor = alias.tensor
    if not taken.isdisjoint(_shown(found, tensor)) or tensor.is_argument:
        tensor = found.write(tensor.node, another(found, tensor.node, tensor.strides))
    else:
        found.keep(alias)
    taken.update(_shown(found, tensor))
    return replace(alias, tensor=tensor)


def _repeated(found: Materialisation, output: Output, taken: Taken) -> Alias | None:
    """What it repeats in memory of its own, if it is laid out as those elements are."""
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
    is_again = [size != wide for size, wide in zip(source.shape, value.shape)]
    axes = zip(value.shape, strides, is_again)
    if any((step == 0) != again for size, step, again in axes if size != 1):
        return None
    once = tuple(1 if again else step for step, again in zip(strides, is_again))
    alias = _output(found, source, once, taken)
    steps = tuple(0 if again else step for step, again in zip(alias.strides, is_again))
    for order in reversed(orders):
        steps = tuple(steps[axis] for axis in order)
    return Alias(alias.tensor, output.value.shape, steps, alias.offset)


def demand_shared(found: Materialisation, graph: Graph) -> None:
    """Results kept for backward: views of what is in memory anyway, where their strides agree; and
    a result of the user's itself, whose version counter tells autograd if it is written to."""
    own = {alias.tensor: alias for alias in found.outputs.values()}
    private: Taken = {shown for one in own for shown in _shown(found, one)}
    taken = {*private}
    changed = {output.mutates for output in graph.outputs}
    changed |= {node for node in graph.inputs if _is_written(node)}
    for number, output in enumerate(graph.outputs):
        if number in found.outputs:
            continue
        alias = alias_of(found.in_memory, output.value)
        if (
            alias is not None
            and agree(output.value.shape, alias.strides, output.strides)
            and _may_keep(found, alias, own.get(alias.tensor), private)
            and changed.isdisjoint(map(_node, _shown(found, alias.tensor)))
        ):
            found.keep(alias)
            found.outputs[number] = alias
        elif made := copy_of(found, output.value, output.strides, own):
            found.outputs[number] = Alias(made, output.value.shape, output.strides, 0)
        else:
            found.outputs[number] = _kept(found, output, taken)


def _may_keep(found: Materialisation, alias: Alias, own: Alias | None, private: Taken) -> bool:
    """It is a result, or shares no memory with one."""
    is_result = own is not None and alias.shows_as(own)
    return is_result or private.isdisjoint(_shown(found, alias.tensor))


def _is_written(argument: Node) -> bool:
    return isinstance(argument.attr, InputAttr) and argument.attr.is_written


def _kept(found: Materialisation, output: Output, taken: Taken) -> Alias:
    """Raises UnsupportedError where it would not be laid out as backward reads it."""
    value, strides = output.value, output.strides
    alias = _expanded(found, output, set(), taken) or _output(found, value, strides, taken)
    if value.type.dtype is not DType.OPAQUE and not agree(value.shape, alias.strides, strides):
        raise UnsupportedError(f"{value.type}, kept for backward with the strides {strides}")
    return alias


def _output(found: Materialisation, value: Node, strides: tuple[Dim, ...], taken: Taken) -> Alias:
    """A tensor of its own for every result: the caller may write to one and keep the others. The
    program, and a compiled backward, rely on its strides, though elements be far apart, as those of
    one row in each sequence are. Eager keeps all that lies between them; here nothing is there."""
    if value.type.dtype is DType.OPAQUE:
        return uncopied(found, value)
    alias = alias_of(found.tensors, value)
    shown = set() if alias is None else {*_shown(found, alias.tensor)}
    is_free = alias is not None and _is_ours(found, alias) and taken.isdisjoint(shown)
    if alias is not None and is_free and agree(value.shape, alias.strides, strides):
        taken |= shown
        return alias
    if repeats(value.shape, strides):
        strides = contiguous_strides(value.shape)
    seen, below = _seen(found, value, strides)
    if is_member(seen) and seen not in found.tensors and seen not in taken:
        tensor = found.tensors[seen] = Tensor(seen, below)
    else:
        tensor = found.write(value, another(found, value, strides))
    taken.add(tensor)
    return Alias(tensor, value.shape, strides, 0)


def _is_ours(found: Materialisation, alias: Alias) -> bool:
    """A library call or kernels make it, and nothing beside it."""
    tensor = alias.tensor
    is_made = found.tensors.get(tensor.node) is tensor and not tensor.is_argument
    is_whole = product(alias.shape) == product(tensor.node.shape)
    return not _shows_argument(found, tensor) if tensor.is_result else is_made and is_whole


def _shows_argument(found: Materialisation, result: Tensor) -> bool:
    return any(_node(shown).op is Op.INPUT for shown in _shown(found, result))


def _node(shown: Tensor | Node) -> Node:
    return shown.node if isinstance(shown, Tensor) else shown


def _shown(found: Materialisation, tensor: Tensor) -> Iterator[Tensor | Node]:
    """It, and what it is a view of, if a library call made it so: tensors, and nodes that will be
    in memory for that call."""
    yield tensor
    [call] = tensor.node.inputs if tensor.is_result else [None]
    if call is None or not holds_operands(call.attr):
        return
    for value in call.inputs:
        if alias := alias_of(found.tensors, value):
            yield from _shown(found, alias.tensor)
            continue
        yield value
        while is_view(value.op) and len(value.inputs) == 1:
            (value,) = value.inputs
            yield value


def _seen(
    found: Materialisation, value: Node, strides: tuple[Dim, ...]
) -> tuple[Node, tuple[Dim, ...]]:
    """What a result is a view of, element by element, and the strides of that: in memory so, all
    others read it there as well."""
    while value.op in INVERTIBLE and value not in found.fusion_barriers:
        below = strides_below(value, strides)
        if below is None or value.inputs[0] in found.tensors:
            break
        (value,), strides = value.inputs, below
    return value, strides
