"""The compiled callable: reads the sizes of a call, takes memory, runs the call list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import CodeType
from typing import Any

import torch

from hemstitch.errors import InternalError
from hemstitch.gpu_vendors import VENDORS
from hemstitch.ir.dims import Dim, evaluate
from hemstitch.kernel_ir.placement import Lifetime, place
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.runtime.assembly import Assembly, IntermediateView
from hemstitch.runtime.prepacked import PrepackedWeights
from hemstitch.runtime.recycling import (
    Layout,
    plain_allocator,
    raise_malloc_thresholds,
    recycling_allocator,
)
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES
from hemstitch.runtime.workspace import BLOCKS, ArenaLayout, ArenaView
from hemstitch.toolchain.jit import threads_now

MOST_SIZES = 64  # instances of one graph with symbolic sizes; the oldest is dropped first
Arguments = list[object]
Call = Callable[[Arguments], tuple[object, ...]]


class Executable:
    """Called with a list of arguments, which it empties (torch's boxed convention).

    Thread-safe and reentrant: a call in flight owns its memory. `recycle`: large results reuse the
    memory of dead ones; not with symbolic sizes, where each set of sizes would retain blocks.
    `borrow`: also the memory of larger ones. `prepacked`: gives further arguments, which follow
    the call's own and the constants.
    """

    def __init__(
        self,
        assembly: Assembly,
        symbols: Mapping[str, tuple[int, int | None]],
        constants: tuple[torch.Tensor, ...],
        recycle: bool = True,
        borrow: bool = False,
        prepacked: PrepackedWeights | None = None,
    ) -> None:
        self._boxed_call = True  # an instance attribute, since wrappers copy __dict__
        self.assembly = assembly
        self._code = compile(assembly.source, "<hemstitch call list>", "exec")
        self._symbols = tuple(symbols.items())
        self._constants = constants
        self._prepacked = prepacked
        self._gpu = assembly.device.index if assembly.device.type in VENDORS else None
        self._of_gpu = None if self._gpu is None else torch.get_device_module(assembly.device)
        if assembly.device.type == "cpu":
            raise_malloc_thresholds()
        self._instances: dict[tuple[int, ...], Call] = {}
        make_allocator = (
            partial(recycling_allocator, borrows=borrow) if recycle else plain_allocator
        )
        self._only = None if symbols else instantiate(assembly, self._code, {}, make_allocator)

    def __call__(self, arguments: Arguments) -> tuple[object, ...]:
        if self._of_gpu is not None and self._of_gpu.current_device() != self._gpu:
            with self._of_gpu.device(self._gpu):
                return self(arguments)
        if self._constants:
            arguments.extend(self._constants)
        if self._prepacked is not None:
            arguments.extend(self._prepacked(arguments))
        call = self._only or self._instance(arguments)
        return call(arguments)

    def shortest(self) -> Call:
        """The call list itself where a call needs nothing else, else this callable."""
        is_all = self._gpu is None and not self._constants and self._prepacked is None
        return self._only if is_all and self._only is not None else self

    def _instance(self, arguments: Arguments) -> Call:
        key = tuple(_symbol_value(arguments, *source) for _, source in self._symbols)
        instance = self._instances.get(key)
        if instance is None:
            values = {name: value for (name, _), value in zip(self._symbols, key)}
            instance = instantiate(self.assembly, self._code, values, plain_allocator)
            while len(self._instances) >= MOST_SIZES:
                self._instances.pop(next(iter(self._instances)), None)
            self._instances[key] = instance
        return instance


def instantiate(
    assembly: Assembly,
    code: CodeType,
    values: Mapping[str, int],
    make_allocator: Callable[[Layout], Callable[[], torch.Tensor]],
) -> Call:
    """The call list for these sizes, with its memory. `make_allocator`: of large results."""
    names = {name: _evaluated(size, values) for name, size in assembly.sizes.items()}
    large = {name: make_allocator(layout) for name, layout in assembly.large.items()}
    namespace: dict[str, object] = {**assembly.fixed, **names, **large}
    exec(code, namespace)
    slots = [*assembly.slots, *assembly.scratch]
    lifetimes = [Lifetime(evaluate(slot.bytes, values), slot.first, slot.last) for slot in slots]
    offsets, total = place(lifetimes, CPU.shared_cache_bytes if threads_now() > 1 else None)
    run: Any = namespace["run"]
    if not slots:
        return run  # type: ignore[no-any-return]
    views = tuple(
        _view(view, offsets[view.slot], lifetimes[view.slot].bytes, values)
        for view in assembly.views
    )
    scratch = tuple(offsets[len(assembly.slots) :])
    return partial(_in_arena, run, BLOCKS.layout(views, scratch, total))


def _view(
    intermediate: IntermediateView, start: int, slot_bytes: int, values: Mapping[str, int]
) -> ArenaView:
    """In the slot at `start` of `slot_bytes` bytes."""
    offset = evaluate(intermediate.offset, values) * intermediate.dtype.bytes
    shape, strides = (
        tuple(evaluate(dim, values) for dim in dims)
        for dims in (intermediate.shape, intermediate.strides)
    )
    view = ArenaView(start + offset, shape, strides, TORCH_DTYPES[intermediate.dtype])
    if offset + view.bytes > slot_bytes:
        raise InternalError(f"an intermediate of {slot_bytes} bytes has the view {view}")
    return view


def _in_arena(run: Any, layout: ArenaLayout, arguments: Arguments) -> tuple[object, ...]:
    block = BLOCKS.take(layout)
    try:
        arena = block.arena(layout)
        return run(arguments, arena.views, arena.scratch)  # type: ignore[no-any-return]
    finally:
        BLOCKS.give_back(block)


def _evaluated(size: Dim | tuple[Dim, ...], values: Mapping[str, int]) -> int | tuple[int, ...]:
    if isinstance(size, tuple):
        return tuple(evaluate(dim, values) for dim in size)
    return evaluate(size, values)


def _symbol_value(arguments: Arguments, position: int, axis: int | None) -> int:
    argument = arguments[position]
    if axis is None:
        return int(argument)  # type: ignore[call-overload, no-any-return]
    assert isinstance(argument, torch.Tensor)
    return argument.shape[axis]
