"""Products of matrices over blocks of rows, for printers that have vectors and no matrix units.

A nest with products takes a block of its last row axis at a time. Between its products the
statements run row by row; a product is a loop over the block's rows and its columns that does
nothing else (`TileProduct`), from operands in memory to a tile in the task's memory. What a row
keeps from one part to another has a place there for each row of the block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hemstitch.ir.dims import Dim, divides, product, quotient
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.dependence import live, needed_for, operands_of
from hemstitch.kernel_ir.index import Axis, Computed, Index, Variable, at
from hemstitch.kernel_ir.nodes import (
    Accumulate,
    Buffer,
    Constant,
    Contract,
    Finish,
    Init,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Phase,
    Role,
    Stmt,
    Store,
    statements,
    walk,
)
from hemstitch.kernel_ir.placement import LINE
from hemstitch.kernel_ir.rewriter import Rewriter, defined, used
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.matmul.lowering.batch_reduce import Total, totals
from hemstitch.matmul.lowering.panels import Columns, PackedPanels, Panel
from hemstitch.matmul.lowering.row_blocks import (
    is_by_columns,
    keeps_rows_apart,
    most_rows,
    plain_load,
    rows_of_block,
)
from hemstitch.matmul.lowering.row_parts import BlockPart, Reach, task_buffers
from hemstitch.matmul.lowering.tile_matmul import TileProduct

NEXT = "_next"  # the name of what is multiplied at once with another
VECTOR = 16  # elements: rows of a tile start at whole vectors, whatever the target


@dataclass(frozen=True, slots=True)
class Blocking:
    """How products that read panels are cut. `rows`: of a block, at most; `columns`: of a strip;
    `steps`: of a strip that stays in L1 while the rows go by. The usual ones are near the best on
    every processor that was tried."""

    rows: int = 64
    columns: int = 32
    steps: int = 384


USUAL = Blocking()


Panels = Mapping[Buffer, Sequence[Nest]]  # operands that all tasks share, and what fills them


@dataclass(frozen=True, slots=True)
class Blocked:
    """A nest over blocks of rows. `buffers`: the memory that it needs besides."""

    nest: Nest
    buffers: Sequence[Buffer]
    panels: Panels


def block_matmuls(kernel: Kernel, threads: int, blocking: Blocking = USUAL) -> Kernel:
    """The same kernel with products of tiles, in nests whose rows can go by in blocks; these are
    dealt out to so many threads."""
    return with_packing(*blocked_without_packing(kernel, threads, blocking))


def blocked_without_packing(
    kernel: Kernel, threads: int, blocking: Blocking = USUAL
) -> tuple[Kernel, Panels]:
    """The same, but for the phase in which all tasks pack what they share."""
    if not any(isinstance(statement, Contract) for statement in statements(kernel)):
        return kernel, {}
    buffers, phases, panels = list(kernel.buffers), list[Phase](), dict[Buffer, Sequence[Nest]]()
    for phase in kernel.phases:
        nests = list[Nest]()
        for nest in phase.nests:
            taken = {buffer.name for buffer in buffers}
            block = in_blocks(nest, threads, blocking, taken) or Blocked(nest, (), {})
            nests.append(block.nest)
            buffers += block.buffers
            panels |= block.panels
        phases.append(replace(phase, nests=tuple(nests)))
    changed = replace(kernel, phases=tuple(phases))
    touched = set(task_buffers(statements(changed)))
    kept = (b for b in buffers if b.role is not Role.TASK or b in touched)
    return replace(changed, buffers=tuple(kept)), panels


def with_packing(kernel: Kernel, panels: Panels) -> Kernel:
    """With a phase that fills these operands."""
    nests = tuple(nest for found in panels.values() for nest in found)
    if not nests:
        return kernel
    first, *others = kernel.phases
    behind = replace(first, why="operands are packed")
    return replace(kernel, phases=(Phase(nests), behind, *others))


def in_blocks(
    nest: Nest, threads: int, blocking: Blocking = USUAL, taken: Collection[str] = ()
) -> Blocked | None:
    """A nest with products over blocks of rows. `taken`: names that buffers have, as those of
    another piece of the same nest."""
    if not any(isinstance(statement, Contract) for statement in walk(nest.body)):
        return None
    blocks = _BlockedNest(nest, threads, blocking, taken)
    try:
        return Blocked(blocks.nest(), blocks.buffers, blocks.shared)
    except _Unblockable:
        return None


class _Unblockable(Exception):
    """The products of a nest are not where its rows could be cut."""


@dataclass(frozen=True, slots=True)
class _ContractionSteps:
    """What a product adds up along: an axis of so many steps `together`. `dtype`: of operands."""

    axis: Axis
    together: int
    dtype: DType

    @staticmethod
    def of(contract: Contract) -> _ContractionSteps:
        """Pairs of bf16, which are multiplied as they are; else single steps in f32."""
        axis = contract.axis
        if contract.source is not DType.BF16 or axis.outer or not divides(2, axis.extent):
            return _ContractionSteps(axis, 1, DType.F32)
        return _ContractionSteps(Axis(f"{axis.name}p", quotient(axis.extent, 2)), 2, DType.BF16)

    def number(self, which: int) -> Index:
        """Of the step that is `which` of those together."""
        return at(self.axis).scaled(self.together).shifted(which)

    def sum(self, name: str, contract: Contract, left: Load, right: Load) -> Iterator[Stmt]:
        """`name`: of all products. `left` is in terms of the contract's axis, `right` in those of
        this one."""
        names = [name] if self.together == 1 else [f"{name}_{k}" for k in range(self.together)]
        for which, part in enumerate(names):
            now: Mapping[Variable, Index] = {contract.axis: self.number(which)}
            loads = (
                Load(f"{left.name}{NEXT * which}", left.buffer, left.index.substitute(now)),
                Load(f"{right.name}{NEXT * which}", right.buffer, right.index.shifted(which)),
            )
            first, second = (load.name for load in loads)
            wanted = contract.wanted_at(now)
            yield Contract(part, self.axis, loads, first, second, self.dtype, DType.F32, wanted)
        if self.together > 1:
            yield Let(name, Op.ADD, tuple(names), DType.F32, DType.F32)


@dataclass(frozen=True, slots=True)
class _OperandFactors:
    """What makes an element of each operand of a product. `is_by_steps`: the steps of both are to
    lie side by side (`targets/cpu/skinny_matmul.py`)."""

    steps: _ContractionSteps
    left: Sequence[Stmt]
    right: Sequence[Stmt]
    is_by_steps: bool


class _BlockedNest:
    """One nest, its last row axis cut into `block` and `inner`."""

    def __init__(
        self, nest: Nest, threads: int, blocking: Blocking, taken: Collection[str]
    ) -> None:
        self.old = nest
        self.taken = taken
        self.threads = threads
        self.blocking = blocking
        self.buffers: list[Buffer] = []
        self.panels: list[Stmt] = []
        self.shared: dict[Buffer, Sequence[Nest]] = {}
        self.parts = [BlockPart()]

    def nest(self) -> Nest:
        nest = self.old
        if not nest.rows or any(a.outer is nest.rows[-1] for a in _axes(nest.body)):
            raise _Unblockable
        *outer, row = nest.rows
        most = most_rows(nest, self.threads, self.blocking.rows)
        self.rows = rows_of_block(row.extent, most, 1 if outer else self.threads)
        block = Axis(f"{row.name}b", quotient(row.extent + (self.rows - 1), self.rows))
        self.inner = Axis(f"{row.name}e", self.rows, block, row.extent)
        self.cut: Mapping[Variable, Index] = {row: at(block).scaled(self.rows) + at(self.inner)}
        for position, statement in enumerate(nest.body):
            self._add(statement, nest.body[:position])
        weight = (nest.weight + sum(map(_weight, self._products()))) * self.rows
        body, epilogue = tuple(self._connected()), nest.epilogue
        if not keeps_rows_apart(nest):
            body, epilogue = (*body, *epilogue), ()
        return Nest(
            *((*outer, block), nest.prologue, body, epilogue, weight, nest.why),
            panels=tuple(self.panels),
        )

    def _products(self) -> Iterator[TileProduct]:
        return (tile for part in self.parts for tile in part.products)

    # --- parts

    def _add(self, statement: Stmt, before: Sequence[Stmt]) -> None:
        """To the last part, or to a new one where it is a loop over lanes with products."""
        is_lanes = isinstance(statement, Loop) and statement.lanes
        inside = statement.body if isinstance(statement, Loop) else ()
        contracts = [s for s in inside if isinstance(s, Contract)] if is_lanes else []
        if not contracts:
            if any(isinstance(s, Contract) for s in walk([statement])):
                raise _Unblockable
            self.parts[-1].statements.append(statement)
            return
        assert isinstance(statement, Loop)
        part, following = self.parts[-1], BlockPart()
        following.statements = _taken_inits(part)
        rest: dict[str, Stmt | None] = {}
        for total, factors in self._totals(inside, before, statement.axis):
            alone = _only_store(total, inside, statement.axis)
            loop, store = self._product(total, factors, statement.axis, alone, before)
            part.loops.append(loop)
            rest |= dict.fromkeys(total.own)
            if alone is None:
                rest[total.name] = Load(total.name, store.buffer, store.index)
        kept = (rest.get(getattr(s, "name", ""), s) for s in inside)
        if any(rest.values()):
            body = live(s for s in kept if s is not None)
            following.statements.append(replace(statement, body=body))
        self.parts.append(following)

    def _totals(
        self, inside: Sequence[Stmt], before: Sequence[Stmt], lanes: Axis
    ) -> Iterator[tuple[Total, list[_OperandFactors]]]:
        """Several products in one where the steps of each go by at once."""
        for total in totals(inside):
            factors = [self._factors(each, lanes, before, inside) for each in total.products]
            fit = all(
                known.steps.together == 1
                and not known.is_by_steps
                and each.wanted is None
                and _is_at_most(each.axis.extent, self.blocking.steps)
                for each, known in zip(total.products, factors)
            )
            if fit or len(factors) == 1:
                yield total, factors
            else:
                yield from ((Total.of(p), [known]) for p, known in zip(total.products, factors))

    def _product(
        self,
        total: Total,
        factors: Sequence[_OperandFactors],
        lanes: Axis,
        alone: Store | None,
        before: Sequence[Stmt],
    ) -> tuple[Loop, Store]:
        """The loop over a block's rows that does it, what it needs before in the last part; and the
        store in it. `alone`: all that is done with it."""
        named = Rewriter({} if alone else {total.name: f"{total.name}_sum"})
        body, strips = list[Stmt](), None
        for contract, known in zip(total.products, factors):
            left = self._left(contract, known, self.parts[-1], before)
            right, strips = self._right(contract, known, lanes, left, strips)
            name = named.names.get(contract.name, contract.name)
            body += known.steps.sum(name, contract, left, right)
        store = alone or self._tile(total.name, lanes)
        body += (*map(named.statement, total.additions), store)
        loop = Loop(lanes, tuple(body), lanes=True)
        if strips is not None:
            loop = strips.loop(lanes, loop.body)
        return Loop(self.inner, (loop,), lanes=False), store

    def _factors(
        self, contract: Contract, lanes: Axis, before: Sequence[Stmt], inside: Sequence[Stmt]
    ) -> _OperandFactors:
        left = needed_for(contract.left, _operands_before(contract, inside))
        right = needed_for(contract.right, (*before, *inside, *contract.body))
        right = right or needed_for(contract.right, self.old.prologue)  # a constant
        if task_buffers(right) or not self._is_given(right):
            raise _Unblockable
        steps, axis, row = _ContractionSteps.of(contract), contract.axis, self.old.rows[-1]
        first, second = plain_load(left, steps.dtype), plain_load(right, DType.F32)
        is_by_steps = (
            _is_at_most(lanes.extent, CPU.skinny_columns)
            and axis.outer is None
            and _lies_by_steps(first, steps, axis, row)
            and (second is None or second.index.coefficient(lanes) != 1)
        )
        return _OperandFactors(steps, left, right, is_by_steps)

    def _is_given(self, needed: Sequence[Stmt]) -> bool:
        """What `needed` reads of others' values, each task has from its beginning."""
        known = {name for s in self.old.prologue for name in defined(s)}
        return operands_of(needed) <= known

    def _left(
        self, contract: Contract, factors: _OperandFactors, part: BlockPart, before: Sequence[Stmt]
    ) -> Load:
        """Where it lies, or a tile of its own that is filled before. `before`: of the row."""
        steps, needed, axis = factors.steps, factors.left, contract.axis
        load = plain_load(needed, steps.dtype)
        if load is not None and (factors.is_by_steps or self._is_near(load, steps, axis)):
            return load
        name = f"{contract.name}_left"
        whole = needed_for(contract.left, (*before, *needed))
        is_made = any(contract.left in defined(s) for s in needed)  # not by the row before
        is_alone = is_made and self._is_given(whole) and not task_buffers(whole)
        overlapping = self._overlapping(whole, axis) if is_alone and steps.together == 1 else None
        if overlapping is not None:
            return self._line(contract, whole, overlapping)
        if is_alone and steps.together == 1 and self._lies_by_columns(whole, axis):
            names = {made: f"{name}_{made}" for s in whole for made in defined(s)}
            again = [Rewriter(names).statement(s) for s in whole]
            value, filled = _cast_to(steps.dtype, names[contract.left], contract.source, again)
            buffer = self._new(name, axis.extent * self.rows, "a tile of columns", steps.dtype)
            index = at(axis).scaled(self.rows) + at(self.inner)
            lanes = Loop(self.inner, (*filled, Store(buffer, index, value)), lanes=True)
            part.loops.append(Loop(axis, (lanes,), lanes=False))
        else:
            value, filled = _cast_to(steps.dtype, contract.left, contract.source, needed)
            buffer, index = self._rows_of(name, axis.extent, axis, steps.dtype)
            fill = Loop(axis, (*filled, Store(buffer, index, value)), lanes=True)
            if is_alone and len(whole) == len(needed):
                part.loops.append(Loop(self.inner, (fill,), lanes=False))
            else:
                part.statements.append(fill)
        return Load(f"{name}_in", buffer, index)

    def _overlapping(self, needed: Sequence[Stmt], axis: Axis) -> int | None:
        """By how many elements a row begins behind the one before, if the rows of a block are cut
        from one line, as windows are, that is no longer than all of them."""
        row = self.old.rows[-1]
        places = {
            (s.index.coefficient(row), s.index.coefficient(axis), s.mask)
            for s in needed
            if isinstance(s, Load)
        }
        is_plain = axis.outer is None and all(isinstance(s, Load | Let | Constant) for s in needed)
        match [*places]:
            case [(int(apart), 1, None)] if is_plain and divides(self.rows, row.extent):
                return apart if apart > 0 and _is_longer(axis.extent, apart) else None
        return None

    def _line(self, contract: Contract, needed: Sequence[Stmt], apart: int) -> Load:
        """What all rows of a block are cut from, made before them."""
        name, row, steps = f"{contract.name}_left", self.old.rows[-1], contract.axis
        line = Axis(f"{steps.name}l", steps.extent + apart * (self.rows - 1))
        assert self.inner.outer is not None
        begin: Mapping[Variable, Index] = {
            row: at(self.inner.outer).scaled(self.rows),
            steps: at(line),
        }
        names = {made: f"{name}_{made}" for s in needed for made in defined(s)}
        again = Rewriter(names, lambda index: index.substitute(begin))
        made = [again.statement(s) for s in needed]
        value, filled = _cast_to(DType.F32, names[contract.left], contract.source, made)
        buffer = self._new(name, line.extent, "a line that rows are cut from")
        store = Store(buffer, at(line), value)
        self.parts[-1].lines.append(Loop(line, (*filled, store), lanes=True))
        return Load(f"{name}_in", buffer, at(self.inner).scaled(apart) + at(steps))

    def _lies_by_columns(self, needed: Sequence[Stmt], axis: Axis) -> bool:
        """What an operand is made of, as far as each of its elements has some of its own."""
        row = self.old.rows[-1]
        steps = [
            (s.index.coefficient(axis), s.index.coefficient(row))
            for s in needed
            if isinstance(s, Load)
        ]
        own = [of_row for of_axis, of_row in steps if of_axis != 0 and of_row != 0]
        return bool(own) and all(of_row == 1 for of_row in own)

    def _is_near(self, left: Load, steps: _ContractionSteps, axis: Axis) -> bool:
        """The steps of a row lie side by side, and its rows in different sets of a cache; or the
        rows of a step do."""
        row = self.old.rows[-1]
        if steps.together == 1 and (is_by_columns(left, row) or left.index.coefficient(axis) == 0):
            return True
        apart = left.index.coefficient(row)
        is_in_one_set = divides(CPU.set_bytes // left.buffer.dtype.bytes, apart)
        return _lies_by_steps(left, steps, axis, row) and not is_in_one_set

    def _right(
        self,
        contract: Contract,
        factors: _OperandFactors,
        lanes: Axis,
        left: Load,
        strips: PackedPanels | None,
    ) -> tuple[Load, PackedPanels | None]:
        """Where it lies, or a panel. `left`: what it is multiplied with. `strips`: those of others
        that are multiplied at once."""
        steps, needed, axis = factors.steps, factors.right, contract.axis
        if factors.is_by_steps:
            load = plain_load(needed, steps.dtype)
            if load is None or not _lies_by_steps(load, steps, axis, lanes):
                return self._packed_by_steps(contract, factors, lanes), None
            place = load.index.substitute({axis: steps.number(0)})
            return Load(f"{contract.name}_right_in", load.buffer, place), None
        load, size = plain_load(needed, DType.F32), lanes.extent * axis.extent
        is_there = load is not None and load.index.coefficient(lanes) == 1 and steps.together == 1
        if load is not None and is_there and self._is_in_place(load, size, left):
            return load, strips
        strips = strips or PackedPanels.of(lanes, self.blocking.columns)
        size = strips.outer.extent * strips.width * axis.extent
        buffer = self._operand(contract, factors, size, "strips of an operand")
        panel = Panel(strips, steps.axis, steps.together, buffer)
        self._fill(contract, factors, lanes, panel)
        return Load(f"{contract.name}_right_in", buffer, panel.place(strips)), strips

    def _packed_by_steps(self, contract: Contract, factors: _OperandFactors, lanes: Axis) -> Load:
        """Column by column, each with its steps."""
        steps = factors.steps
        size = lanes.extent * contract.axis.extent
        buffer = self._operand(contract, factors, size, "columns of an operand")
        columns = Columns(lanes, steps.axis, steps.together, buffer)
        self._fill(contract, factors, lanes, columns)
        return Load(f"{contract.name}_right_in", buffer, columns.place(at(lanes)))

    def _is_in_place(self, right: Load, size: Dim, left: Load) -> bool:
        """To pack an operand costs as much as 35 rows to multiply with it, and gains a thirtieth.
        What is far away is read again and again by the rows of a block. Few rows may be one of the
        kernels that share it. Where the left one is read by columns, both are read once."""
        are_columns = any(is_by_columns(left, row) for row in (self.old.rows[-1], self.inner))
        if _is_at_most(size, CPU.near_elements) or are_columns:
            return True
        own = {variable for variable, _ in right.index.terms}
        rows = product(axis.extent for axis in self.old.rows if axis not in own)
        if (
            not isinstance(rows, int)
            or rows > CPU.pack_many_rows
            or not _is_at_most(size, CPU.unpacked_elements)
        ):
            return False
        return rows >= CPU.pack_few_rows or not own.isdisjoint(self.old.rows)

    def _operand(self, contract: Contract, factors: _OperandFactors, size: Dim, why: str) -> Buffer:
        """Memory for the right one, of all tasks or of each."""
        is_shared = not operands_of(factors.right) and _belongs_to_all(factors.right, self.old.rows)
        role = Role.SHARED if is_shared else Role.TASK
        return self._new(f"{contract.name}_right", size, why, factors.steps.dtype, role)

    def _fill(
        self, contract: Contract, factors: _OperandFactors, lanes: Axis, panel: Panel | Columns
    ) -> None:
        steps, name = factors.steps, panel.buffer.name

        def element(column: Index, number: int, which: int) -> tuple[str, Sequence[Stmt]]:
            suffix = f"{number or ''}{NEXT * which}"
            copies = {n: f"{n}_{name}{suffix}" for s in factors.right for n in defined(s)}
            now: Mapping[Variable, Index] = {lanes: column, contract.axis: steps.number(which)}
            place = Rewriter(copies, lambda index: index.substitute(now))
            again = [place.statement(s) for s in factors.right]
            return _cast_to(steps.dtype, copies[contract.right], contract.source, again)

        if panel.buffer.role is Role.SHARED:
            self.shared[panel.buffer] = panel.nests(element)
        else:
            self.panels += panel.loops(element)

    def _tile(self, name: str, lanes: Axis) -> Store:
        buffer, index = self._rows_of(f"{name}_tile", lanes.extent, lanes)
        return Store(buffer, index, f"{name}_sum")

    # --- memory

    def _new(
        self, name: str, size: Dim, why: str, dtype: DType = DType.F32, role: Role = Role.TASK
    ) -> Buffer:
        while name in self.taken:
            name += "_"
        self.buffers.append(Buffer(name, dtype, role, size, why))
        return self.buffers[-1]

    def _rows_of(
        self, name: str, extent: Dim, axis: Axis, dtype: DType = DType.F32
    ) -> tuple[Buffer, Index]:
        """So many elements for each row of a block."""
        step = _odd_lines(extent, LINE // dtype.bytes)
        buffer = self._new(name, step * self.rows, "a tile of rows", dtype)
        return buffer, at(self.inner).scaled(step) + at(axis)

    def _connected(self) -> Iterator[Stmt]:
        """The parts as loops over the rows of a block, what they hand on in memory."""
        reaches = Reach(self.old, self.parts)
        rooms = {b: replace(b, size=_whole_vectors(b.size) * self.rows) for b in reaches.buffers}
        self.buffers += rooms.values()
        kept = {
            name: self._new(f"{name}_kept", self.rows, "a value of each row", dtype)
            for name, dtype in reaches.names.items()
        }

        def place(buffer: Buffer, index: Index) -> tuple[Buffer, Index]:
            if buffer not in rooms:
                return buffer, index
            return rooms[buffer], at(self.inner).scaled(_whole_vectors(buffer.size)) + index

        for number, part in enumerate(self.parts):
            own = {name for s in part.statements for name in defined(s)}
            wanted = {name for s in part.statements for name in used(s)} & kept.keys() - own
            names = {name: f"{name}_{number}" for name in sorted(wanted)}
            rewriter = Rewriter(names, lambda index: index.substitute(self.cut), place)
            body: list[Stmt] = [Load(n, kept[o], at(self.inner)) for o, n in names.items()]
            for statement in part.statements:
                body.append(rewriter.statement(statement))
                left = (name for name in defined(statement) if name in kept)
                body += [Store(kept[name], at(self.inner), name) for name in left]
            if part.statements:
                yield Loop(self.inner, tuple(body), lanes=False)
            yield from map(rewriter.statement, (*part.lines, *part.loops))


def _lies_by_steps(factor: Load | None, steps: _ContractionSteps, axis: Axis, other: Axis) -> bool:
    """So many `together` as are multiplied at once begin at a multiple of them."""
    if factor is None or factor.index.coefficient(axis) != 1:
        return False
    return steps.together == 1 or divides(steps.together, factor.index.coefficient(other))


def _whole_vectors(extent: Dim) -> Dim:
    return quotient(extent + (VECTOR - 1), VECTOR) * VECTOR


def _odd_lines(extent: Dim, elements: int) -> Dim:
    """An odd number of cache lines, so that those of a column are spread over a cache's sets."""
    lines = quotient(extent + (elements - 1), elements)
    return (quotient(lines, 2) * 2 + 1) * elements


def _weight(tile: TileProduct) -> Dim:
    """Of a row: as much as a vector of multiplications is one element of other work."""
    return quotient(tile.columns * tile.contract.axis.extent, VECTOR)


def _axes(body: Iterable[Stmt]) -> Iterator[Axis]:
    return (s.axis for s in walk(body) if isinstance(s, Loop | Contract))


def _operands_before(contract: Contract, inside: Sequence[Stmt]) -> Sequence[Stmt]:
    return (*inside[: inside.index(contract)], *contract.body)


def _is_longer(size: Dim, least: int) -> bool:
    return isinstance(size, int) and size > least


def _is_at_most(size: Dim, most: int) -> bool:
    return isinstance(size, int) and size <= most


def _belongs_to_all(needed: Iterable[Stmt], rows: Iterable[Axis]) -> bool:
    """It is the same in all rows, and made of the kernel's inputs."""
    loads = [statement for statement in needed if isinstance(statement, Load)]
    axes = {variable for s in loads for variable, _ in s.index.terms}
    is_plain = all(isinstance(s, Load | Let | Constant) for s in needed)
    is_input = all(load.buffer.role is Role.INPUT for load in loads)
    return is_plain and is_input and axes.isdisjoint(rows)


def _cast_to(
    dtype: DType, name: str, source: DType, body: Sequence[Stmt]
) -> tuple[str, Sequence[Stmt]]:
    if source is dtype:
        return name, body
    wide = f"{name}_wide"
    return wide, (*body, Let(wide, Op.CAST, (name,), source, dtype))


def _only_store(total: Total, body: Sequence[Stmt], lanes: Axis) -> Store | None:
    """Of a loop that only stores a total, where a product of tiles can."""
    match total.others(body):
        case [Store(buffer, index, value) as store] if (
            value == total.name and buffer.dtype is DType.F32 and index.coefficient(lanes) == 1
        ):
            return None if any(isinstance(v, Computed) for v, _ in index.terms) else store
        case _:
            return None


def _taken_inits(part: BlockPart) -> list[Stmt]:
    """The accumulators at the end of a part that the next loop adds to."""
    finished = {s.accumulator for s in part.statements if isinstance(s, Finish)}
    taken = [s for s in part.statements if isinstance(s, Init) and s.name not in finished]
    names = {init.name for init in taken if isinstance(init, Init)}
    if any(isinstance(s, Accumulate) and s.accumulator in names for s in walk(part.statements)):
        raise _Unblockable
    part.statements = [s for s in part.statements if s not in taken]
    return list(taken)
