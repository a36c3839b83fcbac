"""The kernel IR: what one launch does, for any target.

A kernel is a sequence of phases, each behind the whole one before: at a barrier all tasks wait, of
those that take a ticket the last goes on alone. A phase is a set of nests that may run at the same
time; a nest is a set of rows, dealt out to tasks in contiguous chunks, and the statements each row
runs. Within a row a `Loop` is serial or runs over lanes; every value is
conceptually a tile of the lanes around it, a value made outside a lane loop is the same in all.

On a CPU a task is a thread, a lane loop a vector loop and a TASK buffer memory that stays in L1 or
L2; on a GPU a task is a program, a lane loop a tile and a TASK buffer a tile held in registers.
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
    """Who owns a buffer and who sees it."""

    INPUT = "input"  # a tensor of the caller or of another kernel; read only
    OUTPUT = "output"  # a tensor that is written (and may be read again)
    SHARED = "shared"  # scratch of this launch, seen by all tasks
    TASK = "task"  # scratch of one task: a row buffer


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Memory a kernel touches. `size` in elements of `dtype`; `why` says what a scratch is for."""

    name: str
    dtype: DType
    role: Role
    size: Dim
    why: str = ""


THREADS = symbol("threads")  # how many tasks this launch has
TASK = Axis("task", THREADS)  # which of them is running


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
    """name = uniform f32 in [0, 1), Philox keyed by the scalar `seed` at this linear index."""

    name: str
    seed: str
    index: Index


@dataclass(frozen=True, slots=True)
class Load:
    """name = buffer[index] where `mask` (a bool value's name) holds, zero elsewhere."""

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
    """Declare an accumulator of the reduction `op`.

    `across`: lanes are combined too when it is finished. ARGMAX and ARGMIN accumulate pairs.
    `follows`: a MAX accumulator across lanes, from whose value so far (see `Running`) what a SUM
    adds up is counted. When that grows from a to b, what is there is multiplied by exp(a - b), and
    is nothing if a is -inf: an exponent of -inf below -inf is a NaN that has not counted yet.
    `columns`: a sum for each index of this axis, which only `AccumulateProduct` adds to; it is
    finished in a lane loop over the axis, which gives each lane its own.
    `compensated`: a SUM of floats, not across lanes, beside which what rounding loses is added up.
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
    """accumulator = op(accumulator, value); `position`: the index that goes with it (ARGMAX).

    `order`: like `position`, a value's name, for pairs that were reduced before.
    """

    accumulator: str
    value: str
    position: Index | None = None
    order: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """name = the accumulated result; `position_name` its index for ARGMAX and ARGMIN."""

    name: str
    accumulator: str
    position_name: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """name = what a MAX accumulator across lanes holds, the same in all lanes.

    A loop may take any number of lanes at a time: it is the greatest of these and those before.
    """

    name: str
    accumulator: str


@dataclass(frozen=True, slots=True)
class Scan:
    """accumulator = op(accumulator, value), lane after lane; name = what it held after each.

    The accumulator combines lanes; nothing else is added to it.
    """

    name: str
    accumulator: str
    value: str


@dataclass(frozen=True, slots=True)
class AccumulateInto:
    """buffer[index] = op(buffer[index], value): an accumulator that lives in memory.

    For ARGMAX and ARGMIN `positions` is the buffer of the indices and `order` the value's index.
    `atomic`: in one step, as other tasks add to the same element in this phase.
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
    """The bool value `condition` holds in every lane, else the launch fails."""

    condition: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Loop:
    """for axis in range(axis.extent): body; over lanes if `lanes`, else one at a time.

    `between`: only from the first of these two i64 values on, and below the second. Both are known
    to be within the extent.
    """

    axis: Axis
    body: tuple[Stmt, ...]
    lanes: bool
    between: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Contract:
    """name = the sum of left * right over `axis`: one element of a product of matrices.

    `body` computes both for one index of `axis`, and stores nothing. In a lane loop `left` is the
    same in all lanes, and `right` in all rows that differ in the last row axis only: so a tile of
    rows by lanes is a product of two tiles. `source`: element type of both, as they are multiplied.
    `wanted`: where this, an index of rows, lanes and `axis`, is negative, the product or the term
    is of no use (see `Within`).
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
        """`wanted` with these indices for axes."""
        return None if self.band is None else self.band.substitute(places)


@dataclass(frozen=True, slots=True)
class AccumulateMatmul:
    """accumulator += the sum of left * right over the lanes, for each index of its columns `axis`.

    `body` computes `right` for one lane and one column, and stores nothing; like that of a product
    it is the same in all rows that differ in the last row axis only. `left` has no columns.
    `source`: element type of both, as they are multiplied.
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
BLOCKS = (Loop, Contract, AccumulateMatmul)  # statements that run others along an axis


EPILOGUE_ROWS = 32


@dataclass(frozen=True, slots=True)
class Nest:
    """Rows = all combinations of the `rows` axes, the last fastest, dealt out to tasks.

    `prologue` runs once in each task, before its first row; `epilogue` after every `EPILOGUE_ROWS`
    rows of a task and after its last. `panels` runs before a task's first row, and before each
    that differs from the one before in another axis than the last.
    `weight`: work of one row, in elements, to deal out fairly beside other nests.
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
        """In the order in which they first run."""
        return self.prologue, self.panels, self.body, self.epilogue


class Begin(Enum):
    """What a task does between a phase and the one before."""

    BARRIER = "barrier"  # it waits for all others, and then has its share of the rows
    LAST_BLOCK = "ticket"  # it takes one: the last to come has all rows, of this phase and the next
    ALONE = "alone"  # it goes on, as the only one since a ticket


@dataclass(frozen=True, slots=True)
class Phase:
    """Nests that need nothing of each other. `why`: what the phase waits for; `begin` is nothing
    for a kernel's first one."""

    nests: tuple[Nest, ...]
    why: str = ""
    begin: Begin = Begin.BARRIER

    @property
    def is_alone(self) -> bool:
        """One task runs all of it: there is no `TASK` here."""
        return self.begin is not Begin.BARRIER


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. `buffers` in the order of the launch's arguments, scratch last. `non_temporal`:
    those that are stored past the caches."""

    name: str
    buffers: tuple[Buffer, ...]
    phases: tuple[Phase, ...]
    non_temporal: frozenset[Buffer] = frozenset()

    @property
    def kind(self) -> tuple[int, int]:
        """The same for kernels that share buffers and phases and differ in their names: a key that
        costs nothing, as long as one of them is there."""
        return id(self.buffers), id(self.phases)

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """Buffers that the caller passes."""
        return tuple(b for b in self.buffers if b.role in (Role.INPUT, Role.OUTPUT))

    @property
    def barriers(self) -> int:
        return sum(phase.begin is Begin.BARRIER for phase in self.phases[1:])

    @property
    def has_last_block(self) -> bool:
        return any(phase.begin is Begin.LAST_BLOCK for phase in self.phases)


def walk(statements: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, outer loops before what is in them."""
    for statement in statements:
        yield statement
        if isinstance(statement, BLOCKS):
            yield from walk(statement.body)


def buffers_of(statement: Stmt) -> Iterator[Buffer]:
    """Those it loads from or stores to."""
    if isinstance(statement, Load | Store | AccumulateInto):
        yield statement.buffer
    if isinstance(statement, AccumulateInto) and statement.positions is not None:
        yield statement.positions


def statements(kernel: Kernel) -> Iterator[Stmt]:
    for phase in kernel.phases:
        for nest in phase.nests:
            for part in nest.parts:
                yield from walk(part)
