"""One launch: takes a kernel and its arguments by name, runs every program, gives what it did."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.jit import JITFunction, mangle_type

from hemstitch.errors import UnsupportedError
from testing.emulator.checked_builder import EmulatedBuilder
from testing.emulator.checked_memory import Checks, EmulatedMemory
from testing.emulator.history import Access
from testing.emulator.patch import emulated
from testing.emulator.programs import Order, Programs
from testing.emulator.python_source import where
from testing.emulator.tensors import Handle

WORDS = {4: ctypes.c_int32, 8: ctypes.c_int64}  # what a program can wait for


@dataclass(frozen=True)
class Findings:
    """What a launch did. `loads` and `stores`: how many different bytes of each tensor argument it
    read and wrote; an atomic does both. `waits`: how often a program waited for others."""

    programs: int
    waits: int
    loads: Mapping[str, int]
    stores: Mapping[str, int]


def emulate(
    kernel: JITFunction[Any],
    grid: int,
    arguments: Mapping[str, object],
    *,
    checks: Checks | None = None,
    order: Order = Order.FORWARD,
    seed: int = 0,
) -> Findings:
    """Run `kernel[(grid,)]` on tensors in this machine's memory.

    `arguments` by name, those for `tl.constexpr` too. Without `checks` only bounds are checked.
    Raises an EmulationError; the tensors then hold what had been stored by then.
    """
    tensors = {name: each for name, each in arguments.items() if isinstance(each, torch.Tensor)}
    for name, each in tensors.items():
        if each.device.type != "cpu":
            raise UnsupportedError(f"{name} is on {each.device}", hint="emulate takes CPU tensors")
    memory = EmulatedMemory(tensors, checks or Checks(races=False), where)
    builder = EmulatedBuilder(memory, grid)
    programs = Programs(grid, order, seed, builder.enter)
    with emulated(builder, partial(_spin, memory, programs)) as function:
        fixed = {param.name for param in kernel.params if param.is_constexpr}
        converted = {
            name: each if name in fixed else _argument(name, each, memory)
            for name, each in arguments.items()
        }
        body = function(kernel)
        programs.run(lambda program: body(**converted))
    return Findings(grid, programs.waits, *memory.traffic())


def _argument(name: str, value: Any, memory: EmulatedMemory) -> Any:
    """As the launcher types it: an int is i32 if it fits, a float is f32."""
    if isinstance(value, torch.Tensor):
        return _scalar(np.uint64, memory.address(name), tl.str_to_ty(mangle_type(value), None))
    if isinstance(value, bool):
        return _scalar(np.bool_, value, tl.int1)
    if isinstance(value, int):
        wide = not -(2**31) <= value < 2**31
        return _scalar(np.int64, value, tl.int64) if wide else _scalar(np.int32, value, tl.int32)
    if isinstance(value, float):
        return _scalar(np.float32, value, tl.float32)
    if value is None:
        return None
    raise UnsupportedError(
        f"argument {name} of type {type(value).__name__} in the emulator",
        hint="tensors, numbers and None can be emulated",
    )


def _scalar(kind: type[np.generic], value: object, dtype: Any) -> Any:
    return tl.tensor(Handle(np.array([value], kind), dtype), dtype)


def _spin(memory: EmulatedMemory, programs: Programs, pointer: Any, seen: Any) -> None:
    """In place of `spin_until_flipped`: others run until the sign is another one."""
    before = int(seen.handle.data.item() if isinstance(seen, tl.tensor) else seen)
    size = pointer.handle.get_element_ty().primitive_bitwidth // 8
    addresses = pointer.handle.data.reshape(1)
    real = memory.access(addresses, np.ones(1, np.bool_), size, Access.ATOMIC)
    word = WORDS[size].from_address(int(real[0]))
    address = int(addresses[0])
    programs.wait(lambda: word.value, before, memory.place(address), where())
    memory.acquire(address)
