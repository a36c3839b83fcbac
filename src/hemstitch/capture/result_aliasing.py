"""How the results of a traced graph lie in memory. Programs read strides, so a result has eager's.
Results that look into the same memory, as torch's views do, look into the same: who writes to one
of them must see it in the others. A view that is alone is in memory of its own, where nothing is in
front of its elements, between and behind them. Of gradients only the order of axes is eager's:
autograd closes the gaps in those of weights."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeGuard

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext

from hemstitch.capture.library_calls import strides_of
from hemstitch.capture.symbolic_sizes import Sizes
from hemstitch.capture.traced_nodes import COPIED, formulas, is_library, is_view
from hemstitch.errors import UnsupportedError
from hemstitch.ir import layout
from hemstitch.ir.dims import Dim

MADE_ANEW = (
    OutputType.is_input,
    OutputType.alias_of_input,
    OutputType.alias_of_intermediate,
    OutputType.alias_of_intermediate_save_as_output,
    OutputType.alias_of_intermediate_base_is_user_output,
)


@dataclass(frozen=True, slots=True)
class Results:
    """What there is to know of results besides the trace. `views`: places of those that are made
    anew, as views of arguments or of other results. `arguments`, `viewed`: places of results, each
    with that of the argument that it is, or that the caller writes it to; or is a view of."""

    views: frozenset[int] = frozenset()
    arguments: frozenset[tuple[int, int]] = frozenset()
    viewed: frozenset[tuple[int, int]] = frozenset()
    are_gradients: bool = False


TRACED = Results()  # nothing


@dataclass(frozen=True, slots=True)
class SharedResult:
    """A result in the memory of `whole`, another one or an argument. `seen`: its traced layout.
    `is_replaced`: what is in that argument when the call is over is something else."""

    whole: torch.fx.Node
    seen: torch.Tensor
    is_replaced: bool = False


def results_of_forward(forward: torch.fx.Graph) -> Results:
    """Of the graph being compiled. Its views of arguments or, in training, of other results are
    those of AOTAutograd's record: it makes them anew, and takes no elements from the graph, but
    strides and, where sizes are symbolic, the place in memory. In training one of several views of
    an argument (`split`) is a result like others in that record. That the trace has a view alone
    says nothing: a sum over one element becomes one."""
    context = TracingContext.try_get()
    record = context.fw_metadata if context is not None else None
    if record is None:
        return TRACED
    [results] = forward.output_node().args
    assert isinstance(results, (list, tuple))
    first = record.num_mutated_inp_runtime_indices  # the graph's first outputs are new arguments
    infos = enumerate(record.output_info)
    made_anew = {first + n: info for n, info in infos if info.output_type in MADE_ANEW}
    parts = {place for place, node in enumerate(results) if _is_one_of_several(node)}
    of_arguments = {
        (place, int(info.base_idx or 0)): info.output_type
        for place, info in made_anew.items()
        if info.output_type in (OutputType.is_input, OutputType.alias_of_input)
    }
    arguments = {pair for pair, kind in of_arguments.items() if kind is OutputType.is_input}
    return Results(
        views=frozenset(made_anew.keys() | parts),
        arguments=frozenset(arguments.union(enumerate(record.mutated_inp_runtime_indices))),
        viewed=frozenset(of_arguments),
    )


def results_of_backward(backward: torch.fx.Graph) -> Results:
    """Views of arguments are those gradients that are one that comes in, or a part of it, as they
    are in eager: of `cat`, `split`, `view`. Autograd copies one that somebody else holds, or that
    has repetitions, before it adds to it; what another gradient shows as well it would add to as it
    is, so that such ones are tensors of their own."""
    [results] = backward.output_node().args
    assert isinstance(results, (list, tuple))
    parts = defaultdict[torch.fx.Node, list[torch.fx.Node]](list)
    for node in results:
        if isinstance(node, torch.fx.Node) and _is_part_of_gradient(node):
            parts[_whole(node)].append(node)
    apart = {node for whole, nodes in parts.items() if _are_apart(whole, nodes) for node in nodes}
    views = (n for n, node in enumerate(results) if node in apart or _is_expanded_argument(node))
    return Results(frozenset(views), are_gradients=True)


def _is_expanded_argument(result: object) -> bool:
    return _repeats(result) and _whole(result).op == "placeholder"


def _repeats(result: object) -> TypeGuard[torch.fx.Node]:
    if not isinstance(result, torch.fx.Node) or not _is_tensor(result):
        return False
    traced = result.meta["val"]
    layout = zip(formulas(traced.stride()), formulas(traced.shape))
    return any(step == 0 and size != 1 for step, size in layout)


def _is_part_of_gradient(node: torch.fx.Node) -> bool:
    """Of one that comes in, of known layout."""
    if not _is_tensor(node) or _repeats(node):
        return False
    whole = _whole(node)
    is_known = _is_fixed(node.meta["val"]) and not node.meta["val"].is_complex()
    return is_known and str(whole.target).startswith("tangents")


def _are_apart(whole: torch.fx.Node, parts: Sequence[torch.fx.Node]) -> bool:
    """Whether no element is in two of the gradients, but for those that are the very argument: then
    autograd sees that several hold it."""
    if all(part is whole for part in parts) or len(parts) == 1:
        return True
    boxes = [_box(whole.meta["val"], part.meta["val"]) for part in parts]
    return all(
        first is not None
        and second is not None
        and any(a.stop <= b.start or b.stop <= a.start for a, b in zip(first, second))
        for first, second in combinations(boxes, 2)
    )


def _box(whole: torch.Tensor, part: torch.Tensor) -> tuple[range, ...] | None:
    """Which indices of `whole` it has along each axis; None if it is no box of elements."""
    rest = part.storage_offset() - whole.storage_offset()
    sizes = {step: size for step, size in zip(part.stride(), part.shape) if size > 1}
    box = []
    for step, extent in sorted(zip(whole.stride(), whole.shape), reverse=True):
        if extent > 1:
            start, size = rest // step, sizes.pop(step, 1)
            rest -= start * step
            if start + size > extent:
                return None
            box.append(range(start, start + size))
    return None if sizes or rest else tuple(box)


def _is_one_of_several(result: object) -> bool:
    """Views of one argument, which the call does not write to."""
    if not isinstance(result, torch.fx.Node) or not _is_tensor(result):
        return False
    *views, argument = views_of(result)
    is_one = any(view.target is operator.getitem for view in views)
    return is_one and argument.op == "placeholder" and not any(map(_writes, argument.users))


def shared_memory(
    results: Sequence[object], known: Results, sizes: Sizes
) -> dict[int, SharedResult]:
    """For the place of each result that shares memory with another, has elements under several
    indices, or is a view that is made anew: whose memory it is.

    Raises UnsupportedError where only the call knows how such a view is laid out, in an argument of
    another element type, or written to through other views.
    """
    nodes = {n: node for n, node in enumerate(results) if isinstance(node, torch.fx.Node)}
    bases = {node: _whole(node) for node in nodes.values() if _is_tensor(node)}
    count = Counter(bases.values())
    viewed = dict(_placed(results, known.viewed))
    arguments = {(results[place], x) for place, x in _placed(results, known.arguments)}
    shared = dict[int, SharedResult]()
    for place, result in nodes.items():
        if result not in bases:
            continue
        base = bases[result]
        whole = base if count[base] > 1 else _distinct(result, known, sizes)
        is_part = base.op == "call_function" and (whole is not result or count[base] > 1)
        is_anew = place in known.views
        part = _of_argument(result, viewed.get(place), arguments) if is_anew else None
        if part is not None:
            shared[place] = part
        elif is_part and _is_memory(whole, known, sizes):
            shared[place] = SharedResult(whole, result.meta["val"])
        elif is_anew and not _is_fixed(result.meta["val"]):
            what = "a view, made anew by AOTAutograd, that is laid out as only the call knows"
            raise UnsupportedError(what, hint="make that view outside of the compiled function")
    return shared


def _distinct(node: torch.fx.Node, known: Results, sizes: Sizes) -> torch.fx.Node:
    """The nearest that it is a view of, if there are elements under several indices. Of a gradient,
    what the library gives, if there are gaps: only a copy would close them, which autograd makes
    where it wants one."""
    if known.are_gradients:
        base = _whole(node)
        has_gaps = is_library(base) and _is_fixed(node.meta["val"]) and not is_dense(node, sizes)
        return base if has_gaps and not _repeats(node) else node
    return next((x for x in views_of(node) if not _overlaps(x, sizes)), node)


def _is_memory(node: torch.fx.Node, known: Results, sizes: Sizes) -> bool:
    """Whether it will lie as it was traced, each of its elements under one index."""
    is_apart = not known.are_gradients and _overlaps(node, sizes) is False
    return is_apart or is_dense(node, sizes)


def _is_fixed(traced: torch.Tensor) -> bool:
    layout = (*traced.shape, *traced.stride(), traced.storage_offset())
    return all(isinstance(number, int) for number in layout)


def _is_tensor(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _whole(node: torch.fx.Node) -> torch.fx.Node:
    """What `node` is a view of in the end, as far as views keep the element type."""
    *_, base = views_of(node)
    return base


def views_of(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """It, what it is a view of, and so on."""
    yield node
    source = _viewed(node)
    if source is not None and source.meta["val"].dtype == node.meta["val"].dtype:
        yield from views_of(source)


def is_view_of(result: object, argument: torch.fx.Node) -> bool:
    """Given back as a view of `argument`, or as that itself, whose elements are as they lie."""
    if not isinstance(result, torch.fx.Node) or not _is_tensor(result):
        return False
    return _whole(result) is argument and not argument.meta["val"].is_complex()


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """What `node` is a view of, alone or as one of several: of an argument written to, that."""
    call = node.args[0] if node.target is operator.getitem else node
    assert isinstance(call, torch.fx.Node)
    return call.all_input_nodes[0] if is_view(call) or _writes(call) else None


def _placed(
    results: Sequence[object], pairs: frozenset[tuple[int, int]]
) -> Iterator[tuple[int, torch.fx.Node]]:
    """Places of results, with the arguments at the places that they are paired with."""
    nodes = [node for node in results if isinstance(node, torch.fx.Node)]
    arguments = nodes[0].graph.find_nodes(op="placeholder") if nodes else []
    return ((place, arguments[number]) for place, number in pairs if number < len(arguments))


def _is_alike(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    if not _is_tensor(node) or not _is_tensor(other):
        return False
    mine, its = node.meta["val"], other.meta["val"]
    return mine.dtype == its.dtype and formulas(mine.shape) == formulas(its.shape)


def _of_argument(
    node: torch.fx.Node,
    viewed: torch.fx.Node | None,
    arguments: Collection[tuple[object, torch.fx.Node]],
) -> SharedResult | None:
    """A view of an argument, of a copy that stands for one, or of what is written to one. These two
    may be laid out otherwise. `arguments`: results that are an argument when the call is over."""
    for base in views_of(node):
        copied = base.all_input_nodes[0] if COPIED in base.meta else None
        is_written = viewed is not None and (base, viewed) in arguments and _is_alike(base, viewed)
        argument = _written_to(base) or (viewed if is_written else copied) or base
        if argument.op != "placeholder":
            continue
        if argument is base:
            return SharedResult(base, node.meta["val"])
        with suppress(RuntimeError):  # no view of that layout
            seen = _replayed(node, base, argument.meta["val"])
            return SharedResult(argument, seen, is_replaced=True)
    return None


def _replayed(node: torch.fx.Node, base: torch.fx.Node, whole: torch.Tensor) -> torch.Tensor:
    """`whole`, seen as `node` sees `base`."""
    if node is base:
        return whole
    source: Any = _viewed(node)
    call: Any = node.args[0] if node.target is operator.getitem else node
    seen = _replayed(source, base, whole)
    arguments, keywords = torch.fx.map_arg(
        (call.args, call.kwargs),
        lambda argument: seen if argument is source else argument.meta["val"],
    )
    value: Any = call.target(*arguments, **keywords)
    return value if call is node else value[node.args[1]]  # type: ignore[no-any-return]


def _written_to(node: torch.fx.Node) -> torch.fx.Node | None:
    """The argument that has these contents when the call is over."""
    targets = (user.args[0] for user in node.users if _writes(user) and user.args[1] is node)
    return next((target for target in targets if isinstance(target, torch.fx.Node)), None)


def _writes(node: torch.fx.Node) -> bool:
    return node.target is torch.ops.aten.copy_.default


def is_dense(node: torch.fx.Node, sizes: Sizes) -> bool:
    """Without gaps and repetitions: in memory as it is traced, whoever computes it."""
    return layout.is_dense(*_layout(node, sizes))


def _overlaps(node: torch.fx.Node, sizes: Sizes) -> bool | None:
    return layout.overlaps(*_layout(node, sizes), sizes.hints)


def _layout(node: torch.fx.Node, sizes: Sizes) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    traced = node.meta["val"]
    return sizes.dims(traced.shape), strides_of(traced, sizes)
