"""The graph IR: an immutable DAG of tensor operations.

A node never changes. A pass builds new nodes and leaves the old graph as it was.
Equal nodes are the same object, because only `Builder` makes nodes and it interns them.

Conventions that keep later stages small:
- operands of elementwise ops have the shape of the result: broadcasting is explicit (`BROADCAST`),
  a constant carries the shape it is used at;
- operands of arithmetic have one element type: promotion is explicit (`CAST`);
- reductions drop their axes; a kept axis is a `RESHAPE` afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from hemstitch.errors import Location
from hemstitch.ir.calls import (
    Attention,
    AttentionBackward,
    Call,
    Convolution,
    ConvolutionBackward,
    LibraryCall,
    Matmul,
    Operation,
    StructuredCall,
    Within,
)
from hemstitch.ir.dims import Dim
from hemstitch.ir.failure import OUT_OF_RANGE, Failure
from hemstitch.ir.types import TensorType


class Op(Enum):
    """The closed set of operations. Each has one row in `hemstitch.ir.ops.OPS`."""

    __hash__ = object.__hash__  # a member is only equal to itself; Enum's own hashes its name

    # sources
    INPUT = "input"  # InputAttr
    CONSTANT = "constant"  # bool | int | float: every element is this value
    SIZE = "size"  # Dim: a size as an i64 scalar
    IOTA = "iota"  # int: i64, the index along this axis
    PHILOX = "philox"  # inputs (seed i64[]), f32 uniform in [0, 1) by linear index
    # elementwise, one operand
    NEG = "neg"
    ABS = "abs"
    SIGN = "sign"
    EXP = "exp"
    EXP2 = "exp2"
    EXPM1 = "expm1"
    LOG = "log"
    LOG2 = "log2"
    LOG10 = "log10"
    LOG1P = "log1p"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIPROCAL = "reciprocal"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    SINH = "sinh"
    COSH = "cosh"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    ERF = "erf"
    ERFC = "erfc"
    FLOOR = "floor"
    CEIL = "ceil"
    ROUND = "round"  # half to even
    TRUNC = "trunc"
    NOT = "not"  # logical for bool, bitwise for ints
    ISNAN = "isnan"
    CAST = "cast"  # to type.dtype
    # elementwise, two operands
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"  # floats; true division
    FLOORDIV = "floordiv"  # rounds down; ints: 0 where the divisor is 0
    TRUNCDIV = "truncdiv"  # ints, rounds towards zero
    FMOD = "fmod"  # sign of the dividend
    REMAINDER = "remainder"  # sign of the divisor
    POW = "pow"
    ATAN2 = "atan2"
    MAXIMUM = "maximum"  # NaN if either is NaN
    MINIMUM = "minimum"
    AND = "and"  # logical for bool, bitwise for ints
    OR = "or"
    XOR = "xor"
    SHL = "shl"
    SHR = "shr"  # arithmetic
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    # elementwise, three operands
    WHERE = "where"  # (bool, x, y)
    FMA = "fma"  # floats; x * y + z, rounded once
    # elementwise, (bool, x): x; the call fails where the bool does not hold
    CHECK = "check"  # Failure
    # shape
    BROADCAST = "broadcast"  # same rank; axes of size 1 grow to type.shape
    RESHAPE = "reshape"
    PERMUTE = "permute"  # tuple[int, ...]
    SLICE = "slice"  # tuple[Range, ...], one an axis
    PAD = "pad"  # tuple[int, ...] low padding; inputs (x, scalar); high from type.shape
    CONCAT = "concat"  # int axis
    UNFOLD = "unfold"  # Windows of one axis; their elements are a last one, and may overlap
    GATHER = "gather"  # tuple[Address, ...], one an axis of the source
    # reductions; attr: tuple of axes, which the result lacks
    SUM = "sum"
    PROD = "prod"
    MAX = "max"  # NaN if any is NaN
    MIN = "min"
    ANY = "any"
    ALL = "all"
    ARGMAX = "argmax"  # i64; the first of equals, NaN counts as greatest; index within flat axes
    ARGMIN = "argmin"
    # scans; attr: the axis along which each element has itself and all before it
    CUMSUM = "cumsum"
    CUMPROD = "cumprod"
    # sums by index; inputs (value, one index operand each); attr: tuple[Address, ...], one an axis
    SCATTER_ADD = "scatter_add"  # of the result, whose other elements are 0
    # matmul in a kernel
    DOT = "dot"  # (a[..., m, k], b[..., k, n]) -> [..., m, n], added up in the compute type
    # calls of the library: structured ones, StructuredCall, and all others
    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    CONVOLUTION_BACKWARD = "convolution_backward"
    ATTENTION = "attention"
    ATTENTION_BACKWARD = "attention_backward"
    LIBRARY = "library"  # LibraryCall: an ATen op as it is
    RESULT = "result"  # int: one result of a call


@dataclass(frozen=True, slots=True)
class Range:
    """Slice of one axis: element k of the result is element start + k * step of the source."""

    start: Dim
    step: int = 1

    def __str__(self) -> str:
        return f"{self.start}::{self.step}"


@dataclass(frozen=True, slots=True)
class Windows:
    """Of one axis, so many elements each, `step` from one to the next."""

    axis: int
    size: int
    step: int

    def __str__(self) -> str:
        return f"axis {self.axis} size {self.size} step {self.step}"


@dataclass(frozen=True, slots=True)
class Address:
    """How GATHER finds the index along one source axis, and SCATTER_ADD along one of the result.

    `axis`: the loop's own index along that axis, of GATHER's result or SCATTER_ADD's value.
    `operand`: the value of that index operand (1-based position among the inputs; integer tensors
    of the loop's shape, already wrapped to be non-negative). Exactly one is set. `failure`: of a
    call whose operand is out of range.
    """

    axis: int | None = None
    operand: int | None = None
    failure: Failure = OUT_OF_RANGE

    def __str__(self) -> str:
        if self.operand is None:
            return f"axis {self.axis}"
        fails = "" if self.failure == OUT_OF_RANGE else f" fails {self.failure}"
        return f"operand {self.operand}{fails}"


@dataclass(frozen=True, slots=True)
class InputAttr:
    """A graph input: its position among the call's arguments and where its elements lie. `frozen`:
    a weight, which calls find as it was, unless a program says so (`runtime/prepacked.py`).
    `is_written`: to by the caller, when the call is over."""

    name: str
    position: int
    strides: tuple[Dim, ...]  # in elements; the data pointer already includes the offset
    frozen: bool = False
    is_written: bool = False

    def __str__(self) -> str:
        return f"{self.name}, strides ({', '.join(map(str, self.strides))})"


Attr = (
    bool
    | int
    | float
    | Dim
    | tuple[int, ...]
    | tuple[Range, ...]
    | tuple[Address, ...]
    | InputAttr
    | LibraryCall
    | StructuredCall
    | Windows
    | Within
    | Failure
    | None
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node:
    """One operation. Identity is equality (see `Builder`)."""

    op: Op
    inputs: tuple[Node, ...]
    type: TensorType
    attr: Attr = None

    def __repr__(self) -> str:
        """Without what it is made of, which many paths may lead to."""
        return f"<{self.op.value}: {self.type}>"

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape


@dataclass(frozen=True, slots=True)
class Origin:
    """Where in the user's program a value comes from, and what the framework called it."""

    op: str  # "aten.gelu.default"
    file: str = ""
    line: int = 0
    source: str = ""
    module: str = ""  # path in the model, "layers.3.mlp"

    @property
    def location(self) -> Location | None:
        return Location(self.file, self.line, self.source) if self.file else None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else "?"
        return f"{self.op} at {place}"


@dataclass(frozen=True, slots=True)
class Output:
    """A value the caller gets: as a fresh tensor with these strides, or written into an input. What
    lies in gaps between its elements is neither written nor read.

    `may_share`: nobody will write to it (it is kept for backward), so it may share memory.
    """

    value: Node
    strides: tuple[Dim, ...]
    mutates: Node | None = None  # an INPUT: the value replaces its contents
    may_share: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """What one compile works on.

    `symbols`: where a call finds each symbol's value: (argument position, axis), or
    (argument position, None) when that argument is the number itself.
    `hints`: an example value of each symbol, for costs only; never for meaning.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Output, ...]
    effects: tuple[Node, ...] = ()  # calls that must run though nobody reads them
    symbols: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    hints: Mapping[str, int] = field(default_factory=dict)
    origins: Mapping[Node, Origin] = field(default_factory=dict)

    @property
    def roots(self) -> tuple[Node, ...]:
        return (*(output.value for output in self.outputs), *self.effects)


CALLED: Mapping[type[Operation], Op] = {
    Matmul: Op.MATMUL,
    Convolution: Op.CONVOLUTION,
    ConvolutionBackward: Op.CONVOLUTION_BACKWARD,
    Attention: Op.ATTENTION,
    AttentionBackward: Op.ATTENTION_BACKWARD,
}


def op_of_call(call: Call) -> Op:
    return Op.LIBRARY if isinstance(call, LibraryCall) else CALLED[type(call.operation)]


def call_of(node: Node) -> Call:
    """What a call asks for; of a RESULT, the call that gives it. AssertionError for others."""
    call = node.inputs[0].attr if node.op is Op.RESULT else node.attr
    assert isinstance(call, Call)
    return call


def operation_of(node: Node) -> Operation | None:
    """That of a structured call, or of one of its results; None for any other node."""
    call = node.inputs[0].attr if node.op is Op.RESULT else node.attr
    return call.operation if isinstance(call, StructuredCall) else None


def result_strides(result: Node) -> tuple[Dim, ...]:
    """As its call gives it."""
    assert isinstance(result.attr, int)
    described = call_of(result).results[result.attr]
    assert described is not None
    return described[1]


def strides_in_memory(graph: Graph) -> dict[Node, tuple[Dim, ...]]:
    """Of arguments and of results of calls, which lie as the caller and the library say."""
    strides: dict[Node, tuple[Dim, ...]] = {}
    for node in graph.inputs:
        assert isinstance(node.attr, InputAttr)
        strides[node] = node.attr.strides
    results = (node for node in toposort(graph.roots) if node.op is Op.RESULT)
    return strides | {node: result_strides(node) for node in results}


def toposort(outputs: Iterable[Node]) -> list[Node]:
    """All nodes that `outputs` need, producers before consumers."""
    order: dict[Node, None] = {}
    stack = [(node, False) for node in reversed(tuple(outputs))]
    while stack:
        node, inputs_done = stack.pop()
        if node in order:
            continue
        if inputs_done:
            order[node] = None
        else:
            stack.append((node, True))
            stack.extend((operand, False) for operand in reversed(node.inputs))
    return list(order)


def users(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """For each node, those of `nodes` that read it (once per operand)."""
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        readers.setdefault(node, [])
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
    return readers
