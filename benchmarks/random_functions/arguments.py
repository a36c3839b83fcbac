"""Arguments of a random program: parts of memory, which they may share, in any order of axes, with
gaps, repeated, or from any place. Memory holds ordinary numbers, ties, or special values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

SIZES = (1, 2, 2, 3, 4, 4, 5, 8, 16, 17)
OTHER_SIZES = (2, 3, 6, 7, 9, 16)
MAX_ELEMENTS = 600
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int16, torch.int8)
STYLES = ("ordinary", "ordinary", "ties", "special")
EMPTY_SHARE = 0.04
GAP = 7  # elements behind an argument
NUMBERS = (
    *(
        0.0,
        -0.0,
        float("inf"),
        float("-inf"),
        float("nan"),
        1.0,
        -1.0,
        0.5,
        2.0,
        -2.5,
        1e-45,
        -1e-40,
    ),
    *(
        2.0**-126,
        2.0**-24,
        6e-8,
        1e4,
        -65504.0,
        65520.0,
        2.0**24 + 2,
        1e19,
        -3e38,
        1e-30,
        88.8,
        0.1,
    ),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """`seed` and `style` say what is in it."""

    dtype: torch.dtype
    count: int
    style: str
    seed: int

    def tensor(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        if self.dtype is torch.bool:
            return torch.randint(0, 2, (self.count,), generator=generator).bool()
        if not self.dtype.is_floating_point:
            return self._integers(generator)
        normal = torch.randn(self.count, generator=generator, dtype=torch.float64)
        if self.style == "ties":
            return normal.round().to(self.dtype)
        if self.style == "special":
            places = torch.randint(0, len(NUMBERS), (self.count,), generator=generator)
            is_special = torch.rand(self.count, generator=generator) < 0.3
            numbers = torch.tensor(NUMBERS, dtype=torch.float64)
            normal = torch.where(is_special, numbers[places], normal)
        return normal.to(self.dtype)

    def _integers(self, generator: torch.Generator) -> Tensor:
        low = 0 if self.dtype is torch.uint8 else -5
        numbers = torch.randint(low, 7, (self.count,), generator=generator).to(self.dtype)
        if self.style == "special":
            limits = torch.iinfo(self.dtype)
            extremes = torch.tensor([limits.min, limits.max, 0, 1], dtype=self.dtype)
            places = torch.randint(0, 4, (self.count,), generator=generator)
            is_special = torch.rand(self.count, generator=generator) < 0.2
            numbers = torch.where(is_special, extremes[places], numbers)
        return numbers


@dataclass(frozen=True, slots=True)
class Argument:
    """A part of the memory of that number. `same`: the number of an argument that is this one."""

    memory: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    same: int | None = None

    @property
    def end(self) -> int:
        """Elements of memory that it needs."""
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides) if n)
        return self.offset + reach + 1

    def of(self, memories: Sequence[Tensor]) -> Tensor:
        return memories[self.memory].as_strided(self.shape, self.strides, self.offset)


def drawn(random: Random) -> tuple[list[Memory], list[Argument]]:
    memories: list[Memory] = []
    arguments: list[Argument] = []
    style = random.choice(STYLES)
    shape = _shape(random)
    for _ in range(random.choice((1, 2, 2, 3, 3))):
        if arguments and random.random() < 0.07:
            place = random.randrange(len(arguments))
            arguments.append(_same(arguments[place], place))
        elif arguments and random.random() < 0.1:
            arguments.append(_overlapping(random, random.choice(arguments), memories))
        else:
            shape = _related(random, shape) if random.random() < 0.75 else _shape(random)
            strides, offset = _strides(random, shape)
            argument = Argument(len(memories), shape, strides, offset)
            count = argument.end + GAP
            memories.append(Memory(_dtype(random), count, style, random.getrandbits(30)))
            arguments.append(argument)
    return memories, arguments


def resized(
    random: Random, memories: Sequence[Memory], arguments: Sequence[Argument]
) -> tuple[list[Memory], list[Argument]] | None:
    """Of other sizes, equal ones still equal, in the same orders of axes. None where two arguments
    are parts of one memory."""
    alone = [argument.memory for argument in arguments if argument.same is None]
    if len({*alone}) < len(alone):
        return None
    other = {n: n if n < 2 else random.choice(OTHER_SIZES) for n in (*SIZES, 0)}
    memories, changed = [*memories], []
    for argument in arguments:
        shape = tuple(other[n] for n in argument.shape)
        strides = _like(argument.strides, shape)
        changed.append(replace(argument, shape=shape, strides=strides))
        old = memories[argument.memory]
        memories[argument.memory] = replace(old, count=changed[-1].end + GAP)
    return memories, changed


def _like(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Without gaps; what was repeated is again."""
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    own = [axis for axis in order if strides[axis]]
    step = min((strides[axis] for axis in own), default=1)
    dense = _dense(shape, own, step)
    return tuple(dense[axis] if strides[axis] else 0 for axis in range(len(shape)))


def _dtype(random: Random) -> torch.dtype:
    kind = random.random()
    if kind < 0.5:
        return torch.float32
    if kind < 0.8:
        return random.choice(FLOATS[1:])
    return random.choice(INTEGERS) if kind < 0.92 else torch.bool


def _shape(random: Random) -> tuple[int, ...]:
    shape = [random.choice(SIZES) for _ in range(random.choice((0, 1, 2, 2, 3, 3, 4, 4)))]
    while _count(shape) > MAX_ELEMENTS:
        shape[random.randrange(len(shape))] = 2
    if shape and random.random() < EMPTY_SHARE:
        shape[random.randrange(len(shape))] = 0
    return tuple(shape)


def _count(shape: Sequence[int]) -> int:
    return torch.Size(shape).numel()


def _related(random: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The same, or one that broadcasts with it."""
    if random.random() < 0.6:
        return shape
    shape = tuple(1 if random.random() < 0.3 else n for n in shape)
    return shape[random.randint(0, len(shape)) :] if random.random() < 0.3 else shape


def _strides(random: Random, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    if random.random() < 0.4:
        return _dense(shape, range(len(shape))), 0
    order = random.sample(range(len(shape)), len(shape))
    strides = [*_dense(shape, order, step=random.choice((1, 1, 2)), gap=random.choice((0, 0, 1)))]
    if shape and random.random() < 0.12:
        strides[random.randrange(len(shape))] = 0
    return tuple(strides), random.choice((0, 1, 3, 16))


def _dense(
    shape: Sequence[int], order: Sequence[int], step: int = 1, gap: int = 0
) -> tuple[int, ...]:
    """`order`: of axes, the outermost first. `gap`: elements behind each axis."""
    strides = [0] * len(shape)
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1) + (gap if step > 1 else 0)
    return tuple(strides)


def _same(argument: Argument, place: int) -> Argument:
    return Argument(argument.memory, argument.shape, argument.strides, argument.offset, place)


def _overlapping(random: Random, argument: Argument, memories: list[Memory]) -> Argument:
    """Of the same memory: the same place in another shape, or another place."""
    shape, strides = argument.shape, argument.strides
    kind = random.random()
    if kind < 0.4 and len(shape) > 1:
        return Argument(argument.memory, shape[::-1], strides[::-1], argument.offset)
    if kind < 0.7:
        return Argument(argument.memory, shape, strides, argument.offset)
    old = memories[argument.memory]
    memories[argument.memory] = Memory(old.dtype, old.count + 5, old.style, old.seed)
    return Argument(argument.memory, shape, strides, argument.offset + 5)
