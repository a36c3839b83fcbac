"""Random programs of the kind that people write: normalisations, splits and merges of axes,
gathers, dropout, several results, arguments updated in place, in any layout, of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from random import Random

import torch

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim, divides, evaluate, quotient, symbol
from hemstitch.ir.graph import Address, Graph, Node, Op, Output, Range, toposort
from hemstitch.ir.types import DType
from hemstitch.machine.record import Machine
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES

SIZES = (1, 2, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 31, 32, 64)
LONG = (97, 128, 257, 600)
MOST_ELEMENTS = 6000
# Safe for any finite argument, and never far from it in size.
UNARY = (Op.NEG, Op.ABS, Op.TANH, Op.SIGMOID, Op.ERF, Op.SIN, Op.COS)
BINARY = (Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM, Op.MINIMUM)
CONTINUOUS = {*UNARY, *BINARY, Op.SUM, Op.EXP, Op.SQRT, Op.RSQRT, Op.DIV}


class Program:
    """`graph`, and the values of its symbols in `sizes`. `random` decides everything."""

    def __init__(
        self,
        random: Random,
        *,
        steps: int = 10,
        symbolic: bool = False,
        mutating: bool = False,
        empty: bool = False,
        scanning: bool = False,
        scattering: bool = False,
    ) -> None:
        self.random, self.builder = random, Builder()
        self.sizes: dict[str, int] = {}
        self.symbolic = symbolic
        choices = STEPS + (Program.scan,) * (3 * scanning)
        choices += (Program.scatter,) * (3 * scattering)
        self.inputs: list[Node] = []
        self.shape = self._shape(empty)
        self.pool: list[Node] = []
        if symbolic:
            for name in self.sizes:
                self._input((symbol(name),))
        self.pool.append(self._input(self.shape))
        for _ in range(random.randint(1, 2)):
            self.pool.append(self._input(self._part_of(self.shape)))
        for _ in range(steps):
            node = random.choice(choices)(self, random.choice(self.pool[-6:]))
            if node is not None and self._is_small(node):
                self.pool.append(node)
        self.graph = self._graph(mutating)

    # --- inputs and outputs

    def _shape(self, empty: bool) -> tuple[Dim, ...]:
        found: list[Dim] = []
        for _ in range(self.random.randint(1, 3)):
            size = self.random.choice(SIZES + LONG * (len(found) == 0))
            if prod(evaluate(each, self.sizes) for each in found) * size > MOST_ELEMENTS // 2:
                size = 2
            if self.symbolic and self.random.random() < 0.6:
                name = f"s{len(self.sizes)}"
                self.sizes[name] = size
                found.append(symbol(name))
            else:
                found.append(size)
        if empty:
            found[self.random.randrange(len(found))] = 0
        self.random.shuffle(found)
        return tuple(found)

    def _part_of(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Something that broadcasts to `shape`."""
        part = [size if self.random.random() < 0.6 else 1 for size in shape]
        return tuple(part[self.random.randint(0, len(part) - 1) :])

    def _input(self, shape: tuple[Dim, ...], dtype: DType | None = None) -> Node:
        position = len(self.inputs)
        dtype = dtype or self.random.choice((DType.F32, DType.F32, DType.F32, DType.BF16))
        strides = self._strides(shape)
        node = self.builder.input(f"x{position}", position, shape, dtype, strides)
        self.inputs.append(node)
        return self.builder.cast(node, DType.F32) if dtype is DType.BF16 else node

    def _strides(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Contiguous, permuted, with gaps, or one element for a whole axis."""
        kind = self.random.randint(0, 5)
        order = list(range(len(shape)))
        if kind == 0:
            self.random.shuffle(order)
        strides = [0] * len(shape)
        step: Dim = 2 if kind == 1 else 1
        for axis in reversed(order):
            strides[axis] = step
            step = step * (shape[axis] if shape[axis] != 0 else 1) + (3 if kind == 2 else 0)
        if kind == 3 and len(shape) > 1:
            strides[self.random.randrange(len(shape))] = 0
        return tuple(strides)

    def _graph(self, mutating: bool) -> Graph:
        random, builder = self.random, self.builder
        values = dict.fromkeys([*self.pool[-2:], random.choice(self.pool)])
        outputs = [self._output(value) for value in values]
        if mutating:
            outputs += self._mutations()
        needed = {node for node in toposort(o.value for o in outputs) if node.op is Op.INPUT}
        needed |= {output.mutates for output in outputs if output.mutates is not None}
        carriers = {node.shape[0]: node.attr.position for node in self.inputs[: len(self.sizes)]}
        inputs = [n for n in self.inputs if n in needed or n in self.inputs[: len(self.sizes)]]
        symbols = {name: (carriers[symbol(name)], 0) for name in self.sizes}
        return Graph(tuple(inputs), tuple(outputs), (), symbols, dict(self.sizes), builder.origins)

    def _output(self, value: Node) -> Output:
        if value.type.dtype is DType.F32 and self.random.random() < 0.2:
            value = self.builder.cast(value, DType.BF16)
        order = list(range(value.type.rank))
        if self.random.random() < 0.2:
            self.random.shuffle(order)
        strides = [0] * len(order)
        step: Dim = 1
        for axis in reversed(order):
            strides[axis] = step
            step = step * (value.shape[axis] if value.shape[axis] != 0 else 1)
        return Output(value, tuple(strides))

    def _mutations(self) -> list[Output]:
        """New contents for some inputs, made of the pool and at times of themselves, shifted."""
        found = []
        for node in self.inputs[len(self.sizes) :]:
            strides = node.attr.strides
            if 0 in [step for size, step in zip(node.shape, strides) if size != 1]:
                continue
            if node.type.dtype.is_float and self.random.random() < 0.6:
                fitting = [x for x in self.pool if x.shape == node.shape and x.type.dtype.is_float]
                value = self._moved(node) if not fitting else self.random.choice(fitting)
                if self.random.random() < 0.3:
                    value = self._moved(node)
                found.append(
                    Output(self.builder.cast(value, node.type.dtype), strides, mutates=node)
                )
        return found

    def _moved(self, node: Node) -> Node:
        """The old contents in another order."""
        axes = [axis for axis, size in enumerate(node.shape) if isinstance(size, int) and size > 1]
        if not axes:
            return self.builder.make(Op.NEG, self.builder.cast(node, DType.F32))
        axis = self.random.choice(axes)
        size = node.shape[axis]
        if self.random.random() < 0.5:
            parts = [Range(0)] * len(node.shape)
            parts[axis] = Range(size - 1, -1)
            return self.builder.slice(node, parts, node.shape)
        first = self._cut(node, axis, 1, size - 1)
        return self.builder.concat([first, self._cut(node, axis, 0, 1)], axis)

    def _cut(self, x: Node, axis: int, start: Dim, length: Dim) -> Node:
        parts = [Range(0)] * len(x.shape)
        parts[axis] = Range(start)
        shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        return self.builder.slice(x, parts, shape)

    def _count(self, size: Dim) -> int:
        return evaluate(size, self.sizes)

    def _is_small(self, node: Node) -> bool:
        return self._count(node.type.size) <= MOST_ELEMENTS

    # --- steps: a new node from one of the pool, or None where it does not fit

    def unary(self, x: Node) -> Node | None:
        if x.type.dtype is not DType.F32:
            return None
        return self.builder.make(self.random.choice(UNARY), x)

    def positive(self, x: Node) -> Node | None:
        """Functions that want a bounded argument."""
        if x.type.dtype is not DType.F32:
            return None
        bounded = self.builder.make(Op.SIGMOID, x)
        op = self.random.choice((Op.EXP, Op.SQRT, Op.RSQRT, Op.LOG1P))
        shifted = self.builder.make(Op.ADD, bounded, self._like(0.5, x))
        return self.builder.make(op, shifted)

    def _like(self, value: float, x: Node) -> Node:
        return self.builder.constant(value, x.type.dtype, x.shape)

    def partner(self, x: Node) -> Node:
        """Something of x's type that broadcasts to its shape, or an input, or a constant."""
        fitting = [
            node
            for node in self.pool
            if node.type.dtype is x.type.dtype
            and node.type.rank <= x.type.rank
            and all(a in (1, b) for a, b in zip(node.shape[::-1], x.shape[::-1]))
        ]
        if x.type.dtype is DType.F32 and self.random.random() < 0.3 and x.type.rank:
            fitting = [self._input(self._part_of(x.shape))]
        if not fitting or self.random.random() < 0.1:
            return self._like(self.random.choice((1, 2)), x)
        return self.builder.broadcast(self.random.choice(fitting), x.shape)

    def binary(self, x: Node) -> Node | None:
        if x.type.dtype is DType.BOOL:
            return self.builder.make(self.random.choice((Op.AND, Op.OR, Op.XOR)), x, x)
        pair = [x, self.partner(x)]
        self.random.shuffle(pair)
        return self.builder.make(self.random.choice(BINARY), *pair)

    def where(self, x: Node) -> Node | None:
        if x.type.rank == 0:
            return None
        axis = self.random.randrange(x.type.rank)
        index = self.builder.iota(x.shape, axis)
        other = self.builder.iota(x.shape, self.random.randrange(x.type.rank))
        limit = self.random.choice((other, self.builder.constant(3, DType.I64, x.shape)))
        flag = self.builder.make(self.random.choice((Op.LE, Op.GT, Op.NE)), index, limit)
        return self.builder.make(Op.WHERE, flag, x, self.partner(x))

    def _axes(self, x: Node) -> list[int]:
        axes = [axis for axis in range(x.type.rank) if self.random.random() < 0.5]
        return axes or [x.type.rank - 1]

    def reduce(self, x: Node) -> Node | None:
        if x.type.rank == 0 or x.type.dtype is DType.BOOL:
            return None
        axes = self._axes(x)
        ops = [Op.SUM, Op.SUM, Op.MAX, Op.MIN]
        ops += [Op.ARGMAX, Op.ARGMIN] if self._is_exact(x) else []
        op = self.random.choice(ops)
        if op is not Op.SUM and any(self._count(x.shape[axis]) == 0 for axis in axes):
            return None
        keep = self.random.random() < 0.5
        found = self.builder.reduce(op, x, axes, keep)
        return self._scaled(found, prod(self._count(x.shape[axis]) for axis in axes))

    def _scaled(self, x: Node, count: int) -> Node:
        """A sum, brought back to the size of its terms."""
        if x.type.dtype is not DType.F32:
            return x
        return self.builder.make(Op.MUL, x, self._like(1 / max(count, 1) ** 0.5, x))

    def _is_exact(self, x: Node) -> bool:
        """No rounding happens on the way, so that an argmax does not depend on the order."""
        return not any(node.op in CONTINUOUS for node in toposort([x]))

    def normalise(self, x: Node) -> Node | None:
        """x - reduced(x), the reduced axes broadcast back."""
        if x.type.rank == 0 or x.type.dtype is not DType.F32:
            return None
        axes = self._axes(x)
        if any(self._count(x.shape[axis]) == 0 for axis in axes):
            return None
        op = self.random.choice((Op.SUM, Op.MAX))
        found = self.builder.reduce(op, x, axes, keep=True)
        if op is Op.SUM:
            found = self._scaled(found, prod(self._count(x.shape[axis]) for axis in axes))
        centred = self.builder.make(Op.SUB, x, self.builder.broadcast(found, x.shape))
        if op is Op.MAX and self.random.random() < 0.7:
            return self.builder.make(Op.EXP, centred)
        return centred

    def scan(self, x: Node) -> Node | None:
        """Sums or products along an axis, of the same size as their terms; at times of the axis
        the other way round, or what all of it came to."""
        if x.type.rank == 0 or x.type.dtype is not DType.F32:
            return None
        axis, random = self.random.randrange(x.type.rank), self.random
        length = self._count(x.shape[axis])
        if random.random() < 0.3:
            bounded = self.builder.make(Op.SIGMOID, x)
            shifted = self.builder.make(Op.ADD, bounded, self._like(0.5, x))
            return self.builder.scan(Op.CUMPROD, shifted, axis) if length < 9 else None
        found = self._scaled(self.builder.scan(Op.CUMSUM, x, axis), length)
        if random.random() < 0.7 or not isinstance(x.shape[axis], int) or length == 0:
            return found
        if random.random() < 0.5:
            return self._cut(found, axis, length - 1, 1)
        parts = [Range(0)] * x.type.rank
        parts[axis] = Range(length - 1, -1)
        return self.builder.slice(found, parts, x.shape)

    def merge(self, x: Node) -> Node | None:
        if x.type.rank < 2:
            return None
        axis = self.random.randrange(x.type.rank - 1)
        merged = x.shape[axis] * x.shape[axis + 1]
        return self.builder.reshape(x, (*x.shape[:axis], merged, *x.shape[axis + 2 :]))

    def split(self, x: Node) -> Node | None:
        choices = [
            (axis, part)
            for axis, size in enumerate(x.shape)
            for part in (2, 3, 4, 8, 16, *map(symbol, self.sizes))
            if size not in (0, part) and divides(part, size)
        ]
        if not choices:
            return None
        axis, part = self.random.choice(choices)
        pair = [quotient(x.shape[axis], part), part]
        self.random.shuffle(pair)
        return self.builder.reshape(x, (*x.shape[:axis], *pair, *x.shape[axis + 1 :]))

    def unsqueeze(self, x: Node) -> Node:
        shape = list(x.shape)
        shape.insert(self.random.randint(0, len(shape)), 1)
        return self.builder.reshape(x, shape)

    def broadcast(self, x: Node) -> Node:
        grown = [self.random.choice((1, 2, 5)) if size == 1 else size for size in x.shape]
        return self.builder.broadcast(x, [3] * (x.type.rank < 2) + grown)

    def permute(self, x: Node) -> Node:
        order = list(range(x.type.rank))
        self.random.shuffle(order)
        return self.builder.permute(x, order)

    def slice(self, x: Node) -> Node | None:
        axes = [axis for axis, size in enumerate(x.shape) if isinstance(size, int) and size > 1]
        if not axes:
            return None
        axis = self.random.choice(axes)
        size = x.shape[axis]
        start = self.random.randint(0, size // 2)
        step = self.random.choice((1, 1, 2))
        parts = [Range(0)] * x.type.rank
        parts[axis] = Range(start, step)
        length = self.random.randint(1, (size - start + step - 1) // step)
        return self.builder.slice(x, parts, (*x.shape[:axis], length, *x.shape[axis + 1 :]))

    def concat(self, x: Node) -> Node | None:
        if x.type.rank == 0:
            return None
        axis = self.random.randrange(x.type.rank)
        size = x.shape[axis]
        if isinstance(size, int) and size % 2 == 0 and size and self.random.random() < 0.5:
            low, high = self._cut(x, axis, 0, size // 2), self._cut(x, axis, size // 2, size // 2)
            if x.type.dtype is DType.F32:
                high = self.builder.make(Op.NEG, high)
            return self.builder.concat([high, low], axis)  # rotary embedding
        return self.builder.concat([x, self.partner(x)], axis)

    def pad(self, x: Node) -> Node | None:
        low = [self.random.randint(0, 2) for _ in x.shape]
        shape = [size + before + self.random.randint(0, 1) for size, before in zip(x.shape, low)]
        return self.builder.pad(x, low, shape, self.builder.constant(1, x.type.dtype))

    def gather(self, x: Node) -> Node | None:
        """Rows of x, picked by an argument."""
        if x.type.rank == 0 or not isinstance(x.shape[0], int) or x.shape[0] == 0:
            return None
        count = self.random.choice((1, 3, 8))
        index = self._index((count,), x.shape[0])
        shape = (count, *x.shape[1:])
        wide = self.builder.broadcast(
            self.builder.reshape(index, (count, *(1 for _ in shape[1:]))), shape
        )
        along = [Address(axis=axis) for axis in range(1, len(shape))]
        return self.builder.gather(x, [wide], [Address(operand=1), *along], shape)

    def scatter(self, x: Node) -> Node | None:
        """Lines of x, added up where an argument says."""
        if x.type.rank < 2 or x.type.dtype is not DType.F32 or self._count(x.shape[-1]) < 2:
            return None
        rows, axis = self.random.choice((1, 3, 8)), self.random.randrange(x.type.rank - 1)
        over = [a for a in range(x.type.rank) if a == axis or self.random.random() < 0.5]
        lines = tuple(size if a in over[:-1] or a == axis else 1 for a, size in enumerate(x.shape))
        wide = self.builder.broadcast(self._index((*lines[:-1], 1), rows), x.shape)
        kept = [a for a in range(x.type.rank - 1) if lines[a] == 1] + [x.type.rank - 1]
        addresses = [Address(operand=1), *(Address(axis=a) for a in kept)]
        shape = (rows, *(x.shape[a] for a in kept))
        found = self.builder.scatter_add(x, [wide], addresses, shape)
        return self._scaled(found, self._count(x.type.size) // max(1, self._count(found.type.size)))

    def _index(self, shape: tuple[Dim, ...], size: int) -> Node:
        raw = self._input(shape, DType.I64)
        return self.builder.make(Op.REMAINDER, raw, self._like(size, raw))

    def dropout(self, x: Node) -> Node | None:
        if x.type.dtype is not DType.F32:
            return None
        uniform = self.builder.philox(self._input((), DType.I64), x.shape)
        kept = self.builder.make(Op.GT, uniform, self._like(0.3, x))
        return self.builder.make(Op.WHERE, kept, x, self._like(0, x))

    def half(self, x: Node) -> Node | None:
        if x.type.dtype is not DType.F32:
            return None
        return self.builder.cast(self.builder.cast(x, DType.BF16), DType.F32)


STEPS: tuple[Callable[[Program, Node], Node | None], ...] = (
    *(Program.unary, Program.positive, Program.binary, Program.binary, Program.where),
    *(Program.reduce, Program.reduce, Program.normalise, Program.normalise, Program.normalise),
    *(Program.merge, Program.split, Program.unsqueeze, Program.broadcast, Program.permute),
    *(Program.slice, Program.concat, Program.pad, Program.gather, Program.dropout, Program.half),
)


def hasty(machine: Machine, random: Random) -> Machine:
    """It may take barriers for cheap, so that kernels have many phases."""
    return replace(machine, barrier_seconds=random.choice((machine.barrier_seconds, 1e-9)))


def arguments_for(graph: Graph, sizes: Mapping[str, int], seed: int) -> list[torch.Tensor]:
    """One tensor a position, laid out as the graph says."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[int, torch.Tensor] = {}
    for node in graph.inputs:
        shape = [evaluate(size, sizes) for size in node.shape]
        strides = [evaluate(step, sizes) for step in node.attr.strides]
        dtype = TORCH_DTYPES[node.type.dtype]
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, strides))
        if dtype.is_floating_point:
            flat = torch.randn(max(extent, 1), generator=generator).to(dtype)
        else:
            flat = torch.randint(0, 1000, (max(extent, 1),), generator=generator).to(dtype)
        found[node.attr.position] = flat.as_strided(shape, strides)
    positions = max(found, default=-1) + 1
    return [found.get(position, torch.zeros(())) for position in range(positions)]
