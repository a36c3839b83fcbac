"""What a convolution along a text makes of a word, it makes once for each word there is.

A word's embedding is a line of a table E; a convolution multiplies it by a matrix W_k for each
place k that the word may have in a window, and adds up: y(t) is the sum of E[word(t + k)] W_k.
Where texts have more windows than there are words (of characters there are some hundred), the
products E W_k come first, and each window gathers lines of them and adds them up.

Backward adds up by index the gradients of windows, D_k[v] = sum of those in which the word v has
place k. Of that are made the gradients of the weights, E^T D_k, and of the table, the sum of
D_k W_k^T, which needs no embedding's gradient any more.

Where only maxima along a text go on, few windows have a gradient, each in one channel (see
`sparse_max_pool.py`). Then each such element adds a multiple of its words' lines to the gradient of
its weights, and of its weights to those of its words: no product is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hemstitch.capture.effects import drop_unread
from hemstitch.capture.fake_calls import call_before
from hemstitch.capture.traced_nodes import (
    arguments_of,
    gradients_of,
    is_recomputed,
    name_of,
    value_of,
)
from hemstitch.joint.sparse_max_pool import Pooled, pooled

aten = torch.ops.aten

TYPES = (torch.float32, torch.float64)  # halves would round each product of a window
GATHERED = 32  # multiplications in the time in which an element is gathered and added
FEW = 16  # the same in longer lines, one for each element that a maximum gives a gradient
TURNED = [0, 2, 1]  # [texts, words, features] as a convolution has it, or back
PLAIN = ([0], [1], False, [0], 1)  # no padding, dilation, transposition, output padding, groups


@dataclass(frozen=True, slots=True)
class _HoistedConvolution:
    """`node` is it, `again` what makes its gradients, if anything does."""

    node: Node
    weight: Node
    bias: Node | None
    stride: int
    again: Node | None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Channels, features and places of its weight."""
        channels, features, places = value_of(self.weight).shape
        return channels, features, places

    @property
    def windows(self) -> tuple[int, int]:
        """Texts, and windows in each."""
        texts, _, windows = value_of(self.node).shape
        return texts, windows

    def few(self, words: int) -> Pooled | None:
        """The elements that have a gradient, if to add them up one by one takes less time than
        products with all windows or of so many words."""
        found = pooled(arguments_of(self.again)[0]) if self.again is not None else None
        if found is None:
            return None
        (texts, windows), (*_, maxima) = self.windows, found.shape
        return found if FEW * texts * maxima < min(words, texts * windows) else None


@dataclass(frozen=True, slots=True)
class _Text:
    """`table[words]`, which only `convolutions` read. `gradient`: of the table."""

    table: Node
    words: Node
    convolutions: Sequence[_HoistedConvolution]
    gradient: Node | None


def hoist_embeddings(graph: Graph) -> None:
    """Change `graph`, one of AOTAutograd's."""
    for node in graph.find_nodes(op="call_function", target=aten.embedding.default):
        text = _text(node)
        if text is not None and _rewrite(text):
            drop_unread(graph)


# --- what there is


def _text(node: Node) -> _Text | None:
    table, words, *_ = node.args
    assert isinstance(table, Node) and isinstance(words, Node)
    if value_of(table).dtype not in TYPES or value_of(words).dim() != len(TURNED) - 1:
        return None
    turned = [*node.users]
    readers = [user for each in turned for user in each.users]
    calls = [_convolution(reader) for reader in readers if not _is_backward(reader)]
    found = [each for each in calls if each is not None]
    made = {each.again for each in found}
    is_known = all(map(_turns, turned)) and None not in calls and bool(found)
    if not is_known or any(_is_backward(each) and each not in made for each in readers):
        return None
    if not all(isinstance(n, int) for each in (node, *readers) for n in _all_sizes(each)):
        return None
    parts = [part for each in found for part in _results(each.again, 0)]
    gradient = _gradient(parts, words) if parts else None
    return None if parts and gradient is None else _Text(table, words, found, gradient)


def _turns(node: Node) -> bool:
    match name_of(node), arguments_of(node):
        case ("transpose", (_, 1, 2) | (_, 2, 1)) | ("permute", (_, [0, 2, 1])):
            return not is_recomputed(node)
    return False


def _is_backward(node: Node) -> bool:
    return node.target is aten.convolution_backward.default


def _convolution(node: Node) -> _HoistedConvolution | None:
    if node.target is not aten.convolution.default or is_recomputed(node):
        return None
    match arguments_of(node):
        case (image, weight, bias, [stride], *how) if _turns(image) and tuple(how) == PLAIN:
            again = gradients_of(node)
        case _:
            return None
    if len(again) > 1:
        return None
    return _HoistedConvolution(node, weight, bias, stride, again[0] if again else None)


def _results(node: Node | None, number: int) -> Iterator[Node]:
    for user in () if node is None else node.users:
        if user.args[1] == number:
            yield user


def _gradient(parts: Sequence[Node], words: Node) -> Node | None:
    """The table's, if these gradients of the text, and nothing else, go into it."""
    node = parts[0]
    while len(node.users) == 1 and node.target is not aten.embedding_dense_backward.default:
        (node,) = node.users
    if node.target is not aten.embedding_dense_backward.default:
        return None
    _, indices, _, _, by_frequency = arguments_of(node)
    is_whole = indices is words and not by_frequency and Counter(_addends(node)) == Counter(parts)
    return node if is_whole else None


def _addends(gradient: Node) -> Iterator[Node]:
    """What is added up in it, as long as nobody else reads the sums."""
    waiting = [arguments_of(gradient)[0]]
    while waiting:
        node = waiting.pop()
        match node.target, arguments_of(node):
            case aten.add.Tensor, (Node() as one, Node() as other) if _is_inside(node):
                waiting += [one, other]
            case _, (Node() as turned, *_) if _turns(node) and _is_inside(node):
                waiting.append(turned)
            case _:
                yield node


def _is_inside(node: Node) -> bool:
    return len(node.users) == 1 and not node.kwargs


def _all_sizes(node: Node) -> Iterator[object]:
    values = value_of(node)
    for value in values if isinstance(values, (tuple, list)) else (values,):
        yield from value.shape if isinstance(value, Tensor) else ()


# --- what there is instead


def _rewrite(text: _Text) -> bool:
    words = value_of(text.table).shape[0]
    trained = [each for each in text.convolutions if each.again is not None]
    few = {each: found for each in trained if (found := each.few(words)) is not None}
    is_forward = _gains(text.convolutions, words)
    if not is_forward and (not few or len(few) < len(trained)):
        return False
    if is_forward:
        for together in _groups(text.convolutions):
            _forward(text, together)
    _Backward(text, few).rewrite(trained)
    return True


def _gains(convolutions: Sequence[_HoistedConvolution], words: int) -> bool:
    """Multiplications are spared, more than what gathering takes the time of."""
    total = 0
    for each in convolutions:
        channels, features, places = each.sizes
        texts, windows = each.windows
        spared = (texts * windows - words) * features - texts * windows * GATHERED
        total += spared * channels * places
    return total > 0


def _groups(convolutions: Sequence[_HoistedConvolution]) -> Sequence[Sequence[_HoistedConvolution]]:
    """Those whose weights are all there before the first of them."""
    first = min(each.node for each in convolutions)
    if all(each.weight < first for each in convolutions):
        return [convolutions]
    return [[each] for each in convolutions]


@dataclass(frozen=True, slots=True)
class _Weights:
    """`lines` [numbers, features]: of each convolution, from its `first` on, one for each place in
    a window and each channel."""

    lines: Node
    first: Mapping[_HoistedConvolution, int]

    @staticmethod
    def of(at: Node, convolutions: Sequence[_HoistedConvolution]) -> _Weights:
        parts = []
        for each in convolutions:
            channels, features, places = each.sizes
            turned = call_before(at, aten.permute.default, each.weight, [2, 0, 1])
            shape = [places * channels, features]
            parts.append(call_before(at, aten.reshape.default, turned, shape))
        ends = accumulate((value_of(part).shape[0] for part in parts), initial=0)
        lines = call_before(at, aten.cat.default, parts) if len(parts) > 1 else parts[0]
        return _Weights(lines, dict(zip(convolutions, ends)))


def _forward(text: _Text, convolutions: Sequence[_HoistedConvolution]) -> None:
    first = min(each.node for each in convolutions)
    weights = _Weights.of(first, convolutions)
    turned = call_before(first, aten.t.default, weights.lines)
    products = call_before(first, aten.mm.default, text.table, turned)
    for each in convolutions:
        at, total, (channels, _, places) = each.node, each.bias, each.sizes
        for place in range(places):
            column = weights.first[each] + place * channels
            lines = call_before(at, aten.slice.Tensor, products, 1, column, column + channels)
            end = place + each.stride * (each.windows[1] - 1) + 1
            word = call_before(at, aten.slice.Tensor, text.words, 1, place, end, each.stride)
            found = call_before(at, aten.embedding.default, lines, word)
            total = found if total is None else call_before(at, aten.add.Tensor, total, found)
        assert total is not None
        at.replace_all_uses_with(_contiguous(at, total, TURNED))


@dataclass(slots=True)
class _Backward:
    """`few`: of the convolutions of which few elements have a gradient, these. `totals`: gradients
    of the table that are to be added up; `elements`: for more of them a value, a word and the
    number of a line of weights each."""

    text: _Text
    few: Mapping[_HoistedConvolution, Pooled]
    totals: list[Node] = field(default_factory=list)
    elements: list[tuple[Node, Node, Node]] = field(default_factory=list)

    def rewrite(self, convolutions: Sequence[_HoistedConvolution]) -> None:
        if not convolutions:
            return
        weights = _Weights.of(min(each.again for each in convolutions if each.again), convolutions)
        for each in convolutions:
            if each in self.few:
                self._of_few(each, self.few[each], weights)
            else:
                self._of_all(each)
        if self.text.gradient is not None:
            self._of_table(self.text.gradient, weights)

    def _of_few(self, convolution: _HoistedConvolution, few: Pooled, weights: _Weights) -> None:
        at, device = convolution.again, value_of(self.text.words).device
        assert at is not None
        values, windows = few.elements(at)
        (texts, channels, maxima), (*_, places) = few.shape, convolution.sizes
        shape = [texts, channels, maxima, places]
        place = call_before(at, aten.arange.default, places, device=device)
        position = self._positions(at, windows, convolution.stride, place)
        flat = call_before(at, aten.reshape.default, position, [texts, -1])
        found = call_before(at, aten.gather.default, self.text.words, 1, flat)
        word = call_before(at, aten.reshape.default, found, shape)
        column = call_before(at, aten.unsqueeze.default, values, 3)
        for result in _results(at, 1):
            lines = call_before(at, aten.embedding.default, self.text.table, word)
            factor = call_before(at, aten.unsqueeze.default, column, 4)
            product = call_before(at, aten.mul.Tensor, lines, factor)
            weight = call_before(at, aten.sum.dim_IntList, product, [0, 2])
            result.replace_all_uses_with(_contiguous(at, weight, TURNED))
        for result in _results(at, 2):
            result.replace_all_uses_with(call_before(at, aten.sum.dim_IntList, values, [0, 2]))
        channel = call_before(at, aten.arange.default, channels, device=device)
        upright = call_before(at, aten.reshape.default, channel, [channels, 1, 1])
        step = call_before(at, aten.mul.Tensor, place, channels)
        behind = call_before(at, aten.add.Tensor, upright, step)
        number = call_before(at, aten.add.Tensor, behind, weights.first[convolution])
        each = (call_before(at, aten.expand.default, x, shape) for x in (column, word, number))
        value, word, number = (call_before(at, aten.reshape.default, x, [-1]) for x in each)
        self.elements.append((value, word, number))

    def _of_all(self, convolution: _HoistedConvolution) -> None:
        at, table = convolution.again, self.text.table
        assert at is not None
        rows, (texts, windows) = value_of(table).shape[0], convolution.windows
        channels, features, places = convolution.sizes
        given = arguments_of(at)[0]
        turned = call_before(at, aten.permute.default, given, TURNED)
        apart = call_before(at, aten.unsqueeze.default, turned, 2)
        each = call_before(at, aten.expand.default, apart, [texts, windows, places, channels])
        summed = call_before(
            *(at, aten.embedding_dense_backward.default),
            *(each, self._numbers(at, convolution), rows * places, -1, False),
        )
        of_words = call_before(at, aten.reshape.default, summed, [rows, places * channels])
        for result in _results(at, 1):
            across = call_before(at, aten.t.default, table)
            product = call_before(at, aten.mm.default, across, of_words)
            weight = call_before(at, aten.reshape.default, product, [features, places, channels])
            result.replace_all_uses_with(_contiguous(at, weight, [2, 0, 1]))
        for result in _results(at, 2):
            result.replace_all_uses_with(call_before(at, aten.sum.dim_IntList, given, [0, 2]))
        lines = _Weights.of(at, [convolution]).lines
        self.totals.append(call_before(at, aten.mm.default, of_words, lines))

    def _numbers(self, at: Node, convolution: _HoistedConvolution) -> Node:
        """[texts, windows, places]: of the line that the word has at the place."""
        device, (*_, places) = value_of(self.text.words).device, convolution.sizes
        place = call_before(at, aten.arange.default, places, device=device)
        window = call_before(at, aten.arange.default, convolution.windows[1], device=device)
        position = self._positions(at, window, convolution.stride, place)
        word = call_before(at, aten.index.Tensor, self.text.words, [None, position])
        first = call_before(at, aten.mul.Tensor, word, places)
        return call_before(at, aten.add.Tensor, first, place)

    def _positions(self, at: Node, window: Node, stride: int, place: Node) -> Node:
        """Of the word at each place in a window."""
        first = call_before(at, aten.mul.Tensor, window, stride)
        column = call_before(at, aten.unsqueeze.default, first, value_of(window).dim())
        return call_before(at, aten.add.Tensor, column, place)

    def _of_table(self, at: Node, weights: _Weights) -> None:
        _, _, rows, padding, _ = arguments_of(at)
        if self.elements:
            parts = [
                call_before(at, aten.cat.default, [*part]) if len(part) > 1 else part[0]
                for part in zip(*self.elements)
            ]
            value, word, number = parts
            lines = call_before(at, aten.embedding.default, weights.lines, number)
            column = call_before(at, aten.unsqueeze.default, value, 1)
            sent = call_before(at, aten.mul.Tensor, lines, column)
            how = rows, -1, False
            added = call_before(at, aten.embedding_dense_backward.default, sent, word, *how)
            self.totals.append(added)
        total, *others = self.totals
        for other in others:
            total = call_before(at, aten.add.Tensor, total, other)
        if padding >= 0:
            device = value_of(self.text.words).device
            row = call_before(at, aten.arange.default, rows, device=device)
            is_padding = call_before(at, aten.eq.Scalar, row, padding)
            mask = call_before(at, aten.unsqueeze.default, is_padding, 1)
            total = call_before(at, aten.masked_fill.Scalar, total, mask, 0)
        at.replace_all_uses_with(total)


def _contiguous(at: Node, node: Node, order: Sequence[int]) -> Node:
    """As the library gives it."""
    turned = call_before(at, aten.permute.default, node, list(order))
    return call_before(at, aten.clone.default, turned, memory_format=torch.contiguous_format)
