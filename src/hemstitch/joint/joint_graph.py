"""The joint graph of forward and backward, as traced and in the graph IR. Takes AOTAutograd's
graph; gives for each traced value what it is in the IR: what it is made of, what that costs, and
whether a call of the library gives it.

AOTAutograd wants two graphs of `torch.fx` in return, which must run without a compiler too. So what
is saved is a traced value, and what backward computes again is a traced operation. What the two
cost is read off the IR, which the planner works on as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Graph as TracedGraph
from torch.fx import GraphModule
from torch.fx import Node as Traced
from torch.utils._pytree import tree_leaves

from hemstitch.capture.effects import drop_unread
from hemstitch.capture.export import Exporter
from hemstitch.capture.fake_calls import call_before
from hemstitch.capture.library_calls import WITHIN
from hemstitch.capture.traced_nodes import base_of, formulas, is_recomputed, is_tensor, value_of
from hemstitch.capture.translation import tensor_values
from hemstitch.errors import UnsupportedError
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Graph, Node, Op, Output, toposort
from hemstitch.ir.ops import OPS, combines
from hemstitch.ir.types import DType
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.matmul.mask_analysis import masked_matmuls

aten = torch.ops.aten
Transform = Callable[[Graph, Builder], Mapping[Node, Node]]
IN_MEMORY = (Op.RESULT, Op.SCATTER_ADD)  # before anything reads it


@dataclass(frozen=True, slots=True)
class TracedOperation:
    """What computes one traced value. `sources`: the traced values that it reads, without those of
    which it reads no more than the shape. `work`: what it computes, in bytes moved. `is_call`: a
    call of the library gives the value, or one like that: no kernel that reads it makes it."""

    sources: tuple[Traced, ...]
    work: float
    is_call: bool


@dataclass(frozen=True, slots=True)
class JointGraph:
    """`values`: of each traced tensor, or of each that one operation gives. `effects`: calls that
    run though nobody reads them. `hints`: example values of the symbols of sizes."""

    traced: TracedGraph
    values: Mapping[Traced, tuple[Node, ...]]
    effects: tuple[Node, ...]
    hints: Mapping[str, int]
    builder: Builder
    operations: dict[Traced, TracedOperation] = field(default_factory=dict)

    @staticmethod
    def of(joint: GraphModule) -> JointGraph:
        """Raises UnsupportedError."""
        return JointGraph(joint.graph, *tensor_values(joint))

    @property
    def is_on_cpu(self) -> bool:
        return all(
            value.device.type == "cpu"
            for node in self.values
            for value in tree_leaves(value_of(node))
            if isinstance(value, torch.Tensor)
        )

    @property
    def has_checkpoints(self) -> bool:
        """The program wants values made again, and not kept."""
        return any(map(is_recomputed, self.values))

    def is_call(self, traced: Traced) -> bool:
        return self.operation(traced).is_call

    def operation(self, traced: Traced) -> TracedOperation:
        if traced not in self.operations:
            self.operations[traced] = self._operation(traced)
        return self.operations[traced]

    def rewritten(self, transform: Transform) -> JointGraph:
        """With what `transform` says takes the place of values, `traced` changed in place. A traced
        operation stays if it gives the new value of its result of those of its operands; else calls
        that give it take its place, if the value can be exported."""
        wanted = transform(Graph((), self._outputs(), self.effects), self.builder)
        if all(wanted.get(v, v) is v for values in self.values.values() for v in values):
            return self
        current, exporter = dict[Node, Node](), Exporter()
        for traced, operands in {traced: self._operands(traced) for traced in self.values}.items():
            self._replace(traced, operands, wanted, current, exporter)
        drop_unread(self.traced)
        rest = {traced: self.values.get(traced, ()) for traced in self.traced.nodes}
        new = {traced: tuple(map(current.__getitem__, old)) for traced, old in rest.items() if old}
        new |= {traced: (value,) for value, traced in exporter.traced.items() if traced in rest}
        effects = tuple(wanted.get(call, call) for call in self.effects)
        return replace(self, values=new, effects=effects, operations={})

    def _outputs(self) -> tuple[Output, ...]:
        returned = self.traced.output_node().all_input_nodes
        return tuple(Output(value, ()) for node in returned for value in self.values.get(node, ()))

    def _replace(
        self,
        traced: Traced,
        operands: Iterable[Traced],
        wanted: Mapping[Node, Node],
        current: dict[Node, Node],
        exporter: Exporter,
    ) -> None:
        """`current`: what is there in place of an old value."""
        old = self.values[traced]
        read = [value for operand in operands for value in self.values[operand]]
        stops = {value: current[value] for value in read}
        kept = [_substituted(value, stops, self.builder) for value in old]
        new = [wanted.get(value, as_is) for value, as_is in zip(old, kept)]
        current.update(zip(old, kept))
        if is_tensor(traced) and kept != new and not is_recomputed(traced):
            with suppress(UnsupportedError):
                replacement = exporter.traced_form(new[0], traced)
                replacement = _laid_as(traced, replacement)
                traced.replace_all_uses_with(replacement)
                exporter.traced[new[0]] = replacement
                current[old[0]] = new[0]
                return
        if is_tensor(traced):
            exporter.traced.setdefault(kept[0], traced)

    def _operands(self, traced: Traced) -> list[Traced]:
        """And what these are views of: the IR may have folded the views."""
        read = [x for operand in _tensors_read(traced) for x in (operand, base_of(operand))]
        return [operand for operand in read if operand in self.values]

    def with_bands(self) -> JointGraph:
        """Itself, with what of each traced matmul is of use said in its `meta`: a mask of forward
        is not seen in a backward graph that reads the masked scores."""
        roots = [output.value for output in self._outputs()]
        bands = masked_matmuls(self.nodes(), roots)
        for traced, values in self.values.items():
            if values[0].op is Op.RESULT and values[0].inputs[0] in bands:
                traced.meta[WITHIN] = bands[values[0].inputs[0]]
        return self

    def nodes(self) -> list[Node]:
        """Producers before consumers."""
        return toposort(value for values in self.values.values() for value in values)

    def _operation(self, traced: Traced) -> TracedOperation:
        """A walk in the IR from the value to those of the operands."""
        read: dict[Node, Traced] = {}
        for source in self._operands(traced):
            for value in self.values[source]:
                read.setdefault(value, source)
        sources: dict[Traced, None] = {}
        values = self.values.get(traced, ())
        work, stack, seen = 0.0, [*values], {*values}
        while stack:
            node = stack.pop()
            if node in read:
                sources[read[node]] = None
                continue
            work += self._work(node)
            stack += [operand for operand in node.inputs if operand not in seen]
            seen.update(node.inputs)
        # What nobody reads as a tensor has no values.
        is_opaque = not values and isinstance(value_of(traced), (torch.Tensor, tuple, list))
        is_given_by_call = any(value.op in IN_MEMORY and value not in read for value in values)
        is_call = traced.op == "call_function" and (is_opaque or is_given_by_call)
        return TracedOperation(tuple(sources), work, is_call)

    def _work(self, node: Node) -> float:
        """A kernel that computes a sum again walks along its operand once more."""
        worked_on = node.inputs[0] if combines(node.op) else node
        flops: float = OPS[node.op].flops
        if any(operand.type.dtype is DType.F64 for operand in node.inputs):
            flops *= CPU.double_function_ratio if OPS[node.op].is_expensive else CPU.double_ratio
        elements = self.elements(worked_on) if flops else 0
        walked = CPU.cached_byte * worked_on.type.dtype.bytes if combines(node.op) else 0.0
        # A mask of dropout is better made again from its seed than written and read as a byte.
        return (CPU.bytes_per_flop * flops + walked) * elements

    def elements(self, node: Node) -> int:
        """For a symbolic size the one that was traced."""
        count = 1
        for size in node.shape:
            count *= size if isinstance(size, int) else evaluate(size, self.hints)
        return count


def _substituted(node: Node, values: Mapping[Node, Node], builder: Builder) -> Node:
    if node in values:
        return values[node]
    inputs = [_substituted(operand, values, builder) for operand in node.inputs]
    if all(new is old for new, old in zip(inputs, node.inputs)):
        return node
    return builder.make(node.op, *inputs, attr=node.attr, type=node.type)


def _laid_as(traced: Traced, replacement: Traced) -> Traced:
    """`replacement`, which lies as `traced` did: its readers may look at it through views."""
    before = value_of(traced)
    if formulas(value_of(replacement).stride()) != formulas(before.stride()):
        how = torch.contiguous_format if before.is_contiguous() else torch.preserve_format
        replacement = call_before(traced, aten.clone.default, replacement, memory_format=how)
    replacement.meta["val"] = before
    return replacement


def _tensors_read(traced: Traced) -> Iterator[Traced]:
    """Operands; those of what gives several tensors for one of these."""
    for operand in traced.all_input_nodes:
        if is_tensor(operand):
            yield operand
        else:
            yield from _tensors_read(operand)
