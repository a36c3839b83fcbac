"""The joint graph of forward and backward, as traced and in the graph IR. Takes AOTAutograd's
graph; gives for each traced value what it is in the IR: what it is made of, what that costs, and
whether a call of the library gives it.

AOTAutograd wants two graphs of `torch.fx` in return, which must run without a compiler too. So what
is saved is a traced value, and what backward computes again is a traced operation. What the two
cost is read off the IR, which the planner works on as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.fx import Graph as TracedGraph
from torch.fx import GraphModule
from torch.fx import Node as Traced

from hemstitch.capture.library_calls import WITHIN
from hemstitch.capture.traced_nodes import base_of, is_tensor, value_of
from hemstitch.capture.translation import tensor_values
from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Node, Op, toposort
from hemstitch.ir.ops import OPS, combines
from hemstitch.ir.types import DType
from hemstitch.matmul.mask_analysis import masked_matmuls

# Bytes moved that take as long as an operation on one element. A mask of dropout is better made
# again from its seed than written and read as a byte; nearer caches see it otherwise.
BYTES_PER_FLOP = 0.1
# Times that of f32, with AVX2: exp 7, log and sin 5, tanh 11, erf 9, and half as many lanes.
FUNCTION_OF_DOUBLE, DOUBLE = 7, 2
IN_MEMORY = (Op.RESULT, Op.SCATTER_ADD)  # before anything reads it


@dataclass(frozen=True, slots=True)
class TracedOperation:
    """What computes one traced value. `sources`: the traced values that it reads, without those of
    which it reads no more than the shape. `work`: what it computes, in bytes moved."""

    sources: tuple[Traced, ...]
    work: float


@dataclass(frozen=True, slots=True)
class JointGraph:
    """`values`: of each traced tensor, or of each that one operation gives. `hints`: example values
    of the symbols of sizes."""

    traced: TracedGraph
    values: Mapping[Traced, tuple[Node, ...]]
    hints: Mapping[str, int]
    operations: dict[Traced, TracedOperation] = field(default_factory=dict)

    @staticmethod
    def of(joint: GraphModule) -> JointGraph:
        """Raises UnsupportedError."""
        return JointGraph(joint.graph, *tensor_values(joint))

    def is_call(self, traced: Traced) -> bool:
        """A call of the library gives it, or one like that: no kernel that reads it makes it."""
        if traced.op != "call_function":
            return False
        if traced not in self.values:  # nobody reads it as a tensor
            return isinstance(value_of(traced), (torch.Tensor, tuple, list))
        return any(value.op in IN_MEMORY for value in self.values[traced])

    def operation(self, traced: Traced) -> TracedOperation:
        if traced not in self.operations:
            self.operations[traced] = self._operation(traced)
        return self.operations[traced]

    def exclude_masked(self) -> None:
        """Says of each traced matmul what of it is of use: a mask of forward is not seen in a
        backward graph that reads what it has excluded."""
        returned = self.traced.output_node().all_input_nodes
        roots = (value for node in returned for value in self.values.get(node, ()))
        bands = masked_matmuls(self.nodes(), roots)
        for traced, values in self.values.items():
            if values[0].op is Op.RESULT and values[0].inputs[0] in bands:
                traced.meta[WITHIN] = bands[values[0].inputs[0]]

    def nodes(self) -> list[Node]:
        """Producers before consumers."""
        return toposort(value for values in self.values.values() for value in values)

    def _operation(self, traced: Traced) -> TracedOperation:
        """A walk in the IR from the value to those of the operands, or of what these are views of:
        the IR may have folded the views."""
        read: dict[Node, Traced] = {}
        for operand in _tensors_read(traced):
            for source in (operand, base_of(operand)):
                for value in self.values.get(source, ()):
                    read.setdefault(value, source)
        sources: dict[Traced, None] = {}
        work, stack = 0.0, [*self.values.get(traced, ())]
        seen = {*stack}
        while stack:
            node = stack.pop()
            if node in read:
                sources[read[node]] = None
                continue
            work += self._work(node)
            stack += [operand for operand in node.inputs if operand not in seen]
            seen.update(node.inputs)
        return TracedOperation(tuple(sources), work)

    def _work(self, node: Node) -> float:
        worked_on = node.inputs[0] if combines(node.op) else node
        flops: float = OPS[node.op].flops
        if any(operand.type.dtype is DType.F64 for operand in node.inputs):
            flops *= FUNCTION_OF_DOUBLE if OPS[node.op].is_expensive else DOUBLE
        return BYTES_PER_FLOP * flops * self.elements(worked_on) if flops else 0.0

    def elements(self, node: Node) -> int:
        """For a symbolic size the one that was traced."""
        count = 1
        for size in node.shape:
            count *= size if isinstance(size, int) else evaluate(size, self.hints)
        return count


def _tensors_read(traced: Traced) -> Iterator[Traced]:
    """Operands; those of what gives several tensors for one of these."""
    for operand in traced.all_input_nodes:
        if is_tensor(operand):
            yield operand
        else:
            yield from _tensors_read(operand)
