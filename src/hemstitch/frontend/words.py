"""What a convolution along a text makes of a word, it makes once for each word there is.

A word's embedding is a line of a table E; a convolution multiplies it by a matrix W_k for each
place k that the word may have in a window, and adds up: y(t) is the sum of E[word(t + k)] W_k.
Where texts have more windows than there are words (of characters there are some hundred), the
products E W_k come first, and each window gathers lines of them and adds them up.

Backward adds up by index the gradients of windows, D_k[v] = sum of those in which the word v has
place k. Of that are made the gradients of the weights, E^T D_k, and of the table, the sum of
D_k W_k^T, which needs no embedding's gradient any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hemstitch.frontend.fake import call_before
from hemstitch.frontend.joint import (
    arguments_of,
    gradients_of,
    is_made_again,
    name_of,
    value_of,
)

aten = torch.ops.aten

TYPES = (torch.float32, torch.float64)  # halves would round each product of a window
GATHERED = 32  # multiplications in the time in which an element is gathered and added
TURNED = [0, 2, 1]  # [texts, words, features] as a convolution has it, or back
PLAIN = ([0], [1], False, [0], 1)  # no padding, dilation, transposition, output padding, groups


@dataclass(frozen=True, slots=True)
class _Convolution:
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


@dataclass(frozen=True, slots=True)
class _Text:
    """`table[words]`, which only `convolutions` read. `gradient`: of the table."""

    table: Node
    words: Node
    convolutions: Sequence[_Convolution]
    gradient: Node | None


def by_words(graph: Graph) -> None:
    """Change `graph`, one of AOTAutograd's."""
    for node in graph.find_nodes(op="call_function", target=aten.embedding.default):
        text = _text(node)
        if text is not None and _gains(text):
            _rewrite(text)
            graph.eliminate_dead_code()


def _gains(text: _Text) -> bool:
    """Multiplications that are spared, more than what gathering takes the time of."""
    words = value_of(text.table).shape[0]
    total = 0
    for each in text.convolutions:
        channels, features, places = each.sizes
        texts, windows = each.windows
        spared = (texts * windows - words) * features - texts * windows * GATHERED
        total += spared * channels * places
    return total > 0


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
            return not is_made_again(node)
    return False


def _is_backward(node: Node) -> bool:
    return node.target is aten.convolution_backward.default


def _convolution(node: Node) -> _Convolution | None:
    if node.target is not aten.convolution.default or is_made_again(node):
        return None
    image, weight, bias, [stride], *how = arguments_of(node)
    if not _turns(image) or tuple(how) != PLAIN:
        return None
    again = gradients_of(node)
    if len(again) > 1:
        return None
    return _Convolution(node, weight, bias, stride, again[0] if again else None)


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


def _rewrite(text: _Text) -> None:
    parts = [_Windows.of(text, each).rewrite() for each in text.convolutions]
    gradients = [part for part in parts if part is not None]
    if text.gradient is None:
        return
    at, total = text.gradient, gradients[0]
    for part in gradients[1:]:
        total = call_before(at, aten.add.Tensor, total, part)
    _, _, rows, padding, _ = arguments_of(at)
    if padding >= 0:
        device = value_of(text.words).device
        row = call_before(at, aten.arange.default, rows, device=device)
        is_padding = call_before(at, aten.eq.Scalar, row, padding)
        mask = call_before(at, aten.unsqueeze.default, is_padding, 1)
        total = call_before(at, aten.masked_fill.Scalar, total, mask, 0)
    at.replace_all_uses_with(total)


@dataclass(frozen=True, slots=True)
class _Windows:
    """`matrix` [features, places x channels]: of the lines of `table @ matrix`, one for each word
    at each place, a window adds up one for each of its places."""

    text: _Text
    convolution: _Convolution
    matrix: Node

    @staticmethod
    def of(text: _Text, convolution: _Convolution) -> _Windows:
        at, (channels, features, places) = convolution.node, convolution.sizes
        turned = call_before(at, aten.permute.default, convolution.weight, [1, 2, 0])
        matrix = call_before(at, aten.reshape.default, turned, [features, places * channels])
        return _Windows(text, convolution, matrix)

    def rewrite(self) -> Node | None:
        """Gives the table's gradient, where it has one."""
        self._forward()
        again = self.convolution.again
        return None if again is None else self._backward(again)

    def _forward(self) -> None:
        at, table = self.convolution.node, self.text.table
        (channels, _, places), (_, windows) = self.convolution.sizes, self.convolution.windows
        stride = self.convolution.stride
        products = call_before(at, aten.mm.default, table, self.matrix)
        shape = [value_of(table).shape[0] * places, channels]
        lines = call_before(at, aten.reshape.default, products, shape)
        total = self.convolution.bias
        for place in range(places):
            end = place + stride * (windows - 1) + 1
            word = call_before(at, aten.slice.Tensor, self.text.words, 1, place, end, stride)
            number = self._number(at, word, place)
            found = call_before(at, aten.embedding.default, lines, number)
            total = found if total is None else call_before(at, aten.add.Tensor, total, found)
        assert total is not None
        at.replace_all_uses_with(_contiguous(at, total, TURNED))

    def _number(self, at: Node, word: Node, place: Node | int) -> Node:
        """Of the line of a word at a place."""
        first = call_before(at, aten.mul.Tensor, word, self.convolution.sizes[-1])
        return call_before(at, aten.add.Tensor, first, place)

    def _numbers(self, at: Node) -> Node:
        """[texts, windows, places]"""
        device, stride = value_of(self.text.words).device, self.convolution.stride
        (*_, places), (_, windows) = self.convolution.sizes, self.convolution.windows
        place = call_before(at, aten.arange.default, places, device=device)
        window = call_before(at, aten.arange.default, windows, device=device)
        first = call_before(at, aten.mul.Tensor, window, stride)
        column = call_before(at, aten.unsqueeze.default, first, 1)
        position = call_before(at, aten.add.Tensor, column, place)
        word = call_before(at, aten.index.Tensor, self.text.words, [None, position])
        return self._number(at, word, place)

    def _backward(self, at: Node) -> Node | None:
        table, (channels, features, places) = self.text.table, self.convolution.sizes
        rows, (texts, windows) = value_of(table).shape[0], self.convolution.windows
        given = arguments_of(at)[0]
        turned = call_before(at, aten.permute.default, given, TURNED)
        apart = call_before(at, aten.unsqueeze.default, turned, 2)
        each = call_before(at, aten.expand.default, apart, [texts, windows, places, channels])
        summed = call_before(
            *(at, aten.embedding_dense_backward.default),
            *(each, self._numbers(at), rows * places, -1, False),
        )
        of_words = call_before(at, aten.reshape.default, summed, [rows, places * channels])
        for result in _results(at, 1):
            across = call_before(at, aten.t.default, table)
            product = call_before(at, aten.mm.default, across, of_words)
            weight = call_before(at, aten.reshape.default, product, [features, places, channels])
            result.replace_all_uses_with(_contiguous(at, weight, [2, 0, 1]))
        for result in _results(at, 2):
            result.replace_all_uses_with(call_before(at, aten.sum.dim_IntList, given, [0, 2]))
        if self.text.gradient is None:
            return None
        back = call_before(at, aten.t.default, self.matrix)
        return call_before(at, aten.mm.default, of_words, back)


def _contiguous(at: Node, node: Node, order: Sequence[int]) -> Node:
    """As the library gives it."""
    turned = call_before(at, aten.permute.default, node, list(order))
    return call_before(at, aten.clone.default, turned, memory_format=torch.contiguous_format)
