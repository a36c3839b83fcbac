"""The memory that a launch may touch: its tensor arguments, each in an address range of its own.

A kernel sees virtual addresses, far apart, so that a step over the end of one tensor never lands in
another, even where they share memory. Each access is checked before it happens: bounds, races, and
reads of scratch in which nobody has stored, or somebody by another argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import NoReturn

import numpy as np
import torch

from hemstitch.errors import Location
from testing.emulator.clocks import Clocks
from testing.emulator.findings import (
    OutOfBoundsError,
    RaceError,
    UnwrittenScratchError,
)
from testing.emulator.history import (
    GARBAGE,
    UNTOUCHED,
    Access,
    Conflict,
    Histories,
)
from testing.emulator.numerics import Array

SPACE = 40  # bits of the address range of one argument, which starts in the middle
MIDDLE = 1 << (SPACE - 1)
_Tile = tuple[tuple[int, ...], bytes]  # the shape of an access, and its addresses


@dataclass(frozen=True)
class Checks:
    """`races`: unordered accesses of different programs; `threads`, with it: loads of what the same
    program has stored since its last `debug_barrier`, and stores over what it has loaded since, but
    for one tile at once: they are right only if the same thread does both. `scratch`: names of
    arguments that hold garbage at first. Bounds are always checked."""

    races: bool = True
    threads: bool = False
    scratch: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Argument:
    name: str
    number: int
    start: int  # real address
    size: int  # bytes from the first to the last element
    item: int

    @property
    def virtual(self) -> int:
        return (self.number << SPACE) + MIDDLE

    def place(self, offset: int) -> str:
        return f"{self.name}[{offset // self.item}] (byte {offset} of {self.size})"


class _Region:
    """Arguments that overlap. One history for each `cell` bytes; a cell shrinks to one byte as soon
    as an access does not fit."""

    def __init__(self, arguments: list[_Argument], scratch: frozenset[str]) -> None:
        self.arguments = arguments
        self.start = arguments[0].start
        size = max(each.start + each.size for each in arguments) - self.start
        self.cell = gcd(*(n for each in arguments for n in (each.item, each.start - self.start)))
        self.pasts = np.full(size // self.cell, UNTOUCHED, np.int32)
        for each in arguments:
            if each.name in scratch:
                self.part(each)[:] = GARBAGE

    def part(self, argument: _Argument) -> Array:
        first = (argument.start - self.start) // self.cell
        return self.pasts[first : first + argument.size // self.cell]

    def cells(self, offsets: Array, size: int) -> Array:
        """The cells of accesses of `size` bytes at these offsets."""
        if self.cell > 1 and (size % self.cell or (offsets % self.cell).any()):
            self.pasts = np.repeat(self.pasts, self.cell)
            self.cell = 1
        count = size // self.cell
        cells = offsets // self.cell
        return cells if count == 1 else (cells[:, None] + np.arange(count)).reshape(-1)


class EmulatedMemory:
    """`where`: gives the line of the kernel that is running."""

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        checks: Checks,
        where: Callable[[], Location | None],
    ) -> None:
        self.program = 0
        self.clocks = Clocks() if checks.races else None
        self._histories = Histories(self.clocks, checks.threads)
        self._where = where
        self._threads = checks.threads
        self._loaded: dict[int, set[_Tile]] = {}  # since a program's last barrier
        self._arguments = [
            _Argument(name, number, tensor.data_ptr(), _extent(tensor), tensor.element_size())
            for number, (name, tensor) in enumerate(tensors.items())
        ]
        self._virtual = {each.name: each.virtual for each in self._arguments}
        regions = [_Region(group, checks.scratch) for group in _overlapping(self._arguments)]
        self._regions = {each: region for region in regions for each in region.arguments}
        self._to_real = np.array([a.start - a.virtual for a in self._arguments] or [0], np.int64)

    def address(self, name: str) -> int:
        """Where the kernel sees the first element of this argument."""
        return self._virtual[name]

    def place(self, address: int) -> str:
        argument = self._arguments[address >> SPACE]
        return argument.place(address - argument.virtual)

    def access(self, addresses: Array, mask: Array, size: int, access: Access) -> Array:
        """Check `size` bytes at each address; real addresses where the mask is set."""
        own = self._threads and self._is_own((addresses.shape, addresses.tobytes()), access)
        mask = np.broadcast_to(mask, addresses.shape)
        whole = bool(mask.all())
        active = (addresses if whole else addresses[mask]).reshape(-1).astype(np.int64)
        if not active.size:
            return addresses
        numbers = active >> SPACE
        if (numbers == numbers[0]).all():
            self._touch(int(numbers[0]), active, size, access, own)
            return addresses + np.int64(self._to_real[numbers[0]]).astype(np.uint64)
        for number in np.unique(numbers):
            self._touch(int(number), active[numbers == number], size, access, own)
        everywhere = np.where(mask, addresses.astype(np.int64) >> SPACE, numbers[0])
        return addresses + self._to_real[everywhere].astype(np.uint64)

    def _is_own(self, tile: _Tile, access: Access) -> bool:
        """Whether each thread may be taken to have loaded itself what it stores."""
        loaded = self._loaded.setdefault(self.program, set())
        if access is Access.READ:
            loaded.add(tile)
        return tile in loaded

    def barrier(self) -> None:
        if self.clocks is not None:
            self.clocks.barrier(self.program)
            self._histories.forget(self.program)
        self._loaded.pop(self.program, None)

    def acquire(self, address: int) -> None:
        if self.clocks is not None:
            self.clocks.acquire(self.program, address)
            self._histories.forget(self.program)

    def release(self, address: int) -> None:
        if self.clocks is not None:
            self.clocks.release(self.program, address)

    def ambiguous(self, addresses: Array, wrong: Array) -> NoReturn:
        """A store gave one address two values; `wrong` says where it holds the other."""
        place = self.place(int(addresses[wrong].reshape(-1)[0]))
        raise RaceError(
            f"program {self.program} stores different values to {place} at once",
            where=self._where(),
        )

    def traffic(self) -> tuple[dict[str, int], dict[str, int]]:
        """The number of different bytes of each argument that were read, and written."""
        read = np.array([past.was_read for past in self._histories.pasts])
        written = np.array([past.was_written for past in self._histories.pasts])
        loads, stores = {}, {}
        for each, region in self._regions.items():
            pasts = region.part(each)
            loads[each.name] = int(read[pasts].sum()) * region.cell
            stores[each.name] = int(written[pasts].sum()) * region.cell
        return loads, stores

    def _touch(self, number: int, addresses: Array, size: int, access: Access, own: bool) -> None:
        self._check_number(number, int(addresses[0]), access)
        argument = self._arguments[number]
        region = self._regions[argument]
        offsets = addresses - argument.virtual
        outside = (offsets < 0) | (offsets > argument.size - size)
        if outside.any():
            place = argument.place(int(offsets[outside][0]))
            raise OutOfBoundsError(
                f"program {self.program} {access.value} {size} bytes at {place}",
                where=self._where(),
            )
        cells = region.cells(offsets + (argument.start - region.start), size)
        pasts = region.pasts[cells]
        if (pasts == pasts[0]).all():
            region.pasts[cells] = self._after(argument, int(pasts[0]), cells, pasts, access, own)
            return
        present = np.flatnonzero(np.bincount(pasts))
        table = np.zeros(int(present[-1]) + 1, np.int32)
        for past in present:
            table[past] = self._after(argument, int(past), cells, pasts, access, own)
        region.pasts[cells] = table[pasts]

    def _check_number(self, number: int, address: int, access: Access) -> None:
        if not 0 <= number < len(self._arguments):
            raise OutOfBoundsError(
                f"program {self.program} {access.value} at {address:#x}, far from every argument",
                where=self._where(),
            )

    def _after(
        self,
        argument: _Argument,
        past: int,
        cells: Array,
        pasts: Array,
        access: Access,
        own: bool,
    ) -> int:
        """The number of the past after this access; raises if it may not happen."""
        next_past = self._histories.after(past, access, self.program, argument.name, own)
        before = self._histories.pasts[past]
        is_stale = before.is_garbage and before.stored_by != argument.name
        if isinstance(next_past, int) and (access is Access.WRITE or not is_stale):
            return next_past
        region = self._regions[argument]
        address = int(cells[pasts == past][0]) * region.cell + region.start
        doing = f"program {self.program} {access.value} {argument.place(address - argument.start)}"
        if isinstance(next_past, Conflict):
            other = f"program {next_past.other} {next_past.access.value}"
            raise RaceError(f"{doing}, and nothing orders that {other} it", where=self._where())
        held = f"holds {before.stored_by}" if before.was_written else "nobody has written"
        raise UnwrittenScratchError(f"{doing}, which {held}", where=self._where())


def _overlapping(arguments: list[_Argument]) -> list[list[_Argument]]:
    """The arguments, those together that share bytes."""
    groups: list[list[_Argument]] = []
    end = -1
    for each in sorted(arguments, key=lambda argument: argument.start):
        if each.start < end:
            groups[-1].append(each)
        else:
            groups.append([each])
        end = max(end, each.start + each.size)
    return groups


def _extent(tensor: torch.Tensor) -> int:
    if prod(tensor.shape) == 0:
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()
