"""The kernel IR: what one launch computes, for any target.

A kernel is a sequence of phases. Between two phases either all tasks wait at a barrier, or the last
task to arrive goes on alone (last-block reduction). A phase is a set of independent nests. A nest
is a set of rows, which tasks take in contiguous chunks, and the statements of each row. A `Loop`
inside a row is serial or runs over lanes. A value is conceptually a tile of the lanes around it;
one from outside a lane loop is uniform in all lanes.

| | CPU | GPU |
|---|---|---|
| task | thread | program |
| lane loop | vector loop | tile |
| TASK buffer | memory that stays in L1 or L2 | tile in registers |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Union

from hemstitch.ir.dims import Dim, symbol
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index, Variable


class Role(Enum):
    """Who owns a buffer, and who may access it."""

    INPUT = "input"  # a tensor of the caller or of another kernel, read only
    OUTPUT = "output"  # a tensor that is written, and may be read
    SHARED = "shared"  # scratch memory of the launch
    TASK = "task"  # scratch memory of one task: row buffers


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Memory that a kernel accesses. `size`: elements of `dtype`. `why`: purpose of scratch
    memory."""

    name: str
    dtype: DType
    role: Role
    size: Dim
    why: str = ""


THREADS = symbol("threads")  # number of tasks in the launch
TASK = Axis("task", THREADS)  # number of the running task


@dataclass(frozen=True, slots=True)
class Let:
    """name = op(operands), lane by lane. `source`: element type of the operands."""

    name: str
    op: Op
    operands: tuple[str, ...]
    source: DType
    dtype: DType


@dataclass(frozen=True, slots=True)
class Constant:
    """name = value in every lane."""

    name: str
    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, slots=True)
class Position:
    """name = the index itself, as i64."""

    name: str
    index: Index


@dataclass(frozen=True, slots=True)
class Random:
    """name = uniform f32 in [0, 1): Philox with the scalar `seed` as key and this linear index as
    counter."""

    name: str
    seed: str
    index: Index


@dataclass(frozen=True, slots=True)
class Load:
    """name = buffer[index] where the bool value `mask` holds, else zero."""

    name: str
    buffer: Buffer
    index: Index
    mask: str | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value."""

    buffer: Buffer
    index: Index
    value: str


@dataclass(frozen=True, slots=True)
class Init:
    """Declares an accumulator of the reduction `op`.

    `across`: lanes are combined when it is finished. ARGMAX and ARGMIN accumulate pairs.

    `running_max`: a MAX accumulator across lanes, for a SUM of exponentials relative to its value
    so far (online softmax; see `Running`). When the maximum grows from a to b, the sum is
    multiplied by exp(a - b); from a = -inf it becomes zero, as exp(-inf - -inf) would be NaN.

    `columns`: one sum for each index of this axis, to which only `AccumulateMatmul` adds. It is
    finished in a lane loop over the axis, each lane with its own sum.

    `compensated`: a SUM of floats, not across lanes, with its rounding error in a second
    accumulator.
    """

    name: str
    op: Op
    dtype: DType
    across: bool
    running_max: str | None = None
    columns: Axis | None = None
    compensated: bool = False


@dataclass(frozen=True, slots=True)
class Accumulate:
    """accumulator = op(accumulator, value). For ARGMAX and ARGMIN also the position: an index
    (`position`), or an i64 value (`order`) of pairs that were reduced before."""

    accumulator: str
    value: str
    position: Index | None = None
    order: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """name = the reduced value; `position_name` = its position, for ARGMAX and ARGMIN."""

    name: str
    accumulator: str
    position_name: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """name = the value so far of a MAX accumulator across lanes, uniform in all lanes.

    It covers the present vector of lanes and those before, whatever the width of a vector.
    """

    name: str
    accumulator: str


@dataclass(frozen=True, slots=True)
class Scan:
    """accumulator = op(accumulator, value), lane after lane; name = the prefix at each lane.

    The accumulator combines lanes, and nothing else adds to it.
    """

    name: str
    accumulator: str
    value: str


@dataclass(frozen=True, slots=True)
class AccumulateInto:
    """buffer[index] = op(buffer[index], value): an accumulator in memory.

    For ARGMAX and ARGMIN `positions` is the buffer of positions, and `order` the value's position.
    `atomic`: other tasks add to the same element in this phase.
    """

    buffer: Buffer
    index: Index
    op: Op
    dtype: DType
    value: str
    positions: Buffer | None = None
    order: str | None = None
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """The launch fails unless the bool value `condition` holds in every lane."""

    condition: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Loop:
    """for axis in range(axis.extent): body. `lanes`: over lanes, else serial.

    `between`: only the range [first, last) of two i64 values, both within the extent.
    """

    axis: Axis
    body: tuple[Stmt, ...]
    lanes: bool
    between: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Contract:
    """name = the sum of left * right over `axis` (K): one element of a matmul.

    `body` computes both operands for one index of `axis`, and stores nothing. In a lane loop `left`
    is uniform in all lanes (N), and `right` in all rows that differ in the last row axis only (M).
    So a tile of rows by lanes is a matmul of two tiles. `source`: element type of the operands.

    `band`: an index of rows, lanes and `axis`. Where it is negative, a mask excludes the element,
    or the addend is zero (band mask analysis).
    """

    name: str
    axis: Axis
    body: tuple[Stmt, ...]
    left: str
    right: str
    source: DType
    dtype: DType
    band: Index | None = None

    def band_at(self, places: Mapping[Variable, Index]) -> Index | None:
        """`band` with these indices in the place of axes."""
        return None if self.band is None else self.band.substitute(places)


@dataclass(frozen=True, slots=True)
class AccumulateMatmul:
    """accumulator += the sum of left * right over the lanes (K), for each index of its columns
    `axis` (N).

    `body` computes `right` for one lane and one column, and stores nothing. `right` is uniform in
    all rows that differ in the last row axis only (M). `left` does not depend on the column.
    `source`: element type of the operands.
    """

    accumulator: str
    axis: Axis
    body: tuple[Stmt, ...]
    left: str
    right: str
    source: DType


Stmt = Union[
    Let,
    Constant,
    Position,
    Random,
    Load,
    Store,
    Init,
    Accumulate,
    Running,
    Scan,
    Finish,
    AccumulateInto,
    Check,
    Loop,
    Contract,
    AccumulateMatmul,
]
BLOCKS = (Loop, Contract, AccumulateMatmul)  # statements with a body that repeats along an axis


EPILOGUE_ROWS = 32  # of numerics: an f32 sum of rows has no more addends


@dataclass(frozen=True, slots=True)
class Nest:
    """The rows are all combinations of the `rows` axes, the last one fastest. Tasks take them in
    chunks.

    `prologue` runs once in each task, before its first row. `panels` runs before a task's first
    row, and before each row that differs from the one before in another axis than the last.
    `epilogue` runs after every `EPILOGUE_ROWS` rows of a task, and after its last. `weight`: work
    of one row in elements, for load balance between nests.
    """

    rows: tuple[Axis, ...]
    prologue: tuple[Stmt, ...]
    body: tuple[Stmt, ...]
    epilogue: tuple[Stmt, ...]
    weight: Dim
    why: str  # origin and mapping, printed above the nest
    panels: tuple[Stmt, ...] = ()

    @property
    def parts(self) -> tuple[tuple[Stmt, ...], ...]:
        """In the order of their first execution."""
        return self.prologue, self.panels, self.body, self.epilogue


class Begin(Enum):
    """How tasks get from one phase to the next."""

    BARRIER = "barrier"  # all tasks wait for each other, and share the rows
    LAST_BLOCK = "ticket"  # the last task to arrive runs this phase alone
    ALONE = "alone"  # the last task of the phase before goes on


@dataclass(frozen=True, slots=True)
class Phase:
    """Independent nests. `why`: the dependence on earlier phases. `begin` means nothing in the
    first phase."""

    nests: tuple[Nest, ...]
    why: str = ""
    begin: Begin = Begin.BARRIER

    @property
    def is_alone(self) -> bool:
        """One task runs all of it; the axis `TASK` is not available."""
        return self.begin is not Begin.BARRIER


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. `buffers`: in the order of the launch's arguments, scratch memory last.
    `non_temporal`: buffers that are written with non-temporal stores."""

    name: str
    buffers: tuple[Buffer, ...]
    phases: tuple[Phase, ...]
    non_temporal: frozenset[Buffer] = frozenset()

    @property
    def kind(self) -> tuple[int, int]:
        """A key for kernels that share buffers and phases and differ in their names only. It is
        valid as long as one of them exists."""
        return id(self.buffers), id(self.phases)

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """The buffers that the caller passes."""
        return tuple(b for b in self.buffers if b.role in (Role.INPUT, Role.OUTPUT))

    @property
    def barriers(self) -> int:
        return sum(phase.begin is Begin.BARRIER for phase in self.phases[1:])

    @property
    def has_last_block(self) -> bool:
        return any(phase.begin is Begin.LAST_BLOCK for phase in self.phases)


def walk(statements: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements in pre-order."""
    for statement in statements:
        yield statement
        if isinstance(statement, BLOCKS):
            yield from walk(statement.body)


def buffers_of(statement: Stmt) -> Iterator[Buffer]:
    """The buffers that a statement loads from or stores to."""
    if isinstance(statement, Load | Store | AccumulateInto):
        yield statement.buffer
    if isinstance(statement, AccumulateInto) and statement.positions is not None:
        yield statement.positions


def statements(kernel: Kernel) -> Iterator[Stmt]:
    """All statements of all nests, in pre-order."""
    for phase in kernel.phases:
        for nest in phase.nests:
            for part in nest.parts:
                yield from walk(part)
