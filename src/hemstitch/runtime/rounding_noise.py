"""How far rounding may move each result: a graph as it was captured, run with noise in every
operation, as large as its roundings (Monte Carlo arithmetic). What is badly conditioned moves far,
what is exact not at all, and no operation needs an analysis of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hemstitch.ir.calls import Call, has_effects
from hemstitch.ir.graph import Graph, Node, Op, toposort
from hemstitch.ir.ops import OPS, OpClass, is_call
from hemstitch.runtime.interpreter import RULES, Rule

RESULT = 2.0  # half units in the last place: of functions, and of a sum that is rounded
TERM = 4.0  # of a matmul's terms, times the root of how many there are, as in a serial sum
_EXACT = frozenset({Op.NEG, Op.ABS, Op.SIGN, Op.ISNAN, Op.WHERE, Op.MAXIMUM, Op.MINIMUM, Op.CHECK})
_SUMS = frozenset({Op.SUM, Op.PROD, Op.CUMSUM, Op.CUMPROD, Op.SCATTER_ADD, Op.DOT})
_OF_ELEMENTS = (OpClass.ELEMENTWISE, OpClass.VIEW)
_ROUNDED = (OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.SCAN)
_HALF_UNITS = {
    dtype: torch.finfo(dtype).eps / 2
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


@dataclass(frozen=True, slots=True)
class Noise:
    """`random`: where it comes from, so that the program's own numbers stay what they are. `exact`:
    nodes that have none. `times`: as large as roundings."""

    random: torch.Generator
    exact: frozenset[Node]
    times: float

    @staticmethod
    def of(graph: Graph, seed: int, times: float) -> Noise:
        """What is a number of elements or a place in the end is exact from the start."""
        exact: set[Node] = set()
        for node in reversed(toposort(graph.roots)):
            is_index = node.op is Op.CAST and not node.type.dtype.is_float
            if is_index or (node in exact and OPS[node.op].op_class in _OF_ELEMENTS):
                exact.update(node.inputs)
        return Noise(torch.Generator().manual_seed(seed), frozenset(exact), times)

    def rules(self) -> Mapping[Op, Rule]:
        return {op: self._noisy(op, rule) for op, rule in RULES.items()}

    def _noisy(self, op: Op, rule: Rule) -> Rule:
        is_sum = op in _SUMS or is_call(op)
        if not is_sum and (OPS[op].op_class not in _ROUNDED or op in _EXACT):
            return rule

        def noisy(machine: Any, node: Node, operands: Sequence[Any]) -> Any:
            if node in self.exact or has_effects(node.attr):
                return rule(machine, node, operands)
            if is_sum:
                scale = math.sqrt(_terms(machine, node, operands))
                scale *= TERM if op is Op.DOT or is_call(op) else 1.0
                own = RESULT if is_call(op) else 0.0
                operands = [self._moved(operand, own, scale) for operand in operands]
            result = rule(machine, node, operands)
            if isinstance(result, tuple):
                return tuple(self._moved(part, RESULT) for part in result)
            return result if op is Op.CAST and not _narrows(node) else self._moved(result, RESULT)

        return noisy

    def _moved(self, value: Any, scale: float, computed: float = 0.0) -> Any:
        """By so many half units in the last place, more or less; and of the type that is computed
        with, in which half types are added up."""
        if not isinstance(value, torch.Tensor) or value.dtype not in _HALF_UNITS:
            return value
        if value.layout is not torch.strided:
            return value
        wide = value if value.dtype is torch.float64 else value.float()
        by = torch.randn(value.shape, generator=self.random, dtype=wide.dtype).to(value.device)
        units = scale * _HALF_UNITS[value.dtype] + computed * _HALF_UNITS[wide.dtype]
        moved = wide * (1 + by * (self.times * units))
        return torch.empty_like(value).copy_(moved)


def _narrows(cast: Node) -> bool:
    return cast.type.dtype.bytes < cast.inputs[0].type.dtype.bytes


def _terms(machine: Any, node: Node, operands: Sequence[Any]) -> float:
    """Of one element of the result: of a product of [m, k] and [k, n] that is k."""
    if node.op in (Op.CUMSUM, Op.CUMPROD):
        return 1.0
    sizes = [x.numel() for x in operands if isinstance(x, torch.Tensor) and x.is_floating_point()]
    shapes = [node.shape]
    if isinstance(node.attr, Call):
        shapes = [described[0].shape for described in node.attr.results if described is not None]
    result: int = max([1, *(math.prod(map(machine.size, shape)) for shape in shapes)])
    if len(sizes) > 1 and node.op is not Op.SCATTER_ADD:
        first, second = sorted(sizes)[-2:]
        return max(1.0, math.sqrt(first * second / result))
    return max([1.0, *(size / result for size in sizes)])
