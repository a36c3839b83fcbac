"""Prepacking of matmul operands: the first of several kernels packs a shared operand for all.
Frozen weights are packed before any call. Takes a plan for a processor, gives one whose kernels
exchange packed operands in memory or receive them as arguments.

Every step of a recurrent model would otherwise pack the same weight (`matmul/lowering/panels.py`),
which takes longer than a matmul of few rows. Two operands are equal if the statements that pack
them have the same text and read the same elements of the same tensors.
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
    """`plan`: for each call. `once`: packs the frozen operands, which are arguments of `plan` in
    the same order; None where there are none."""

    plan: Plan
    once: Plan | None = None


def prepack(
    plan: Plan, until_blocking: Callable[[Kernel], Kernel], threads: int, first: int = 0
) -> Packed:
    """`until_blocking`: lowers a kernel up to the stage that blocks matmuls. `threads`: most that a
    launch may have. `first`: the position of the first new argument."""
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
    """Equal for equal operands: the packing statements and the tensors that they read. `is_sized`:
    the operand does not depend on symbolic sizes."""

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
    """The packed operands of a step. `kernel`: without the statements that fill `panels`."""

    kernel: Kernel
    panels: Panels
    keys: Mapping[Buffer, _Key]


@dataclass(slots=True)
class _RowBlocks:
    """Blocked kernels; cached, since kernels of one kind have the same phases."""

    until_blocking: Callable[[Kernel], Kernel]
    threads: int
    _known: dict[tuple[int, int], tuple[Kernel, Panels]] = field(default_factory=dict)

    def of(self, kernel: Kernel) -> tuple[Kernel, Panels]:
        """The blocked kernel under its own name, and the statements that fill its panels."""
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
    """The packing statements with canonical names, and indices relative to whole tensors."""
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
    """`keys`: of shared or frozen operands; `packed`: operands that an earlier step packs;
    `arguments`: frozen ones, at positions from `first` on; `before`: the steps that pack these."""

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
        """The plan that packs the frozen operands. The nodes of its outputs only give sizes."""
        rooms = [room for step in self.before for room in step.panels]
        if not rooms:
            return None
        outputs = tuple(Output(room.node, room.strides) for room in rooms)
        places = tuple(Alias(room, room.node.shape, room.strides, 0) for room in rooms)
        return Plan(replace(graph, outputs=outputs, effects=()), tuple(self.before), places, ())

    def _room(self, buffer: Buffer) -> Tensor:
        """A tensor in memory between kernels; its node only gives the size."""
        node = self.builder.constant(0, buffer.dtype, (buffer.size,))
        return Tensor(node, (1,), is_copy=True)


def _bound(
    kernel: Kernel, before: Stitched, handed: Iterable[Buffer], panels: Sequence[Tensor]
) -> Stitched:
    """With the parameters that the kernel still reads, followed by the shared operands."""
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
