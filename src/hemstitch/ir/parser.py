"""Text -> graph, the inverse of `printer.show`: for tests and bug reports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from hemstitch.errors import InternalError
from hemstitch.ir import dims
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import (
    Attention,
    AttentionBackward,
    Convolution,
    ConvolutionBackward,
    LibraryCall,
    MatmulAxis,
    Operand,
    Operation,
    ResultTypes,
    Strides,
    StructuredCall,
    Within,
)
from hemstitch.ir.dims import Dim
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import (
    CALLED,
    Address,
    Attr,
    Graph,
    InputAttr,
    Node,
    Op,
    Output,
    Range,
    Windows,
)
from hemstitch.ir.ops import OPS, SCANNED, OpClass
from hemstitch.ir.types import DType, TensorType

Item = TypeVar("Item")

_TOKEN = re.compile(
    r"""
    (?P<skip> \s+ | \#.* )
  | (?P<text> "(?:[^"\\]|\\.)*" )
  | (?P<float> -?(?:inf|nan)\b | -?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+) )
  | (?P<int> -?\d+ )
  | (?P<node> %\d+ )
  | (?P<operand> \$\d+ )
  | (?P<word> [A-Za-z_]\w* )
  | (?P<mark> ::|//|[\[\](){}<>,=*+%] )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Opaque:
    """A library call's argument of which only the text is known."""

    text: str

    def __str__(self) -> str:
        return self.text


def parse(text: str, builder: Builder) -> Graph:
    """The graph that `text` shows, its nodes made by `builder`. Library calls have no target."""
    parts = _Parts()
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            reader = _Reader(_tokens(line), builder, parts.nodes, parts.symbols)
            if reader.kind is not None:
                _line(reader, parts)
        except (KeyError, ValueError, AssertionError) as error:
            raise InternalError(f"line {number}: {line.strip()}: {error}") from error
    return Graph(
        tuple(node for node in parts.nodes.values() if node.op is Op.INPUT),
        tuple(parts.outputs),
        tuple(parts.effects),
        parts.symbols,
        parts.hints,
    )


def parse_dim(text: str) -> Dim:
    """The size that `text` shows. Raises ValueError where it shows none."""
    reader = _Reader(_tokens(text), Builder(), {})
    size = reader.dim()
    reader.expect("")
    return size


@dataclass
class _Parts:
    """What has been read so far."""

    nodes: dict[str, Node] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    effects: list[Node] = field(default_factory=list)
    symbols: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)


def _tokens(line: str) -> list[tuple[str, str]]:
    """(kind, text) of each token; a last one of kind "end"."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(line):
        match = _TOKEN.match(line, position)
        if match is None:
            raise ValueError(f"cannot read {line[position:]!r}")
        if match.lastgroup and match.lastgroup != "skip":
            tokens.append((match.lastgroup, match.group()))
        position = match.end()
    return [*tokens, ("end", "")]


@dataclass
class _Reader:
    """The tokens of one line, read from left to right."""

    tokens: list[tuple[str, str]]
    builder: Builder
    nodes: Mapping[str, Node]
    symbols: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    position: int = 0

    @property
    def kind(self) -> str | None:
        """Of the next token; None at the end of the line."""
        kind = self.tokens[self.position][0]
        return None if kind == "end" else kind

    def take(self, kind: str) -> str:
        next_kind, text = self.tokens[self.position]
        if next_kind != kind:
            raise ValueError(f"expected a token of kind {kind}, found {text or 'the line end'!r}")
        self.position += 1
        return text

    def accept(self, text: str) -> bool:
        """Steps over the next token if it is `text`."""
        kind, next_text = self.tokens[self.position]
        matches = next_text == text and kind != "text"
        self.position += matches
        return matches

    def expect(self, text: str) -> None:
        if not self.accept(text):
            next_text = self.tokens[self.position][1]
            raise ValueError(f"expected {text!r}, found {next_text or 'the line end'!r}")

    def integer(self) -> int:
        return int(self.take("int"))

    def string(self) -> str:
        return str(json.loads(self.take("text")))

    def node(self) -> Node:
        return self.nodes[self.take("node")]

    def items(self, read: Callable[[], Item], opening: str = "(", closing: str = ")") -> list[Item]:
        """opening item, item, ... closing"""
        self.expect(opening)
        items: list[Item] = []
        while not self.accept(closing):
            if items:
                self.expect(",")
            items.append(read())
        return items

    # --- sizes and types

    def dim(self) -> Dim:
        total = self._product()
        while self.accept("+"):
            total = total + self._product()
        return total

    def _product(self) -> Dim:
        total = self._factor()
        while self.accept("*"):
            total = total * self._factor()
        return total

    def _factor(self) -> Dim:
        if self.kind == "int":
            return self.integer()
        if self.kind == "word":
            name = self.take("word")
            if name in ("min", "max"):
                return dims.choice(name, self.items(self.dim))
            return dims.symbol(name, signed=self.symbols.get(name, (0, 0))[1] is None)
        self.expect("(")
        (numerator,) = self.items(self.dim)
        divide = dims.remainder if self.accept("%") else dims.quotient
        if divide is dims.quotient:
            self.expect("//")
        (denominator,) = self.items(self.dim)
        self.expect(")")
        return divide(numerator, denominator)

    def dims(self) -> tuple[Dim, ...]:
        return tuple(self.items(self.dim))

    def strides(self) -> tuple[Dim, ...]:
        self.expect("strides")
        return self.dims()

    def type(self) -> TensorType:
        dtype = DType(self.take("word"))
        return TensorType(tuple(self.items(self.dim, "[", "]")), dtype)

    # --- attributes

    def constant(self) -> bool | int | float:
        if self.kind == "word":
            return self._word_argument(self.take("word")) is True
        return float(self.take("float")) if self.kind == "float" else self.integer()

    def integers(self) -> tuple[int, ...]:
        return tuple(self.items(self.integer))

    def ranges(self) -> tuple[Range, ...]:
        return tuple(self.items(self._range))

    def _range(self) -> Range:
        start = self.dim()
        self.expect("::")
        return Range(start, self.integer())

    def windows(self) -> Windows:
        numbers = []
        for word in ("axis", "size", "step"):
            self.expect(word)
            numbers.append(self.integer())
        return Windows(*numbers)

    def addresses(self) -> tuple[Address, ...]:
        return tuple(self.items(self._address))

    def _address(self) -> Address:
        if self.take("word") == "axis":
            return Address(axis=self.integer())
        address = Address(operand=self.integer())
        return replace(address, failure=self.failure()) if self.accept("fails") else address

    def failure(self) -> Failure:
        error = self.take("word")
        return Failure(error, self.string())

    def input(self) -> InputAttr:
        name = self.string()
        self.expect("position")
        position = self.integer()
        return InputAttr(
            *(name, position, self.strides()),
            frozen=self.accept("frozen"),
            is_written=self.accept("written"),
        )

    def structured(self, operation: Callable[..., Operation]) -> StructuredCall:
        attributes: dict[str, Any] = {}
        while not self.accept("operands"):
            name = self.take("word")
            if name == "within":
                attributes[name] = self.within()
            else:
                attributes[name] = self.flag() if self.kind == "word" else self.argument()
        if operation is ConvolutionBackward:
            wanted = attributes.pop("wanted")
            attributes = {"convolution": Convolution(**attributes), "wanted": wanted}
        if operation is AttentionBackward:
            attributes = {"attention": Attention(**attributes)}
        return StructuredCall(operation(**attributes), *self._memory())

    def flag(self) -> bool:
        """False where it says so; a name alone is true."""
        return not self.accept("false")

    def _memory(self) -> tuple[tuple[Strides | None, ...], ResultTypes]:
        """How operands and results of a call lie."""
        strides = tuple(self.items(lambda: None if self.accept("none") else self.dims()))
        self.expect("results")
        return strides, tuple(self.items(self._result))

    def library_call(self) -> LibraryCall:
        name = self.string()
        self.expect("arguments")
        arguments = tuple(self.items(self.argument))
        self.expect("keywords")
        keywords = tuple(self.items(self._keyword))
        self.expect("operands")
        memory = self._memory()
        is_tuple, effects = self.accept("tuple"), self.accept("effects")
        return LibraryCall(name, None, arguments, keywords, *memory, is_tuple, effects)

    def within(self) -> Within | None:
        if self.kind is None:
            return None
        low = MatmulAxis(self.take("word"))
        self.expect("within")
        high = MatmulAxis(self.take("word"))
        return Within(low, high, self.integer() if self.accept("plus") else 0)

    def _result(self) -> tuple[TensorType, tuple[Dim, ...]] | None:
        if self.accept("none"):
            return None
        type_ = self.type()
        return type_, self.strides()

    def _keyword(self) -> tuple[str, object]:
        name = self.take("word")
        self.expect("=")
        return name, self.argument()

    def argument(self) -> object:
        kind, text = self.tokens[self.position]
        if text == "(":
            return tuple(self.items(self.argument))
        if text == "{":
            return self.items(self.dim, "{", "}")[0]
        if text == "<":
            return Opaque(self.items(self.string, "<", ">")[0])
        return _ARGUMENTS[kind](self, self.take(kind))

    def _word_argument(self, word: str) -> bool | None:
        return {"none": None, "true": True, "false": False}[word]


_ARGUMENTS: dict[str, Callable[[_Reader, str], object]] = {
    "text": lambda _, text: json.loads(text),
    "int": lambda _, text: int(text),
    "float": lambda _, text: float(text),
    "operand": lambda _, text: Operand(int(text[1:])),
    "word": _Reader._word_argument,
}
_ATTRIBUTES: dict[Op, Callable[[_Reader], Attr]] = {
    Op.INPUT: _Reader.input,
    Op.CONSTANT: _Reader.constant,
    Op.SIZE: _Reader.dim,
    Op.SLICE: _Reader.ranges,
    Op.UNFOLD: _Reader.windows,
    **dict.fromkeys((Op.GATHER, Op.SCATTER_ADD), _Reader.addresses),
    Op.LIBRARY: _Reader.library_call,
    **{op: partial(_Reader.structured, operation=kind) for kind, op in CALLED.items()},
    Op.CHECK: _Reader.failure,
    Op.DOT: _Reader.within,
    **dict.fromkeys((Op.IOTA, Op.CONCAT, Op.RESULT, *SCANNED), _Reader.integer),
    **dict.fromkeys((Op.PERMUTE, Op.PAD), _Reader.integers),
    **{op: _Reader.integers for op, row in OPS.items() if row.op_class is OpClass.REDUCTION},
}


def _line(reader: _Reader, parts: _Parts) -> None:
    if reader.kind == "node":
        name = reader.take("node")
        reader.expect("=")
        parts.nodes[name] = _node(reader)
    else:
        _STATEMENTS[reader.take("word")](reader, parts)
    if reader.kind is not None:
        raise ValueError(f"did not expect {reader.tokens[reader.position][1]!r}")


def _node(reader: _Reader) -> Node:
    op = Op(reader.take("word"))
    type_ = reader.type()
    inputs: list[Node] = []
    while reader.kind == "node":
        inputs.append(reader.node())
        reader.accept(",")
    attr = _ATTRIBUTES[op](reader) if op in _ATTRIBUTES else None
    return reader.builder.make(op, *inputs, attr=attr, type=type_)


def _symbol(reader: _Reader, parts: _Parts) -> None:
    name = reader.take("word")
    reader.expect("=")
    reader.expect("argument")
    position = reader.integer()
    parts.symbols[name] = (position, reader.integer() if reader.accept("axis") else None)
    if reader.accept("hint"):
        parts.hints[name] = reader.integer()


def _output(reader: _Reader, parts: _Parts) -> None:
    value = reader.node()
    strides = reader.strides()
    mutates = reader.node() if reader.accept("into") else None
    may_share = reader.accept("may")
    if may_share:
        reader.expect("share")
    parts.outputs.append(Output(value, strides, mutates, may_share))


def _effect(reader: _Reader, parts: _Parts) -> None:
    parts.effects.append(reader.node())


_STATEMENTS: dict[str, Callable[[_Reader, _Parts], None]] = {
    "symbol": _symbol,
    "output": _output,
    "effect": _effect,
}
