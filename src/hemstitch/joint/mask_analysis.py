"""What of a product of matrices is of no use, because a mask that the program makes excludes it: of
causal attention nearly half, in forward and backward. Such a mask is known from the numbers of rows
and columns that it compares. From there one follows what is -inf outside of what it lets through,
then what is zero there, and back from there to products of which nobody looks at those elements.

Zero times a number is taken for zero, also where the number is not finite: as by the library, which
skips what lies behind the diagonal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from hemstitch.capture.effects import has_effects
from hemstitch.capture.library_calls import WITHIN
from hemstitch.capture.traced_nodes import arguments_of, formulas, name_of, value_of
from hemstitch.ir.calls import MatmulAxis, Within
from hemstitch.joint.axis_propagation import ATTENTION, has_known_sizes

aten = torch.ops.aten
SMALL = 1 << 16  # elements of numbers of rows and columns
LARGEST = 1 << 24  # elements of what is compared, of one batch


class Outside(Enum):
    """What all elements outside are."""

    NO = "false"
    YES = "true"
    LOWEST = "-inf"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class Band:
    """The elements of a tensor with low <= high + distance, of which one is its last axis, -1, and
    the other that before, -2."""

    low: int
    high: int
    distance: int

    @property
    def turned(self) -> Band:
        return replace(self, low=self.high, high=self.low)


Facts = Mapping[Outside, Collection[Band]]
Known = dict[Node, Facts]


def analyse_masks(graph: Graph) -> None:
    """Says of each product what of it is of use, in its `meta`."""
    known = _known(graph)
    bands = {
        b: None
        for facts in known.values()
        for bands_of_kind in facts.values()
        for b in bands_of_kind
    }
    for product in graph.find_nodes(op="call_function", target=aten.bmm.default):
        within = next(_within(product, known, bands), None)
        if within is not None:
            product.meta[WITHIN] = within
    for call in graph.find_nodes(op="call_function", target=getattr(aten, ATTENTION).default):
        for band in known.get(call.kwargs.get("attn_mask"), {}).get(Outside.LOWEST, ()):
            call.meta.setdefault(WITHIN, _places(band))


def _places(
    band: Band, rows: MatmulAxis = MatmulAxis.ROW, columns: MatmulAxis = MatmulAxis.COLUMN
) -> Within:
    """`rows` and `columns`: of the product, those of the tensor with this band."""
    axes = {-2: rows, -1: columns}
    return Within(axes[band.low], axes[band.high], band.distance)


def _within(product: Node, known: Known, bands: Collection[Band]) -> Iterator[Within]:
    left, right = arguments_of(product)
    for band in known.get(left, {}).get(Outside.ZERO, ()):
        yield _places(band, columns=MatmulAxis.STEP)
    for band in known.get(right, {}).get(Outside.ZERO, ()):
        yield _places(band, rows=MatmulAxis.STEP)
    yield from (_places(band) for band in bands if _is_unseen(product, band, known))


def _is_unseen(node: Node, band: Band, known: Known) -> bool:
    """Whoever reads it makes the same of it, whatever finite numbers it has outside the band."""
    return bool(node.users) and all(_is_unseen_by(user, node, band, known) for user in node.users)


def _is_unseen_by(user: Node, node: Node, band: Band, known: Known) -> bool:
    moved = _transposed(user, node, [band]) if isinstance(value_of(user), Tensor) else []
    if not moved:
        return False
    if any(moved[0] in bands for bands in known.get(user, {}).values()):
        return name_of(user) in ABSORBING  # by another operand, as nothing is known of this one
    is_dividend = name_of(user) == "div" and arguments_of(user)[1] is not node
    is_finite = _is_kept(user) or name_of(user) in FINITE or is_dividend
    return is_finite and _is_unseen(user, moved[0], known)


SOFTMAX_BACKWARD, TANH_BACKWARD = "_softmax_backward_data", "tanh_backward"
ABSORBING = ("add", "sub", "mul", "where", "masked_fill", SOFTMAX_BACKWARD, TANH_BACKWARD)
FINITE = ("add", "sub", "mul", "neg", "tanh", "native_dropout_backward")  # of finite operands


# --- what is known


def _known(graph: Graph) -> Known:
    known: Known = {}
    numbers: dict[Node, Tensor] = {}
    with unset_fake_temporarily(), torch.no_grad():
        for node in graph.nodes:
            if node.op != "call_function" or not isinstance(value_of(node), Tensor):
                continue
            _count(node, numbers)
            facts = _compared(node, numbers) or _facts(node, known)
            if facts := {kind: [*dict.fromkeys(bands)] for kind, bands in facts.items() if bands}:
                known[node] = facts
    return known


def _count(node: Node, numbers: dict[Node, Tensor]) -> None:
    """Adds its value, if it is made of nothing but numbers that the program has written down."""
    value, target = value_of(node), node.target
    is_small = has_known_sizes(node) and 0 < value.numel() <= SMALL
    is_known = numbers.keys() >= set(node.all_input_nodes) and not value.is_floating_point()
    if not (is_small and is_known and isinstance(target, OpOverload)):
        return
    if target.namespace != "aten" or has_effects(node) or "empty" in name_of(node):
        return
    keywords = {k: torch.device("cpu") if k == "device" else v for k, v in node.kwargs.items()}
    arguments, named = map_arg((node.args, keywords), numbers.__getitem__)
    with suppress(IndexError, RuntimeError):  # it is said where the program runs
        numbers[node] = target(*arguments, **named)


def _compared(node: Node, numbers: Mapping[Node, Tensor]) -> Facts:
    """Two known numbers of each element, of which one or both are those of its row or column."""
    compare = COMPARED.get(name_of(node))
    if compare is None or len(arguments_of(node)) != 2 or not has_known_sizes(node):
        return {}
    values = [numbers.get(x, x) if isinstance(x, Node) else x for x in arguments_of(node)]
    shape = value_of(node).shape
    is_known = not any(isinstance(value, Node) for value in values)
    if not is_known or len(shape) < 2 or not 0 < shape[-1] * shape[-2] <= LARGEST:
        return {}
    (least, most), (low, high) = (_ends(torch.as_tensor(value)) for value in values)
    is_up = name_of(node) in ("le", "lt")
    some = compare(least, high) if is_up else compare(most, low)
    every = compare(most, low) if is_up else compare(least, high)
    some, every = (x.expand(shape[-2:]) for x in (some, every))
    return {Outside.NO: _bands(some), Outside.YES: _bands(~every)}


COMPARED: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "le": torch.le,
    "lt": torch.lt,
    "ge": torch.ge,
    "gt": torch.gt,
}


def _ends(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest of all batches."""
    if x.ndim < 2:
        return x, x
    batches = x.reshape(-1, *x.shape[-2:])
    return batches.amin(0), batches.amax(0)


def _bands(inside: Tensor) -> list[Band]:
    """The narrowest that have all that is inside, if they leave anything out."""
    rows, columns = inside.shape
    bands = []
    is_any = inside.any(1)
    if not is_any.any():
        return []
    places = torch.arange(columns)
    last = torch.where(inside, places, -1).amax(1)
    first = torch.where(inside, places, columns).amin(1)
    numbers = torch.arange(rows)
    above = int((last - numbers)[is_any].max())
    below = int((numbers - first)[is_any].max())
    if above < columns - 1:
        bands.append(Band(-1, -2, above))
    if below < rows - 1:
        bands.append(Band(-2, -1, below))
    return bands


# --- what follows


def _facts(node: Node, known: Known) -> Facts:
    """What is known of a result from what is known of its operands."""
    follow = FOLLOWING.get(name_of(node))
    if follow is not None:
        return follow(node, known)
    if _is_kept(node):
        (x,) = node.all_input_nodes[:1]
        return {kind: _transposed(node, x, bands) for kind, bands in known.get(x, {}).items()}
    return {}


KEPT = (
    *("view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "detach", "alias"),
    *("clone", "_to_copy", "slice", "transpose", "permute", "t", "mT"),
)


def _is_kept(node: Node) -> bool:
    """It shows or copies its operand."""
    return name_of(node) in KEPT and len(node.all_input_nodes) == 1


def _transposed(node: Node, operand: Node, bands: Collection[Band]) -> list[Band]:
    """Bands of an operand as those of the result: none if its last two axes are not the same."""
    order = [-2, -1]
    before, after = (value_of(x).shape for x in (operand, node))
    if not (has_known_sizes(operand) and has_known_sizes(node)) or len(before) < 2:
        return []
    name, rank = name_of(node), len(before)
    if name in ("transpose", "permute", "t", "mT"):
        arguments = arguments_of(node)[1:] or (-2, -1)
        axes = [*range(rank)]
        if name == "permute":
            axes = [axis % rank for axis in arguments[0]]
        else:
            one, other = (axis % rank for axis in arguments)
            axes[one], axes[other] = axes[other], axes[one]
        order = [axis - rank for axis in axes[-2:]]
    elif before[-2:] != after[-2:]:
        return []
    if order == [-2, -1]:
        return [*bands]
    return [band.turned for band in bands] if order == [-1, -2] else []


def _of(x: object, node: Node, kind: Outside, known: Known) -> Collection[Band] | None:
    """Of an operand, which may be broadcast to the result; None: all of it is so."""
    value = _constant(x)
    if value is not None and VALUES[kind](value):
        return None
    if not isinstance(x, Node) or not isinstance(value_of(x), Tensor):
        return ()
    mine, whole = (formulas(value_of(operand).shape[-2:]) for operand in (x, node))
    return known.get(x, {}).get(kind, ()) if mine == whole else ()


VALUES: Mapping[Outside, Callable[[float], bool]] = {
    Outside.NO: lambda value: value == 0,
    Outside.YES: lambda value: value == 1,
    Outside.LOWEST: lambda value: value == -inf,
    Outside.ZERO: lambda value: value == 0,
}


def _constant(x: object) -> float | None:
    """The value of all its elements, where they are made so."""
    if not isinstance(x, Node):
        return float(x) if isinstance(x, (bool, int, float)) else None
    match name_of(x), arguments_of(x):
        case (("zeros" | "zeros_like" | "new_zeros"), _):
            return 0.0
        case (("ones" | "ones_like" | "new_ones"), _):
            return 1.0
        case (
            ("full" | "full_like" | "scalar_tensor" | "new_full"),
            (*_, bool() | int() | float()),
        ):
            return float(arguments_of(x)[-1])
        case (("expand" | "view" | "unsqueeze" | "_to_copy" | "clone"), (Node() as inner, *_)):
            return _constant(inner)
    return None


def _either(alternatives: Sequence[Collection[Band] | None]) -> Collection[Band]:
    return [band for bands in alternatives for band in bands or ()]


def _both(alternatives: Sequence[Collection[Band] | None]) -> Collection[Band]:
    """None: has them all."""
    some = [bands for bands in alternatives if bands is not None]
    return [band for band in some[0] if all(band in bands for bands in some)] if some else ()


def _without(bands: Collection[Band], other: Collection[Band] | None) -> Collection[Band]:
    return [] if other is None else [band for band in bands if band not in other]


def _operands(node: Node, kind: Outside, known: Known) -> list[Collection[Band] | None]:
    return [_of(x, node, kind, known) for x in arguments_of(node)[:2]]


def _and(node: Node, known: Known) -> Facts:
    no, yes = (_operands(node, kind, known) for kind in (Outside.NO, Outside.YES))
    return {Outside.NO: _either(no), Outside.YES: _both(yes)}


def _or(node: Node, known: Known) -> Facts:
    no, yes = (_operands(node, kind, known) for kind in (Outside.NO, Outside.YES))
    return {Outside.NO: _both(no), Outside.YES: _either(yes)}


def _not(node: Node, known: Known) -> Facts:
    no, yes = (
        _of(arguments_of(node)[0], node, kind, known) or () for kind in (Outside.NO, Outside.YES)
    )
    return {Outside.NO: yes, Outside.YES: no}


def _chosen(node: Node, condition: Any, yes: Any, no: Any, known: Known) -> Facts:
    """Where the condition is known outside, what it chooses there; else what both are."""
    facts: dict[Outside, Collection[Band]] = {}
    if_no, if_yes = (_of(condition, node, kind, known) or () for kind in (Outside.NO, Outside.YES))
    for kind in (Outside.LOWEST, Outside.ZERO):
        first, second = (_of(x, node, kind, known) for x in (yes, no))
        bands = [*_both((first, second))]
        bands += [band for band in if_no if second is None or band in second]
        bands += [band for band in if_yes if first is None or band in first]
        facts[kind] = bands
    return facts


def _where(node: Node, known: Known) -> Facts:
    condition, yes, no = arguments_of(node)
    return _chosen(node, condition, yes, no, known)


def _masked_fill(node: Node, known: Known) -> Facts:
    x, condition, value = arguments_of(node)
    return _chosen(node, condition, value, x, known)


def _sum(node: Node, known: Known) -> Facts:
    lowest, zero = (_operands(node, kind, known) for kind in (Outside.LOWEST, Outside.ZERO))
    if "alpha" in node.kwargs:
        return {}
    if name_of(node) == "sub":  # without -inf less -inf
        lowest = [_without(lowest[0] or (), lowest[1])]
    return {Outside.LOWEST: _either(lowest), Outside.ZERO: _both(zero)}


def _product(node: Node, known: Known) -> Facts:
    """Zero times -inf is neither."""
    zero, lowest = (_operands(node, kind, known) for kind in (Outside.ZERO, Outside.LOWEST))
    factor = _constant(arguments_of(node)[1])
    is_kept = factor is not None and 0 < factor < inf
    zeros = _without(_without(_either(zero), lowest[0]), lowest[1])
    return {Outside.ZERO: zeros, Outside.LOWEST: lowest[0] or () if is_kept else ()}


def _quotient(node: Node, known: Known) -> Facts:
    zero = _operands(node, Outside.ZERO, known)[0] or ()
    return {**_product(node, known), Outside.ZERO: zero}


def _first_zero(node: Node, known: Known) -> Facts:
    return {Outside.ZERO: _of(arguments_of(node)[0], node, Outside.ZERO, known) or ()}


def _exp(node: Node, known: Known) -> Facts:
    return {Outside.ZERO: _of(arguments_of(node)[0], node, Outside.LOWEST, known) or ()}


def _softmax(node: Node, known: Known) -> Facts:
    x, axis, *_ = arguments_of(node)
    is_last = axis in (-1, value_of(node).ndim - 1)
    return {Outside.ZERO: _of(x, node, Outside.LOWEST, known) or ()} if is_last else {}


def _softmax_backward(node: Node, known: Known) -> Facts:
    return {Outside.ZERO: _of(arguments_of(node)[1], node, Outside.ZERO, known) or ()}


FOLLOWING: Mapping[str, Callable[[Node, Known], Facts]] = {
    **dict.fromkeys(("bitwise_and", "logical_and"), _and),
    **dict.fromkeys(("bitwise_or", "logical_or"), _or),
    **dict.fromkeys(("bitwise_not", "logical_not"), _not),
    **dict.fromkeys(("add", "sub"), _sum),
    **dict.fromkeys(("neg", "native_dropout_backward", TANH_BACKWARD), _first_zero),
    "where": _where,
    "masked_fill": _masked_fill,
    "mul": _product,
    "div": _quotient,
    "exp": _exp,
    "_softmax": _softmax,
    SOFTMAX_BACKWARD: _softmax_backward,
}
