"""Draws a random program line by line: each is tried on the values of the lines before, so that
eager PyTorch runs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

import torch
from torch import Tensor

from benchmarks.random_functions import arguments as random_arguments
from benchmarks.random_functions.functions import FAMILIES
from benchmarks.random_functions.program import Line, Program, namespace

MAX_LINES, MAX_ELEMENTS, MAX_AXES = 8, 2_000, 5
TRIES = 40
RESULTS = 3
SCALARS = ("0", "1", "-1", "2", "0.5", "-0.3", "3.7", "True", "-0.0", "1e-3", "1e4", "float('inf')")
NAMES = re.compile(r"\{(\w+)((?: \w+)*)\}")
TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")


class NoSuchValue(Exception):
    """A template asks for what no value of the program is."""


def drawn(seed: int) -> Program:
    random = Random(seed)
    memories, arguments = random_arguments.drawn(random)
    settings = {
        "gradients": random.random() < 0.5,
        "dynamic": random.random() < 0.12,
        "autocast": random.random() < 0.06,
    }
    program = Program(tuple(memories), tuple(arguments), (), (), **settings)
    lines: list[Line] = []
    with program.context(), torch.no_grad():
        values = dict(zip(program.parameters, program.tensors()))
        for _ in range(TRIES):
            if len(lines) < random.randint(3, MAX_LINES):
                line = _line(random, values, f"v{len(lines)}")
                lines += [line] if line is not None else []
    names = [*values]
    returned = [names[-1]] + [random.choice(names) for _ in range(random.randint(0, RESULTS - 1))]
    return program.replaced(lines=tuple(lines), returned=tuple(dict.fromkeys(returned)))


def _line(random: Random, values: dict[str, Tensor], target: str) -> Line | None:
    """None where eager does not run what was drawn. `values` has then its value."""
    names = [*values]
    name = names[-1] if random.random() < 0.5 else random.choice(names)
    x = values[name]
    families = [family for family in FAMILIES if KINDS[family.operand](x)]
    family = random.choices(families, [family.weight for family in families])[0]
    template = random.choice(family.templates)
    try:
        text = NAMES.sub(partial(_filled, Choice(random, values, name)), template)
        line = Line(target, text, name, family.rounds, family.adds, family.name == "assigned")
        scope = namespace() | values
        exec(line.statement, scope)
    except Exception:  # of eager: the line is left out
        return None
    value = scope[target]
    if not isinstance(value, Tensor) or value.numel() > MAX_ELEMENTS or value.dim() > MAX_AXES:
        return None
    values[target] = value
    return line


KINDS: Mapping[str, Callable[[Tensor], bool]] = {
    "any": lambda x: True,
    "float": lambda x: x.is_floating_point(),
    "int": lambda x: not x.is_floating_point(),
    "axes": lambda x: x.dim() > 0,
    "square": lambda x: x.dim() == 2 and x.is_floating_point(),
    "sequence": lambda x: x.dim() == 3 and x.is_floating_point(),
    "image": lambda x: x.dim() == 4 and x.is_floating_point(),
}


def _filled(choice: Choice, match: re.Match[str]) -> str:
    name, words = match[1], match[2].split()
    if name == "weight":
        return choice.weight(words)
    if name not in choice.known:
        choice.known[name] = getattr(choice, name)()
    return choice.known[name]


class Choice:
    """What the names in a template stand for; the same name is the same in all of the template."""

    def __init__(self, random: Random, values: Mapping[str, Tensor], name: str) -> None:
        self.random, self.values = random, values
        self.value = values[name]
        self.known: dict[str, str] = {"x": name}
        axes = max(self.value.dim(), 1)
        self.axis, self.other = random.randrange(axes), random.randrange(axes)

    def _size(self, axis: int | None = None) -> int:
        axis = self.axis if axis is None else axis
        return self.value.shape[axis] if axis < self.value.dim() else 1

    def _one_of(self, fits: Callable[[Tensor], bool]) -> str:
        names = [name for name, value in self.values.items() if fits(value)]
        if not names:
            raise NoSuchValue
        return self.random.choice(names)

    def v(self) -> str:
        """A value that broadcasts with the operand."""
        return self._one_of(lambda value: _meet(value.shape, self.value.shape))

    u = v

    def y(self) -> str:
        return self.s() if self.random.random() < 0.25 else self.v()

    z = y

    def w(self) -> str:
        """Of the operand's shape."""
        return self._one_of(lambda value: value.shape == self.value.shape)

    w2 = w

    def i(self) -> str:
        """An integer value, or a number."""
        fits = (value for value in self.values.values() if not value.is_floating_point())
        if any(_meet(value.shape, self.value.shape) for value in fits):
            return self._one_of(
                lambda value: not value.is_floating_point() and _meet(value.shape, self.value.shape)
            )
        return self.k()

    def small(self) -> str:
        return f"torch.arange({self._size(self.value.dim() - 1)}) % 5 - 2"

    def m(self) -> str:
        """A mask."""
        masks = [
            name
            for name, value in self.values.items()
            if value.dtype is torch.bool and _meet(value.shape, self.value.shape)
        ]
        if masks and self.random.random() < 0.5:
            return self.random.choice(masks)
        return f"({self.v()} {self.random.choice(('>', '<=', '==', '!='))} {self.s()})"

    def m0(self) -> str:
        return f"({self.known['x']} > {self.s()})"

    def s(self) -> str:
        return self.random.choice(SCALARS)

    s2 = s

    def p(self) -> str:
        return self.random.choice(("0.1", "0.5", "2.0", "0.7", "1.0", "0"))

    def k(self) -> str:
        return str(self.random.choice((0, 1, 1, 2, 3)))

    k0 = k

    def k1(self) -> str:
        return str(self.random.choice((1, 2, 3, -2)))

    def whole(self) -> str:
        return str(self.random.choice((1, 2, -1, 3, 0)))

    def d(self) -> str:
        return str(self.axis - self.random.choice((0, max(self.value.dim(), 1))))

    def e(self) -> str:
        return str(self.other)

    def start(self) -> str:
        return str(self._size() // 3)

    def rest(self) -> str:
        return str((self._size() - self._size() // 3 + 1) // 2)

    def j(self) -> str:
        return str(self.random.randrange(-self._size(), self._size()))

    def j0(self) -> str:
        return str(self.random.randrange(-self._size(0), self._size(0)))

    def count(self) -> str:
        return str(self.random.randint(1, max(1, min(3, self._size()))))

    def order(self) -> str:
        return ", ".join(map(str, self.random.sample(range(self.value.dim()), self.value.dim())))

    def split(self) -> str:
        """A shape of as many elements."""
        shape = [*self.value.shape]
        if self.random.random() < 0.5 and len(shape) > 1:
            shape[-2:] = [shape[-2] * shape[-1]]
        elif shape[-1] % 2 == 0:
            shape[-1:] = [shape[-1] // 2, 2]
        return str(tuple(shape))

    def wider(self) -> str:
        shape = [*self.value.shape]
        shape.insert(int(self.known.get("d", "0")) % (self.value.dim() + 1), 3)
        return ", ".join(map(str, shape))

    def strided(self) -> str:
        count = self.value.numel()
        rows = max(1, min(4, count // 4))
        return f"({rows}, 2), ({self.random.choice((1, 2))}, {self.random.choice((1, 2))})"

    def t(self) -> str:
        return f"torch.{self.random.choice(TYPES)}"

    def ft(self) -> str:
        return f"torch.{self.random.choice(TYPES[:4])}"

    def it(self) -> str:
        return f"torch.{self.random.choice(TYPES[4:6])}"

    def _indices(self, size: int, count: int) -> str:
        """Some that are given, or that another value has."""
        if self.random.random() < 0.3:
            integers = [n for n, v in self.values.items() if v.dtype in (torch.int64, torch.int32)]
            if integers:
                return f"({self.random.choice(integers)}.flatten()[:{count}].long() % {size})"
        return f"torch.tensor({[self.random.randrange(size) for _ in range(count)]})"

    def indices(self) -> str:
        return self._indices(self._size(), self.random.randint(1, 4))

    def indices0(self) -> str:
        return self._indices(self._size(0), self.random.randint(1, 4))

    def indices1(self) -> str:
        return self._indices(self._size(1), self.random.randint(1, 4))

    def negative(self) -> str:
        size = self._size(self.value.dim() - 1)
        return f"torch.tensor({[self.random.randrange(-size, size) for _ in range(3)]})"

    def unique(self) -> str:
        size = self._size()
        return f"torch.tensor({self.random.sample(range(size), min(size, 3))})"

    def unique0(self) -> str:
        size = self._size(0)
        return f"torch.tensor({self.random.sample(range(size), min(size, 3))})"

    def positions(self) -> str:
        """Of the operand's shape."""
        shape, size = tuple(self.value.shape), self._size()
        return f"(torch.arange({self.value.numel()}).view({shape}) * 7 % {size})"

    def permuted(self) -> str:
        """Of the operand's shape, without repetitions along its axis."""
        size = self._size()
        order = self.random.sample(range(size), size)
        rest = self.value.dim() - 1 - self.axis
        return (
            f"torch.tensor({order}).view({(size,) + (1,) * rest}).expand({tuple(self.value.shape)})"
        )

    def flat(self) -> str:
        return f"torch.tensor({[self.random.randrange(self.value.numel()) for _ in range(4)]})"

    def classes(self) -> str:
        return f"(torch.arange({self._size(0)}) % {self._size(1)})"

    def weight(self, words: Sequence[str]) -> str:
        """`L`, `C` and `N` are the operand's last, second and first size."""
        last = self._size(self.value.dim() - 1)
        sizes = {"L": last, "C": self._size(1), "N": self._size(0)}
        shape = tuple(sizes[word] if word in sizes else int(word) for word in words)
        count = torch.Size(shape).numel()
        return (
            f"((torch.arange({count}) * 3 % 7 - 3) / 4).view({shape}).to({self.known['x']}.dtype)"
        )


def _meet(x: torch.Size, y: torch.Size) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(x), reversed(y)))
