"""Prints LLVM IR one instruction at a time. Knows instructions, not kernels.

All arithmetic is on vectors of `width` lanes; a uniform value is a vector whose lanes agree.
Nothing here is folded or optimised: LLVM selects and schedules what is printed, and no optimisation
passes run (they cost more time than they save; docs/design/code-generation-for-cpus.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from hemstitch.machine.cpu_numbers import CPU

BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
BITS |= {"half": 16, "bfloat": 16, "float": 32, "double": 64}
_NOT_REUSABLE = ("load", "call", "atomicrmw", "phi")  # what may differ each time
_MANGLED = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


@dataclass(frozen=True, slots=True)
class Value:
    """An LLVM value or literal: its text and its LLVM type, e.g. ("%7", "<16 x float>")."""

    text: str
    type: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    @property
    def element(self) -> str:
        """ "float" of "<16 x float>"; the type itself where it is no vector."""
        return self.type.split(" x ")[1][:-1] if self.type.startswith("<") else self.type


@dataclass(frozen=True, slots=True)
class Features:
    """What a processor has beyond what all have. `avx512`: AVX-512's instructions for vectors of 4,
    8 and 16 lanes; `bf16`: and those that multiply bf16; `fast_division`: and divides 16 lanes
    within 6 cycles, beside multiplications, where others take 16, and underflows in no time.
    `sleef`: there is a library of functions of so many doubles, and of fewer."""

    avx512: bool = False
    bf16: bool = False
    fast_division: bool = False
    sleef: int = 0


PORTABLE = Features()


class Emitter:
    """The body of one LLVM function, as it grows."""

    def __init__(self, width: int, features: Features = PORTABLE) -> None:
        self.width = width
        self.features = features
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}  # symbol -> declare line; shared by a module
        self.block = "entry"
        self._count = 0
        self._known: dict[str, Value] = {}  # instructions of this block, and what they made

    # --- plumbing

    def fresh(self, hint: str = "v") -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def define(self, type_: str, instruction: str) -> Value:
        """Append `%new = instruction` and return the new value; an equal one of this block, where
        there is one and it depends on its operands alone."""
        known = self._known.get(instruction)
        if known is not None:
            return known
        value = Value(f"%{self.fresh()}", type_)
        self.lines.append(f"  {value.text} = {instruction}")
        if not instruction.startswith(_NOT_REUSABLE):
            self._known[instruction] = value
        return value

    def line(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def comment(self, text: str) -> None:
        self.lines.append(f"  ; {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name
        self._known = {}

    def interleave(self, prints: Iterable[Callable[[], Value]]) -> list[Value]:
        """Print several chains of instructions, one of each in turn: a processor looks ahead only
        so far, and where a chain waits for itself it then finds another's. With registers enough
        each begins a little after the one before, so that not all want to multiply at the same
        time, and then all to add. What branches is printed one after the other."""
        start, block, known = len(self.lines), self.block, self._known
        results, ends = [], [start]
        for print_ in prints:
            self._known = dict(known)  # no chain may wait for another's values
            results.append(print_())
            ends.append(len(self.lines))
        self._known = known if self.block == block else {}
        if self.block == block:
            chains = [self.lines[a:b] for a, b in pairwise(ends)]
            if self.features.avx512 and len(chains[0]) > CPU.chain_lag:
                chains = [[""] * (CPU.chain_lag * k) + chain for k, chain in enumerate(chains)]
            self.lines[start:] = [line for turn in zip_longest(*chains) for line in turn if line]
        return results

    def vector(self, element: str) -> str:
        return f"<{self.width} x {element}>"

    # --- constants

    def constant(self, value: float | int | bool, element: str) -> Value:
        """Every lane is `value`. Floats are given in double and rounded to the element type."""
        text = f"{element} {literal(value, element)}"
        return Value(f"<{', '.join([text] * self.width)}>", self.vector(element))

    def mask(self, lanes: Iterable[bool]) -> Value:
        """One i1 a lane."""
        return Value(
            f"<{', '.join(f'i1 {str(lane).lower()}' for lane in lanes)}>", self.vector("i1")
        )

    def i64(self, value: int) -> Value:
        return Value(str(value), "i64")

    def lane_numbers(self, element: str = "i64") -> Value:
        """<0, 1, 2, ...>"""
        lanes = ", ".join(f"{element} {lane}" for lane in range(self.width))
        return Value(f"<{lanes}>", self.vector(element))

    def splat(self, scalar: Value) -> Value:
        """A vector of `width` copies of a scalar."""
        if not scalar.text.startswith("%"):
            return Value(f"<{', '.join([str(scalar)] * self.width)}>", self.vector(scalar.type))
        type_ = self.vector(scalar.type)
        first = self.define(type_, f"insertelement {type_} poison, {scalar}, i32 0")
        return self.define(
            type_,
            f"shufflevector {first}, {type_} poison, <{self.width} x i32> zeroinitializer",
        )

    def lane(self, vector: Value, index: int = 0) -> Value:
        """One lane as a scalar."""
        return self.define(vector.element, f"extractelement {vector}, i32 {index}")

    # --- arithmetic; operands of one type, vector or scalar

    def binary(self, instruction: str, a: Value, b: Value) -> Value:
        """`instruction` is LLVM's own name: fadd, mul, and, lshr, sdiv, ..."""
        assert a.type == b.type, f"{instruction} {a} {b}"
        return self.define(a.type, f"{instruction} {a}, {b.text}")

    def fneg(self, x: Value) -> Value:
        return self.define(x.type, f"fneg {x}")

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        """`predicate` is LLVM's: "olt", "une", ... for floats, "slt", "eq", ... for integers."""
        assert a.type == b.type, f"compare {a} {b}"
        instruction = "fcmp" if a.element in _MANGLED else "icmp"
        type_ = a.type.replace(f"x {a.element}>", "x i1>") if a.type.startswith("<") else "i1"
        return self.define(type_, f"{instruction} {predicate} {a}, {b.text}")

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        assert yes.type == no.type, f"select {yes} {no}"
        return self.define(yes.type, f"select {condition}, {yes}, {no}")

    def convert(self, instruction: str, x: Value, element: str) -> Value:
        """sitofp, uitofp, fptosi, fpext, fptrunc, zext, sext, trunc, bitcast to another element."""
        if x.element == element:
            return x
        type_ = self.vector(element) if x.type.startswith("<") else element
        return self.define(type_, f"{instruction} {x} to {type_}")

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """An overloaded LLVM intrinsic whose result has the operands' type: "fma", "sqrt", ..."""
        type_ = operands[0].type
        symbol = f"llvm.{name}.{mangle(type_)}"
        return self.call(symbol, type_, *operands)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the host can (fmuladd lets LLVM split it elsewhere)."""
        return self.intrinsic("fmuladd", a, b, c)

    def dot_bf16(self, a: Value, b: Value, c: Value) -> Value:
        """c + the products of bf16 in the lower halves of two i32 + those in the upper ones.
        VDPBF16PS takes denormals for zero."""
        if self.features.bf16:
            halves = f"<{2 * self.width} x bfloat>"
            a, b = (self.define(halves, f"bitcast {x} to {halves}") for x in (a, b))
            return self.call(f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.width}", c.type, c, a, b)
        shift, upper = self.constant(16, "i32"), self.constant(-0x10000, "i32")
        for instruction, by in (("shl", shift), ("and", upper)):
            x, y = (self.binary(instruction, bits, by) for bits in (a, b))
            c = self.fma(
                self.convert("bitcast", x, "float"), self.convert("bitcast", y, "float"), c
            )
        return c

    def scalef(self, x: Value, n: Value, where: Value | None = None) -> Value:
        """VSCALEFPS: x * 2^n of f32 for whole n, overflow and underflow included; 0 but `where`
        that i1 vector holds."""
        where = where or self.mask([True] * self.width)
        mask = self.define(f"i{self.width}", f"bitcast {where} to i{self.width}")
        if self.width < 8:
            mask = self.define("i8", f"zext {mask} to i8")
        rounding = [Value("4", "i32")] if self.width == 16 else []  # as the current mode says
        return self._avx512("mask.scalef.ps", x, n, mask, *rounding)

    def rcp14(self, x: Value) -> Value:
        """VRCP14PS: 1 / x of f32 to 2^-14."""
        return self._avx512("rcp14.ps", x, Value("-1", f"i{max(self.width, 8)}"))

    def _avx512(self, name: str, *operands: Value) -> Value:
        """An instruction under a mask; what that leaves out is zero."""
        assert self.features.avx512, "the host has no such instruction"
        vectors = [operand for operand in operands if operand.type.startswith("<")]
        zero = Value("zeroinitializer", vectors[0].type)
        rest = operands[len(vectors) :]
        symbol = f"llvm.x86.avx512.{name}.{32 * self.width}"
        return self.call(symbol, zero.type, *vectors, zero, *rest)

    def call(self, symbol: str, result: str, *operands: Value) -> Value:
        """Call an external function; `result` is its LLVM type, "void" for none."""
        types = ", ".join(operand.type for operand in operands)
        self.declarations[symbol] = f"declare {result} @{symbol}({types})"
        text = f"call {result} @{symbol}({', '.join(map(str, operands))})"
        if result == "void":
            self.line(text)
            return Value("undef", "void")
        return self.define(result, text)

    def per_lane(self, symbol: str, element: str, *vectors: Value) -> Value:
        """Call a scalar C function once a lane: for functions too rare to vectorise."""
        type_ = self.vector(element)
        result = Value("poison", type_)
        for index in range(self.width):
            scalars = [self.lane(vector, index) for vector in vectors]
            lane_result = self.call(symbol, element, *scalars)
            result = self.define(type_, f"insertelement {result}, {lane_result}, i32 {index}")
        return result

    def per_part(self, symbol: str, lanes: int, *vectors: Value) -> Value:
        """Call a C function of vectors of `lanes` lanes once for each that `vectors` have."""
        element = vectors[0].element
        type_ = f"<{lanes} x {element}>"
        parts = []
        for first in range(0, self.width, lanes):
            places = range(first, first + lanes)
            operands = [self._shuffled(vector, vector, places) for vector in vectors]
            parts.append(self.call(symbol, type_, *operands))
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2])
            parts = [self._shuffled(a, b, range(2 * lanes)) for a, b in pairs]
            lanes *= 2
        return parts[0]

    def _shuffled(self, a: Value, b: Value, places: range) -> Value:
        order = ", ".join(f"i32 {place}" for place in places)
        instruction = f"shufflevector {a}, {b}, <{len(places)} x i32> <{order}>"
        return self.define(f"<{len(places)} x {a.element}>", instruction)

    # --- control flow

    def loop(
        self,
        low: Value,
        high: Value,
        step: Value,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """for (i = low; i < high; i += step) carried = body(i, carried); returns the last carried.

        The body may be skipped altogether. All of i, low, high, step are i64.
        """
        head, inside, done = self.fresh("head"), self.fresh("body"), self.fresh("done")
        before = self.block
        self.line(f"br label %{head}")
        self.label(head)
        index = Value(f"%{self.fresh('i')}", "i64")
        phis = [Value(f"%{self.fresh('c')}", value.type) for value in carried]
        place = len(self.lines)
        more = self.compare("slt", index, high)
        self.line(f"br i1 {more.text}, label %{inside}, label %{done}")
        self.label(inside)
        results = list(body(index, phis))
        following = self.binary("add", index, step)
        latch = self.block
        self.line(f"br label %{head}")
        lines = [
            f"  {phi.text} = phi {phi.type} [{first.text}, %{before}], [{last.text}, %{latch}]"
            for phi, first, last in zip([index, *phis], [low, *carried], [following, *results])
        ]
        self.lines[place:place] = lines
        self.label(done)
        return phis

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run what is emitted inside only if the i1 `condition` holds. Nothing may escape."""
        yes, after = self.fresh("yes"), self.fresh("after")
        self.line(f"br {condition}, label %{yes}, label %{after}")
        self.label(yes)
        yield
        self.line(f"br label %{after}")
        self.label(after)


def literal(value: float | int | bool, element: str) -> str:
    """`value` as LLVM text of type `element`, rounded to it. Floats are printed by their bits."""
    if element == "i1":
        return "true" if value else "false"
    if element not in _MANGLED:
        return str(int(value))
    if element == "half":
        return "0xH" + struct.pack(">e", _saturate(value, "e")).hex().upper()
    if element == "float":  # LLVM wants the double that equals the float
        value = as_f32(value)
    assert element != "bfloat", "bfloat constants are made in float"
    return "0x" + struct.pack(">d", value).hex().upper()


def as_f32(value: float) -> float:
    """Rounded to f32, beyond whose range it is infinite."""
    rounded: float = struct.unpack("f", struct.pack("f", _saturate(value, "f")))[0]
    return rounded


def _saturate(value: float, code: str) -> float:
    try:
        struct.pack(code, value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


def mangle(type_: str) -> str:
    """LLVM's overload suffix: v16f32 for <16 x float>."""
    if not type_.startswith("<"):
        return _MANGLED.get(type_, type_)
    count, element = type_[1:-1].split(" x ")
    return f"v{count}{_MANGLED.get(element, element)}"
