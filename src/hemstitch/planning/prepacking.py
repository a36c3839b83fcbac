"""Operands that several kernels pack alike are packed once, by the first of them; those that are
made of frozen weights alone, before any call. Takes a plan for a processor, gives one whose kernels
hand such operands on in memory, or find them among the arguments.

A weight that every step of a recurrent model multiplies with would be packed in each
(`matmul/lowering/panels.py`), which takes longer than the products of few rows. Which operands are
alike is seen when all kernels are known: what fills them is the same text, made of the same
elements of the same tensors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph, InputAttr, Output
from hemstitch.kernel_ir.index import Index
from hemstitch.kernel_ir.nodes import (
    Buffer,
    Kernel,
    Nest,
    Phase,
    Role,
    buffers_of,
    statements,
)
from hemstitch.kernel_ir.printer import show
from hemstitch.kernel_ir.rewriter import Rewriter
from hemstitch.matmul.lowering.blocking import Panels, blocked_without_packing, with_packing
from hemstitch.planning.materialised_views import Alias
from hemstitch.planning.plan import KernelStep, Plan
from hemstitch.stitching.group import Tensor
from hemstitch.stitching.stitcher import Stitched

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Packed:
    """`plan`: of each call. `once`: what packs the frozen operands that it finds among its
    arguments, in their order; None where there are none."""

    plan: Plan
    once: Plan | None = None


def prepack(
    plan: Plan, until_blocking: Callable[[Kernel], Kernel], threads: int, first: int = 0
) -> Packed:
    """`until_blocking`: a kernel as the stage finds it that blocks matmuls. `threads`: most that a
    launch may have. `first`: the position of an argument that is free, as those behind it are."""
    blocks = _RowBlocks(until_blocking, threads)
    operands_of_steps = [_operands(step, *blocks.of(step.stitched.kernel)) for step in plan.kernels]
    uses = Counter(key for operands in operands_of_steps for key in operands.keys.values())
    keys = {key for key, count in uses.items() if count > 1 or key.is_frozen}
    if not keys:
        return Packed(plan)
    sharing = _Sharing(Builder.after(plan.graph), keys, first)
    shared = map(sharing.step, plan.kernels, operands_of_steps)
    steps = [next(shared) if isinstance(step, KernelStep) else step for step in plan.steps]
    prepacked_inputs = tuple(tensor.node for tensor in sharing.arguments)
    graph = replace(plan.graph, inputs=(*plan.graph.inputs, *prepacked_inputs))
    return Packed(replace(plan, graph=graph, steps=tuple(steps)), sharing.once(plan.graph))


@dataclass(frozen=True, slots=True)
class _Key:
    """Equal for equal operands: what fills one, and what that reads. `is_sized`: whatever the sizes
    of a call are, it is the same."""

    text: str
    tensors: tuple[Tensor, ...]
    is_sized: bool

    @property
    def is_frozen(self) -> bool:
        attributes = [tensor.node.attr if tensor.is_argument else None for tensor in self.tensors]
        are_frozen = all(isinstance(attr, InputAttr) and attr.frozen for attr in attributes)
        return self.is_sized and are_frozen and bool(attributes)


@dataclass(frozen=True, slots=True)
class _Operands:
    """Of a step's products. `kernel`: without what fills `panels`."""

    kernel: Kernel
    panels: Panels
    keys: Mapping[Buffer, _Key]


@dataclass(slots=True)
class _RowBlocks:
    """Kernels over blocks of rows; those of one kind have the very same phases."""

    until_blocking: Callable[[Kernel], Kernel]
    threads: int
    _known: dict[tuple[int, int], tuple[Kernel, Panels]] = field(default_factory=dict)

    def of(self, kernel: Kernel) -> tuple[Kernel, Panels]:
        """Named as it is, and what fills its operands."""
        if kernel.kind not in self._known:
            whole = self.until_blocking(kernel)
            self._known[kernel.kind] = blocked_without_packing(whole, self.threads)
        known, panels = self._known[kernel.kind]
        return replace(known, name=kernel.name), panels


def _operands(step: KernelStep, kernel: Kernel, panels: Panels) -> _Operands:
    stitched = step.stitched
    bound = dict(zip(kernel.parameters, zip(stitched.tensors, stitched.places)))
    symbols = step.groups[0].hints
    keys = {b: _key(b, nests, bound, symbols) for b, nests in panels.items()}
    return _Operands(kernel, panels, keys)


def _key(
    panel: Buffer,
    nests: Sequence[Nest],
    bound: Mapping[Buffer, tuple[Tensor, int]],
    symbols: Collection[str],
) -> _Key:
    """What fills it, whatever things are called and wherever the kernel begins in its tensors."""
    kernel = Kernel("", (), (Phase(tuple(nests)),))
    touched = dict.fromkeys(b for statement in statements(kernel) for b in buffers_of(statement))
    tensors = tuple(bound[buffer][0] for buffer in touched if buffer is not panel)

    def whole(buffer: Buffer, index: Index) -> tuple[Buffer, Index]:
        return buffer, index if buffer is panel else index.shifted(bound[buffer][1])

    text = show(replace(_rewritten(kernel, Rewriter({}, place=whole)), buffers=tuple(touched)))
    names: dict[str, str] = {}
    text = _WORD.sub(lambda word: names.setdefault(word[0], f"n{len(names)}"), text)
    return _Key(text, tensors, names.keys().isdisjoint(symbols))


@dataclass(slots=True)
class _Sharing:
    """`keys`: of operands that several need, or that are frozen; `made`: those that a step before
    packs; `found`: among the arguments, from `first` on; `before`: what packs these."""

    builder: Builder
    keys: set[_Key]
    first: int
    packed: dict[_Key, Tensor] = field(default_factory=dict)
    arguments: list[Tensor] = field(default_factory=list)
    before: list[KernelStep] = field(default_factory=list)

    def step(self, step: KernelStep, operands: _Operands) -> KernelStep:
        shared = {buffer: key for buffer, key in operands.keys.items() if key in self.keys}
        if not shared:
            return step
        for buffer, key in shared.items():
            if key.is_frozen and key not in self.packed:
                self._pack_before(step, operands, buffer, key)
        handed: dict[_Key, Buffer] = {}
        filled = {buffer: operands.panels[buffer] for buffer in operands.panels}
        for buffer, key in shared.items():
            is_here = key in self.packed
            if is_here or key in handed:
                del filled[buffer]
            if key not in handed:
                handed[key] = replace(buffer, role=Role.INPUT if is_here else Role.OUTPUT)
        for key, buffer in handed.items():
            self.packed.setdefault(key, self._room(buffer))

        def place(buffer: Buffer, index: Index) -> tuple[Buffer, Index]:
            return (handed[shared[buffer]] if buffer in shared else buffer), index

        kernel = _rewritten(with_packing(operands.kernel, filled), Rewriter({}, place=place))
        panels = [self.packed[key] for key in handed]
        stitched = _bound(kernel, step.stitched, handed.values(), panels)
        return replace(step, stitched=stitched, panels=frozenset(panels))

    def _pack_before(
        self, step: KernelStep, operands: _Operands, buffer: Buffer, key: _Key
    ) -> None:
        place = self.first + len(self.arguments)
        name = f"packed{len(self.arguments)}"
        size, dtype = (buffer.size,), buffer.dtype
        self.packed[key] = Tensor(self.builder.input(name, place, size, dtype, (1,), True), (1,))
        self.arguments.append(self.packed[key])
        output = replace(buffer, role=Role.OUTPUT)
        phases = (Phase(tuple(operands.panels[buffer])),)
        kernel = replace(operands.kernel, name=name, phases=phases)
        filling = Rewriter({}, place=lambda b, index: (output if b is buffer else b, index))
        room = self._room(buffer)
        stitched = _bound(_rewritten(kernel, filling), step.stitched, [output], [room])
        self.before.append(replace(step, stitched=stitched, panels=frozenset((room,))))

    def once(self, graph: Graph) -> Plan | None:
        """Its results are the operands, as memory: the nodes say no more than how much."""
        rooms = [room for step in self.before for room in step.panels]
        if not rooms:
            return None
        outputs = tuple(Output(room.node, room.strides) for room in rooms)
        places = tuple(Alias(room, room.node.shape, room.strides, 0) for room in rooms)
        return Plan(replace(graph, outputs=outputs, effects=()), tuple(self.before), places, ())

    def _room(self, buffer: Buffer) -> Tensor:
        """In memory between kernels; its node says no more than how much."""
        node = self.builder.constant(0, buffer.dtype, (buffer.size,))
        return Tensor(node, (1,), is_copy=True)


def _bound(
    kernel: Kernel, before: Stitched, handed: Iterable[Buffer], panels: Sequence[Tensor]
) -> Stitched:
    """With the parameters that it still reads, and the operands that are handed on behind them."""
    touched = {b for statement in statements(kernel) for b in buffers_of(statement)}
    bound = [
        (buffer, tensor, place)
        for buffer, tensor, place in zip(kernel.parameters, before.tensors, before.places)
        if buffer in touched
    ]
    bound += [(buffer, tensor, 0) for buffer, tensor in zip(handed, panels)]
    scratch = [b for b in kernel.buffers if b.role in (Role.SHARED, Role.TASK) and b in touched]
    parameters, tensors, places = zip(*bound)
    return Stitched(replace(kernel, buffers=(*parameters, *scratch)), tensors, places)


def _rewritten(kernel: Kernel, rewriter: Rewriter) -> Kernel:
    phases = (
        replace(phase, nests=tuple(_nest(nest, rewriter) for nest in phase.nests))
        for phase in kernel.phases
    )
    return replace(kernel, phases=tuple(phases))


def _nest(nest: Nest, rewriter: Rewriter) -> Nest:
    prologue, panels, body, epilogue = (tuple(map(rewriter.statement, part)) for part in nest.parts)
    return replace(nest, prologue=prologue, panels=panels, body=body, epilogue=epilogue)
