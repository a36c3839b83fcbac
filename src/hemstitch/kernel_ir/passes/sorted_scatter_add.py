"""Sorted scatter-add, for CPUs: a large sum by index is reduced in the order of its target rows.

The stitched nest gives each task some columns, and adds source rows in their order. Each addition
accesses a random target row, which caches do not hold if the result is large. The sorted nest gives
each task some target rows. The task numbers source rows by a counting sort of their targets. Then
it reduces one target row after the other: each is written once, and source rows are read whole.
Source rows of one target keep their order, so the sums are bit-identical.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.dependence import PURE, backward_slice, eliminate_dead_values
from hemstitch.kernel_ir.index import Axis, Computed, Index, Variable, at
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    Buffer,
    Check,
    Constant,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Role,
    Stmt,
    Store,
)
from hemstitch.kernel_ir.rewriter import Rewriter, defined
from hemstitch.machine.cpu_numbers import CPU

MAX_PLACES = (1 << 31) - 4  # targets or sources; their numbers have 32 bits


def sort_scatter_adds(kernel: Kernel, tasks: int) -> Kernel:
    """The kernel with profitable scatter-adds sorted, for `tasks` tasks."""
    buffers = list(kernel.buffers)
    phases = []
    for phase in kernel.phases:
        nests = []
        for nest in phase.nests:
            scatter = _ScatterAdd.of(nest)
            if scatter is not None and scatter.is_profitable(tasks):
                ordered = _SortedNest(nest, scatter, tasks, f"place{len(buffers)}")
                nest = ordered.nest()
                buffers += ordered.buffers
            nests.append(nest)
        phases.append(replace(phase, nests=tuple(nests)))
    return replace(kernel, phases=tuple(phases), buffers=tuple(buffers))


@dataclass(frozen=True, slots=True)
class _ScatterAdd:
    """A nest that is a scatter-add: `fill` stores `zero` to all `targets`. Then for each of the
    `sources`, `before` computes its row `target`, and `inside` and `add` run in each of the
    `lanes`."""

    targets: Axis
    zero: Constant
    fill: Store
    sources: Axis
    before: Sequence[Stmt]
    lanes: Axis
    inside: Sequence[Stmt]
    add: AccumulateInto
    target: Computed

    @staticmethod
    def of(nest: Nest) -> _ScatterAdd | None:
        """The scatter-add that a nest is, or None."""
        match nest:
            case Nest(
                rows=(block,),
                body=(
                    Loop(targets, (Loop(lanes, (Constant() as zero, Store() as fill), True),)),
                    Loop(sources, (*before, Loop(same, (*inside, AccumulateInto() as add), True))),
                ),
                epilogue=(),
                panels=(),
            ) if lanes is same and lanes.outer is block:
                pass
            case _:
                return None
        computed = [v for v, _ in add.index.terms if isinstance(v, Computed)]
        is_plain = all(isinstance(s, (*PURE, Check)) for s in (*before, *inside))
        is_sum = add.op is Op.SUM and add.buffer is fill.buffer
        if len(computed) != 1 or not is_plain or not is_sum:
            return None
        (index,) = computed
        is_made_before = any(index.name in defined(s) for s in before)
        is_same = add.index.substitute({index: at(targets)}) == fill.index
        if not is_made_before or not is_same or index.extent != targets.extent:
            return None
        return _ScatterAdd(targets, zero, fill, sources, before, lanes, inside, add, index)

    @property
    def columns(self) -> int:
        assert isinstance(self.lanes.limit, int)
        return self.lanes.limit

    def is_profitable(self, tasks: int) -> bool:
        """The result is large, its rows are wide, and all sizes are known. The index arrays of a
        task are not larger than its share of the source rows."""
        sizes = (self.targets.extent, self.sources.extent, self.lanes.limit)
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) < len(sizes) or self.columns < max(CPU.sorted_columns, 2 * tasks):
            return False
        is_large = known[0] * self.columns * self.add.buffer.dtype.bytes > CPU.sorted_result_bytes
        return is_large and max(known) <= MAX_PLACES


class _SortedNest:
    """Builds the sorted nest, whose rows are blocks of targets. `name`: prefix of new buffers."""

    def __init__(self, old: Nest, sums: _ScatterAdd, tasks: int, name: str) -> None:
        self.old, self.sums, self.tasks, self.name, self.names = old, sums, tasks, name, 0
        target_count, count = sums.targets.extent, sums.sources.extent
        assert isinstance(target_count, int) and isinstance(count, int)
        self.count = count
        self.size = max(1, -(-target_count // tasks))
        self.row = Axis(f"{self.sums.targets.name}b", -(-target_count // self.size))
        self.inner = Axis(f"{self.sums.targets.name}e", self.size, self.row, target_count)
        self.lanes = Axis(self.sums.lanes.name, self.sums.columns)
        why = "lines in the order of their places"
        self.keys = self._buffer("keys", self.count, why)
        self.order = self._buffer("order", self.count, why)
        self.ends = self._buffer("ends", self.size + 3, why)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return self.keys, self.order, self.ends

    def nest(self) -> Nest:
        weight = (self.size + self.count) * self.sums.columns // self.tasks
        body = (*self._counting_sort(), self._reduced())
        why = f"{self.old.why}, by their places"
        return Nest((self.row,), self.old.prologue, body, (), weight, why)

    def _counting_sort(self) -> Iterator[Stmt]:
        """Sorts source rows by target. Key 0: targets before this task's; then one key for each
        target of the task; the last key: targets behind. The loops compute keys, their counts,
        prefix sums, and the sorted `order`. Afterwards `ends` has the end of each key's range in
        `order`."""
        new, number, one = self._new, DType.I32, self._new("one")
        yield Constant(one, 1, number)
        yield from self._keys()
        cleared, zero = Axis(new("c"), self.size + 3), new("nothing")
        fill = (Constant(zero, 0, number), Store(self.ends, at(cleared), zero))
        yield Loop(cleared, fill, lanes=True)
        line = Axis(new("n"), self.count)
        key, loads = self._load_number(self.keys, at(line), new("key"))
        add = AccumulateInto(self.ends, key.shifted(1), Op.SUM, number, one)
        yield Loop(line, (*loads, add), lanes=False)
        bucket, previous, own, running_sum = (
            Axis(new("k"), self.size + 2),
            new("a"),
            new("b"),
            new("sum"),
        )
        summed = (
            Load(previous, self.ends, at(bucket)),
            Load(own, self.ends, at(bucket).shifted(1)),
            Let(running_sum, Op.ADD, (previous, own), number, number),
            Store(self.ends, at(bucket).shifted(1), running_sum),
        )
        yield Loop(bucket, summed, lanes=False)
        line, position, narrow = Axis(new("o"), self.count), new("line"), new("line32")
        key, loads = self._load_number(self.keys, at(line), new("key"))
        there, begin = self._load_number(self.ends, key, new("there"))
        placed = (
            Position(position, at(line)),
            Let(narrow, Op.CAST, (position,), DType.I64, number),
            Store(self.order, there, narrow),
            AccumulateInto(self.ends, key, Op.SUM, number, one),
        )
        yield Loop(line, (*loads, *begin, *placed), lanes=False)

    def _keys(self) -> Iterator[Stmt]:
        """The key of each source row. All checks of source rows run here."""
        new, sums, wide = self._new, self.sums, DType.I64
        low, least, most, one = new("low"), new("least"), new("most"), new("up")
        yield Position(low, at(self.row).scaled(self.size))
        yield Constant(least, -1, wide)
        yield Constant(most, self.size, wide)
        yield Constant(one, 1, wide)
        line = Axis(new("l"), self.count)
        wanted = [sums.target.name, *(s.condition for s in sums.before if isinstance(s, Check))]
        sliced = {id(s) for name in wanted for s in backward_slice(name, sums.before)}
        needed = [s for s in sums.before if id(s) in sliced or isinstance(s, Check)]
        names = {name: new(name) for s in needed for name in defined(s)}
        rewriter = Rewriter(names, lambda index: index.substitute({sums.sources: at(line)}))
        offset, floor, key, up, narrow = (new(f"key{k}") for k in range(5))
        key_statements = (
            Let(offset, Op.SUB, (names.get(sums.target.name, sums.target.name), low), wide, wide),
            Let(floor, Op.MAXIMUM, (offset, least), wide, wide),
            Let(key, Op.MINIMUM, (floor, most), wide, wide),
            Let(up, Op.ADD, (key, one), wide, wide),
            Let(narrow, Op.CAST, (up,), wide, DType.I32),
            Store(self.keys, at(line), narrow),
        )
        yield Loop(line, (*map(rewriter.statement, needed), *key_statements), lanes=True)

    def _reduced(self) -> Loop:
        """For each target of this task: the sum of its source rows."""
        sums, first, last = self.sums, self._new("first"), self._new("last")
        target = at(self.row).scaled(self.size) + at(self.inner)
        clear = self._columns((sums.zero, sums.fill), {sums.targets: target})
        _, begin = self._load_number(self.ends, at(self.inner), first)
        _, end = self._load_number(self.ends, at(self.inner).shifted(1), last)
        slot = Axis(self._new("t"), self.count)
        line, loads = self._load_number(self.order, at(slot), self._new("line"))
        rewriter = Rewriter({}, lambda index: index.substitute({sums.sources: line}))
        before = [rewriter.statement(s) for s in sums.before if not isinstance(s, Check)]
        inside = self._columns((*sums.inside, sums.add), {sums.sources: line, sums.target: target})
        body = eliminate_dead_values((*loads, *before, inside))
        sources = Loop(slot, body, lanes=False, between=(first, last))
        return Loop(self.inner, (clear, *begin, *end, sources), lanes=False)

    def _columns(self, body: Iterable[Stmt], indices: Mapping[Variable, Index]) -> Loop:
        """A lane loop over all columns, with `indices` in the place of axes."""
        (block,) = self.old.rows
        substitution = {block: Index(), self.sums.lanes: at(self.lanes), **indices}
        rewriter = Rewriter({}, lambda index: index.substitute(substitution))
        return Loop(self.lanes, tuple(map(rewriter.statement, body)), lanes=True)

    def _load_number(self, buffer: Buffer, index: Index, name: str) -> tuple[Index, Sequence[Stmt]]:
        """A stored number as an index, and the statements that load it."""
        narrow = f"{name}_32"
        cast = Let(name, Op.CAST, (narrow,), DType.I32, DType.I64)
        bound = self.size + 2 if buffer is self.keys else self.count
        return at(Computed(name, bound)), (Load(narrow, buffer, index), cast)

    def _buffer(self, name: str, size: int, why: str) -> Buffer:
        return Buffer(f"{self.name}_{name}", DType.I32, Role.TASK, size, why)

    def _new(self, hint: str) -> str:
        self.names += 1
        return f"{hint}_{self.name}_{self.names}"
