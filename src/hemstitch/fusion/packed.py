"""Operands that several kernels pack alike are packed once, by the first of them. Takes a plan for
a processor, gives one whose kernels hand such operands on in memory.

A weight that every step of a recurrent model multiplies with would be packed in each
(`kernel/panels.py`), which takes longer than the products of few rows. Which operands are alike is
seen when all kernels are known: what fills them is the same text, made of the same elements of the
same tensors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hemstitch.fusion.plan import KernelStep, Plan
from hemstitch.ir.builder import Builder
from hemstitch.kernel.blocked import Panels, packing, without_packing
from hemstitch.kernel.cut import cut_rows
from hemstitch.kernel.index import Index
from hemstitch.kernel.nodes import (
    Buffer,
    Kernel,
    Nest,
    Phase,
    Role,
    buffers_of,
    statements,
)
from hemstitch.kernel.one_by_one import one_by_one
from hemstitch.kernel.printer import show
from hemstitch.kernel.rewrite import Rewriter
from hemstitch.stitch.group import Tensor
from hemstitch.stitch.stitch import Stitched

_WORD = re.compile(r"[A-Za-z_]\w*")


def packed_once(plan: Plan, threads: int) -> Plan:
    """`threads`: most that a launch may have."""
    found = [_operands(step, threads) for step in plan.kernels]
    uses = Counter(key for operands in found for key in operands.keys.values())
    sharing = _Sharing(Builder.after(plan.graph), {key for key, n in uses.items() if n > 1}, {})
    if not sharing.keys:
        return plan
    shared = map(sharing.step, plan.kernels, found)
    steps = (next(shared) if isinstance(step, KernelStep) else step for step in plan.steps)
    return replace(plan, steps=tuple(steps))


@dataclass(frozen=True, slots=True)
class _Operands:
    """Of a step's products. `kernel`: without what fills `panels`; `keys`: equal for equal ones."""

    kernel: Kernel
    panels: Panels
    keys: Mapping[Buffer, Hashable]


def _operands(step: KernelStep, threads: int) -> _Operands:
    stitched = step.stitched
    kernel, panels = without_packing(cut_rows(one_by_one(stitched.kernel)), threads)
    bound = dict(zip(kernel.parameters, zip(stitched.tensors, stitched.places)))
    return _Operands(kernel, panels, {b: _key(b, nests, bound) for b, nests in panels.items()})


def _key(
    panel: Buffer, nests: Sequence[Nest], bound: Mapping[Buffer, tuple[Tensor, int]]
) -> Hashable:
    """What fills it, whatever things are called and wherever the kernel begins in its tensors."""
    kernel = Kernel("", (), (Phase(tuple(nests)),))
    touched = dict.fromkeys(b for statement in statements(kernel) for b in buffers_of(statement))
    tensors = tuple(bound[buffer][0] for buffer in touched if buffer is not panel)

    def whole(buffer: Buffer, index: Index) -> tuple[Buffer, Index]:
        return buffer, index if buffer is panel else index.shifted(bound[buffer][1])

    text = show(replace(_rewritten(kernel, Rewriter({}, place=whole)), buffers=tuple(touched)))
    names: dict[str, str] = {}
    return _WORD.sub(lambda word: names.setdefault(word[0], f"n{len(names)}"), text), tensors


@dataclass(frozen=True, slots=True)
class _Sharing:
    """`keys`: of operands that several need; `made`: those that a step before packs."""

    builder: Builder
    keys: set[Hashable]
    made: dict[Hashable, Tensor]

    def step(self, step: KernelStep, operands: _Operands) -> KernelStep:
        shared = {buffer: key for buffer, key in operands.keys.items() if key in self.keys}
        if not shared:
            return step
        handed: dict[Hashable, Buffer] = {}
        filled = {buffer: operands.panels[buffer] for buffer in operands.panels}
        for buffer, key in shared.items():
            is_here = key in self.made
            if is_here or key in handed:
                del filled[buffer]
            if key not in handed:
                handed[key] = replace(buffer, role=Role.INPUT if is_here else Role.OUTPUT)
        for key, buffer in handed.items():
            self.made.setdefault(key, self._room(buffer))

        def place(buffer: Buffer, index: Index) -> tuple[Buffer, Index]:
            return (handed[shared[buffer]] if buffer in shared else buffer), index

        kernel = _rewritten(packing(operands.kernel, filled), Rewriter({}, place=place))
        panels = [self.made[key] for key in handed]
        stitched = _bound(kernel, step.stitched, handed.values(), panels)
        return replace(step, stitched=stitched, panels=frozenset(panels))

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
