"""Convolutions of images, on processors, read and give them by channels (NHWC in memory), whichever
way the program has them. The library multiplies rows of channels as they lie; what lies by rows it
packs, in most calls anew, which takes longer than the products.

Rows, what a convolution along one axis reads, lie so in inference where it may become a product of
matrices (`matmul/patterns/convolutions.py`); the library would lay them back.

One that reads nothing but arguments, whose results are nothing but returned, and that multiplies
little, is left as the program has it: the copies would be for it alone, and take longer.

What is changed is how values of the traced graph are said to lie. What the program gets, and what
shares memory with it, lies as it did.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import (
    is_channels_last_contiguous_or_false,
    is_contiguous_or_false,
)
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

from hemstitch.capture.effects import has_effects
from hemstitch.capture.fake_calls import value_of_call
from hemstitch.capture.traced_nodes import (
    arguments_of,
    base_of,
    elements_of,
    formulas,
    is_given,
    is_library,
    name_of,
    value_of,
)
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.matmul.patterns.convolutions import MOST_STEPS, ROWS_LAST
from hemstitch.runtime.torch_dtypes import from_torch
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.toolchain.jit import host_target

aten = torch.ops.aten
# Which arguments are images.
CONVOLUTIONS: Mapping[Any, tuple[int, ...]] = {
    aten.convolution.default: (0,),
    aten.convolution_backward.default: (0, 1),
}
# Calls whose kernels read whatever strides they are given. Others may take an operand to lie as it
# did when it was traced, which no schema says, as `_weight_norm_interface_backward` does.
OF_ANY_STRIDES = frozenset(
    (
        *("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm"),
        *("max_pool2d_with_indices", "max_pool2d_with_indices_backward"),
        *("avg_pool2d", "avg_pool2d_backward"),
        *("adaptive_max_pool2d", "adaptive_max_pool2d_backward"),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"),
        *("upsample_nearest2d", "upsample_nearest2d_backward"),
        *("upsample_bilinear2d", "upsample_bilinear2d_backward"),
        *("upsample_bicubic2d", "upsample_bicubic2d_backward"),
        *("grid_sampler_2d", "grid_sampler_2d_backward", "native_group_norm"),
        *("_scaled_dot_product_flash_attention_for_cpu",),
        *("_scaled_dot_product_flash_attention_for_cpu_backward",),
        *("sort", "topk", "cumsum", "index_put", "_unsafe_index_put", "scatter_add"),
    )
)
RANK = 4  # of images
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def propagate_channels_last(graph: Graph, *, rows: bool = False) -> None:
    """Change `graph`, one of AOTAutograd's: calls, and the strides of what they make. `rows`: not
    only images."""
    # PyTorch says no types here.
    if torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled:  # type: ignore[no-untyped-call]
        _Rearranged(graph, rows).run()


class _Rearranged:
    """`before`: for what lies in another way now, what it was. `laid`: copies by channels."""

    def __init__(self, graph: Graph, rows: bool) -> None:
        self.graph = graph
        self.rows = rows
        self.before: dict[Node, Any] = {}
        self.laid: dict[Node, Node] = {}
        self.returned = {base_of(node) for node in graph.output_node().all_input_nodes}

    def run(self) -> None:
        for node in [*self.graph.nodes]:
            images = _images(node)
            for image in [*images, *(_rows(node) if self.rows else ())]:
                if not _is_by_channels(image):
                    node.replace_input_with(image, self._by_channels(image, node))
            is_call = is_library(node) and node.target is not operator.getitem
            if is_call and name_of(node) not in OF_ANY_STRIDES:
                self._as_before(node)
            elif images or not self.before.keys().isdisjoint(node.all_input_nodes):
                self._lie_anew(node)

    def _by_channels(self, image: Node, reader: Node) -> Node:
        if image not in self.laid:
            if value_of(image).dim() == RANK:
                self.laid[image] = self._copy(image, torch.channels_last, reader)
            else:
                seen = self._call(aten.permute.default, (image, ROWS_LAST), reader)
                laid = self._copy(seen, torch.contiguous_format, reader)
                self.laid[image] = self._call(aten.permute.default, (laid, ROWS_LAST), reader)
        return self.laid[image]

    def _as_before(self, node: Node) -> None:
        """No kernel makes it, and it may speak of memory."""
        for source in node.all_input_nodes:
            if source in self.before:
                copy = self._copy(source, torch.contiguous_format, node)
                copy.meta["val"] = self.before[source]
                node.replace_input_with(source, copy)

    def _lie_anew(self, node: Node) -> None:
        is_returned = node in self.returned
        if node.op != "call_function" or has_effects(node):
            return
        if is_returned and not _images(node):
            return
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default  # kernels look at no strides; these refuse some
        before, value = value_of(node), value_of_call(node)
        if _strides(value) == _strides(before):
            return
        node.meta["val"] = value
        if is_returned:
            self._return_as_before(node, before)
        else:
            self.before[node] = before

    def _return_as_before(self, node: Node, before: Tensor) -> None:
        copy = self._copy(node, torch.contiguous_format, node.next)
        copy.meta["val"] = before
        node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)

    def _copy(self, source: Node, lie: torch.memory_format, reader: Node) -> Node:
        return self._call(aten.clone.default, (source,), reader, memory_format=lie)

    def _call(self, target: Any, arguments: tuple[Any, ...], reader: Node, **keywords: Any) -> Node:
        source = arguments[0]
        with self.graph.inserting_before(reader):
            call = self.graph.call_function(target, arguments, keywords)
        call.meta = {key: source.meta[key] for key in ("stack_trace",) if key in source.meta}
        call.meta["val"] = value_of_call(call)
        return call


def _images(node: Node) -> list[Node]:
    """What a convolution reads that may lie by channels."""
    if node.target in CONVOLUTIONS and _is_alone(node) and _multiplies_little(node):
        return []
    images = [node.args[place] for place in CONVOLUTIONS.get(node.target, ())]
    nodes = [image for image in images if isinstance(image, Node)]
    return nodes if all(map(_may_lie_by_channels, nodes)) else []


def _is_alone(node: Node) -> bool:
    users = [*node.users]
    parts = [part for user in users if user.target is operator.getitem for part in user.users]
    readers = [user for user in (*users, *parts) if user.target is not operator.getitem]
    return all(map(is_given, node.all_input_nodes)) and all(r.op == "output" for r in readers)


def _multiplies_little(node: Node) -> bool:
    """So that copies of what it reads and writes take longer than they gain, by the units of a
    processor with such vectors."""
    first, second, *others = arguments_of(node)
    is_backward = node.target is aten.convolution_backward.default
    result, image, weight = (first, second, others[0]) if is_backward else (node, first, second)
    is_transposed = others[5 if is_backward else 4]
    rows = elements_of(weight) // (value_of(weight).shape[0] or 1)
    products = elements_of(image if is_transposed else result) * rows
    dtype = from_torch(value_of(image).dtype)
    units = generic_cpu(1, host_target().lanes).matrix_units.get(dtype)
    if units is None:
        return False
    bytes_ = dtype.bytes * (elements_of(image) + elements_of(result))
    # With 43 multiplications for each element (1 x 1, 64 to 128 channels) and 72 (3 x 3, 16
    # channels) copies take longer than they gain, with 124 (7 x 7, 3 to 64 channels, every other
    # line) and 288 they gain (Zen 3, one thread).
    gained = CPU.library_packing_share * 2 * products / units.operations_per_second
    return gained < bytes_ / units.operand_bytes_per_second


def _may_lie_by_channels(image: Node, rank: int = RANK) -> bool:
    value = value_of(image)
    return value.dim() == rank and value.device.type == "cpu" and value.dtype in TYPES


def _rows(node: Node) -> list[Node]:
    """What a convolution along one axis reads, if that may be a product."""
    if node.target is not aten.convolution.default:
        return []
    x, weight, _, _, _, dilation, transposed, _, groups = node.args
    assert isinstance(x, Node) and isinstance(weight, Node)
    is_usual = (dilation, transposed, groups) == ([1], False, 1)
    is_product = is_usual and value_of(weight).shape[2] <= MOST_STEPS
    return [x] if is_product and _may_lie_by_channels(x, RANK - 1) else []


def _is_by_channels(image: Node) -> bool:
    value = value_of(image)
    if value.dim() < RANK:
        return bool(is_contiguous_or_false(value.permute(ROWS_LAST)))
    return bool(is_channels_last_contiguous_or_false(value))


def _strides(value: Any) -> list[tuple[object, ...]]:
    return [formulas(leaf.stride()) for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
