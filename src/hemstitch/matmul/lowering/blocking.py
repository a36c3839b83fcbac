"""M/N/K blocking of matmuls, for targets with vectors and without matrix units.

A nest with matmuls runs blocks of its last row axis (M). Between matmuls its statements run row by
row. A matmul is a loop over the rows and columns of a block, and nothing else (`TileMatmul`). It
reads operands in memory, and stores a tile in the task's memory. Values that are live across
matmuls have an element in memory for each row of the block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hemstitch.ir.dims import Dim, divides, product, quotient
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.dependence import backward_slice, eliminate_dead_values, live_ins
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
from hemstitch.kernel_ir.rewriter import Rewriter, defined, used
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.matmul.lowering.batch_reduce import BatchReduction, batch_reductions
from hemstitch.matmul.lowering.panels import ColumnPanels, PackedColumns, PackedOperand
from hemstitch.matmul.lowering.row_blocks import (
    block_rows,
    has_sums_per_row,
    is_column_major,
    max_block_rows,
    plain_load,
)
from hemstitch.matmul.lowering.row_parts import BlockPart, LiveAcrossParts, task_buffers
from hemstitch.matmul.lowering.tile_matmul import TileMatmul

PAIR_SUFFIX = "_next"  # of names of the second element of a pack


@dataclass(frozen=True, slots=True)
class Blocking:
    """Block sizes of a matmul with packed panels. `rows`: at most in a block of M; `columns`: of a
    panel (N); `steps`: of K, so that this part of a panel stays in L1 for all rows. The default is
    close to the best on all processors measured."""

    rows: int = 64
    columns: int = 32
    steps: int = 384


USUAL = Blocking()


Panels = Mapping[Buffer, Sequence[Nest]]  # shared operands, and the nests that pack them


@dataclass(frozen=True, slots=True)
class Blocked:
    """A nest with blocked matmuls. `buffers`: its new buffers; `panels`: of them, the operands that
    all tasks share."""

    nest: Nest
    buffers: Sequence[Buffer]
    panels: Panels


def block_matmuls(kernel: Kernel, threads: int, blocking: Blocking = USUAL) -> Kernel:
    """The kernel with blocked matmuls, and a phase that packs shared operands. `threads`: of the
    launch."""
    return with_packing(*blocked_without_packing(kernel, threads, blocking))


def blocked_without_packing(
    kernel: Kernel, threads: int, blocking: Blocking = USUAL
) -> tuple[Kernel, Panels]:
    """The kernel with blocked matmuls, and the nests that pack each shared operand."""
    if not any(isinstance(statement, Contract) for statement in statements(kernel)):
        return kernel, {}
    buffers, phases, panels = list(kernel.buffers), list[Phase](), dict[Buffer, Sequence[Nest]]()
    for phase in kernel.phases:
        nests = list[Nest]()
        for nest in phase.nests:
            taken = {buffer.name for buffer in buffers}
            block = block_nest(nest, threads, blocking, taken) or Blocked(nest, (), {})
            nests.append(block.nest)
            buffers += block.buffers
            panels |= block.panels
        phases.append(replace(phase, nests=tuple(nests)))
    changed = replace(kernel, phases=tuple(phases))
    touched = set(task_buffers(statements(changed)))
    used = (b for b in buffers if b.role is not Role.TASK or b in touched)
    return replace(changed, buffers=tuple(used)), panels


def with_packing(kernel: Kernel, panels: Panels) -> Kernel:
    """The kernel with a first phase that packs these operands."""
    nests = tuple(nest for nests_of_operand in panels.values() for nest in nests_of_operand)
    if not nests:
        return kernel
    first, *later = kernel.phases
    repacked = replace(first, why="operands are packed")
    return replace(kernel, phases=(Phase(nests), repacked, *later))


def block_nest(
    nest: Nest, threads: int, blocking: Blocking = USUAL, taken: Collection[str] = ()
) -> Blocked | None:
    """The nest with blocked matmuls, or None if it has none, or cannot be blocked. `taken`: names
    of other buffers."""
    if not any(isinstance(statement, Contract) for statement in walk(nest.body)):
        return None
    blocks = _BlockedNest(nest, threads, blocking, taken)
    try:
        return Blocked(blocks.nest(), blocks.buffers, blocks.shared)
    except _Unblockable:
        return None


class _Unblockable(Exception):
    """The matmuls of a nest are where its rows cannot be blocked."""


@dataclass(frozen=True, slots=True)
class _KAxis:
    """The K axis of a matmul, `k_pack` elements at a time (K-packing). `dtype`: of the operands."""

    axis: Axis
    k_pack: int
    dtype: DType

    @staticmethod
    def of(contract: Contract) -> _KAxis:
        """Pairs of bf16 (VNNI layout), else single elements in f32."""
        axis = contract.axis
        if contract.source is not DType.BF16 or axis.outer or not divides(2, axis.extent):
            return _KAxis(axis, 1, DType.F32)
        return _KAxis(Axis(f"{axis.name}p", quotient(axis.extent, 2)), 2, DType.BF16)

    def index_of(self, offset: int) -> Index:
        """The index along K of element `offset` of a pack."""
        return at(self.axis).scaled(self.k_pack).shifted(offset)

    def sum(self, name: str, contract: Contract, left: Load, right: Load) -> Iterator[Stmt]:
        """Statements that define `name` as the contraction. `left` has indices of the contraction's
        axis, `right` those of this one."""
        names = [name] if self.k_pack == 1 else [f"{name}_{k}" for k in range(self.k_pack)]
        for offset, part_name in enumerate(names):
            at_k: Mapping[Variable, Index] = {contract.axis: self.index_of(offset)}
            suffix = PAIR_SUFFIX * offset
            loads = (
                Load(f"{left.name}{suffix}", left.buffer, left.index.substitute(at_k)),
                Load(f"{right.name}{suffix}", right.buffer, right.index.shifted(offset)),
            )
            first, second = (load.name for load in loads)
            band = contract.band_at(at_k)
            yield Contract(part_name, self.axis, loads, first, second, self.dtype, DType.F32, band)
        if self.k_pack > 1:
            yield Let(name, Op.ADD, tuple(names), DType.F32, DType.F32)


@dataclass(frozen=True, slots=True)
class _OperandValues:
    """The statements that compute one element of each operand. `is_k_contiguous`: K is contiguous
    in both, for a skinny matmul (`targets/cpu/skinny_matmul.py`)."""

    k_axis: _KAxis
    left: Sequence[Stmt]
    right: Sequence[Stmt]
    is_k_contiguous: bool


class _BlockedNest:
    """One nest. Its last row axis is tiled into `block` and `inner`."""

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
        """The blocked nest. Raises `_Unblockable`."""
        nest = self.old
        if not nest.rows or any(a.outer is nest.rows[-1] for a in _axes(nest.body)):
            raise _Unblockable
        *outer, row = nest.rows
        limit = max_block_rows(nest, self.threads, self.blocking.rows)
        self.rows = block_rows(row.extent, limit, 1 if outer else self.threads)
        block = Axis(f"{row.name}b", quotient(row.extent + (self.rows - 1), self.rows))
        self.inner = Axis(f"{row.name}e", self.rows, block, row.extent)
        self.row_index: Mapping[Variable, Index] = {
            row: at(block).scaled(self.rows) + at(self.inner)
        }
        for position, statement in enumerate(nest.body):
            self._add(statement, nest.body[:position])
        weight = (nest.weight + sum(map(_weight, self._matmuls()))) * self.rows
        body, epilogue = tuple(self._linked_parts()), nest.epilogue
        if not has_sums_per_row(nest):
            body, epilogue = (*body, *epilogue), ()
        return Nest(
            *((*outer, block), nest.prologue, body, epilogue, weight, nest.why),
            panels=tuple(self.panels),
        )

    def _matmuls(self) -> Iterator[TileMatmul]:
        return (tile for part in self.parts for tile in part.matmuls)

    # --- parts

    def _add(self, statement: Stmt, before: Sequence[Stmt]) -> None:
        """Adds a statement to the last part; a lane loop with contractions ends that part."""
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
        for reduction, operands in self._batch_reductions(inside, before, statement.axis):
            only_store = _only_store(reduction, inside, statement.axis)
            loop, store = self._matmul(reduction, operands, statement.axis, only_store, before)
            part.loops.append(loop)
            rest |= dict.fromkeys(reduction.names)
            if only_store is None:
                rest[reduction.name] = Load(reduction.name, store.buffer, store.index)
        remaining = (rest.get(getattr(s, "name", ""), s) for s in inside)
        if any(rest.values()):
            body = eliminate_dead_values(s for s in remaining if s is not None)
            following.statements.append(replace(statement, body=body))
        self.parts.append(following)

    def _batch_reductions(
        self, inside: Sequence[Stmt], before: Sequence[Stmt], lanes: Axis
    ) -> Iterator[tuple[BatchReduction, list[_OperandValues]]]:
        """The batch reductions of a loop. They are separate contractions unless all of them have
        their whole K in one block."""
        for reduction in batch_reductions(inside):
            contracts = reduction.contracts
            operands = [self._operands(contract, lanes, before, inside) for contract in contracts]
            is_one_pass = all(
                pair.k_axis.k_pack == 1
                and not pair.is_k_contiguous
                and contract.band is None
                and _is_at_most(contract.axis.extent, self.blocking.steps)
                for contract, pair in zip(contracts, operands)
            )
            if is_one_pass or len(operands) == 1:
                yield reduction, operands
            else:
                yield from ((BatchReduction.of(c), [pair]) for c, pair in zip(contracts, operands))

    def _matmul(
        self,
        reduction: BatchReduction,
        operands: Sequence[_OperandValues],
        lanes: Axis,
        only_store: Store | None,
        before: Sequence[Stmt],
    ) -> tuple[Loop, Store]:
        """The loop over the rows of a block that computes a batch reduction, and its store. What
        operands need before goes to the last part. `only_store`: the only use of the result."""
        renamed = Rewriter({} if only_store else {reduction.name: f"{reduction.name}_sum"})
        body, panels = list[Stmt](), None
        for contract, pair in zip(reduction.contracts, operands):
            left = self._left(contract, pair, self.parts[-1], before)
            right, panels = self._right(contract, pair, lanes, left, panels)
            name = renamed.names.get(contract.name, contract.name)
            body += pair.k_axis.sum(name, contract, left, right)
        store = only_store or self._tile(reduction.name, lanes)
        body += (*map(renamed.statement, reduction.additions), store)
        loop = Loop(lanes, tuple(body), lanes=True)
        if panels is not None:
            loop = panels.loop(lanes, loop.body)
        return Loop(self.inner, (loop,), lanes=False), store

    def _operands(
        self, contract: Contract, lanes: Axis, before: Sequence[Stmt], inside: Sequence[Stmt]
    ) -> _OperandValues:
        """The statements that compute both operands. Raises `_Unblockable` if the right one depends
        on a row."""
        left = backward_slice(contract.left, _operands_before(contract, inside))
        right = backward_slice(contract.right, (*before, *inside, *contract.body))
        right = right or backward_slice(contract.right, self.old.prologue)  # a constant
        if task_buffers(right) or not self._is_closed(right):
            raise _Unblockable
        k_axis, axis, row = _KAxis.of(contract), contract.axis, self.old.rows[-1]
        first, second = plain_load(left, k_axis.dtype), plain_load(right, DType.F32)
        is_k_contiguous = (
            _is_at_most(lanes.extent, CPU.skinny_columns)
            and axis.outer is None
            and _is_k_contiguous(first, k_axis, axis, row)
            and (second is None or second.index.coefficient(lanes) != 1)
        )
        return _OperandValues(k_axis, left, right, is_k_contiguous)

    def _is_closed(self, needed: Sequence[Stmt]) -> bool:
        """All live-ins of these statements are defined in the prologue."""
        known = {name for s in self.old.prologue for name in defined(s)}
        return live_ins(needed) <= known

    def _left(
        self,
        contract: Contract,
        operands: _OperandValues,
        part: BlockPart,
        before: Sequence[Stmt],
    ) -> Load:
        """The left operand in memory: as it is, or copied to a tile before. `before`: statements of
        the row."""
        k, computation, axis = operands.k_axis, operands.left, contract.axis
        load = plain_load(computation, k.dtype)
        if load is not None and (
            operands.is_k_contiguous or self._is_cache_friendly(load, k, axis)
        ):
            return load
        name = f"{contract.name}_left"
        definition = backward_slice(contract.left, (*before, *computation))
        is_own = any(contract.left in defined(s) for s in computation)  # not the row's before it
        is_closed = is_own and self._is_closed(definition) and not task_buffers(definition)
        overlapping = self._overlapping(definition, axis) if is_closed and k.k_pack == 1 else None
        if overlapping is not None:
            return self._line_buffer(contract, definition, overlapping)
        if is_closed and k.k_pack == 1 and self._is_column_major_value(definition, axis):
            names = {old: f"{name}_{old}" for s in definition for old in defined(s)}
            renamed = [Rewriter(names).statement(s) for s in definition]
            value, computed = _cast_to(k.dtype, names[contract.left], contract.source, renamed)
            buffer = self._new(name, axis.extent * self.rows, "a tile of columns", k.dtype)
            index = at(axis).scaled(self.rows) + at(self.inner)
            lanes = Loop(self.inner, (*computed, Store(buffer, index, value)), lanes=True)
            part.loops.append(Loop(axis, (lanes,), lanes=False))
        else:
            value, computed = _cast_to(k.dtype, contract.left, contract.source, computation)
            buffer, index = self._tile_of_rows(name, axis.extent, axis, k.dtype)
            fill = Loop(axis, (*computed, Store(buffer, index, value)), lanes=True)
            if is_closed and len(definition) == len(computation):
                part.loops.append(Loop(self.inner, (fill,), lanes=False))
            else:
                part.statements.append(fill)
        return Load(f"{name}_in", buffer, index)

    def _overlapping(self, definition: Sequence[Stmt], axis: Axis) -> int | None:
        """The distance between adjacent rows of a left operand whose rows overlap in one line
        (im2col windows), or None."""
        row = self.old.rows[-1]
        places = {
            (s.index.coefficient(row), s.index.coefficient(axis), s.mask)
            for s in definition
            if isinstance(s, Load)
        }
        is_plain = axis.outer is None and all(
            isinstance(s, Load | Let | Constant) for s in definition
        )
        match [*places]:
            case [(int(row_step), 1, None)] if is_plain and divides(self.rows, row.extent):
                return row_step if row_step > 0 and _is_longer(axis.extent, row_step) else None
        return None

    def _line_buffer(self, contract: Contract, computation: Sequence[Stmt], row_step: int) -> Load:
        """A left operand with overlapping rows, from a line buffer that is filled before the
        rows."""
        name, row, k_axis = f"{contract.name}_left", self.old.rows[-1], contract.axis
        buffer_axis = Axis(f"{k_axis.name}l", k_axis.extent + row_step * (self.rows - 1))
        assert self.inner.outer is not None
        begin: Mapping[Variable, Index] = {
            row: at(self.inner.outer).scaled(self.rows),
            k_axis: at(buffer_axis),
        }
        names = {old: f"{name}_{old}" for s in computation for old in defined(s)}
        renamed = Rewriter(names, lambda index: index.substitute(begin))
        definition = [renamed.statement(s) for s in computation]
        value, computed = _cast_to(DType.F32, names[contract.left], contract.source, definition)
        buffer = self._new(name, buffer_axis.extent, "a line that rows are cut from")
        store = Store(buffer, at(buffer_axis), value)
        self.parts[-1].line_buffers.append(Loop(buffer_axis, (*computed, store), lanes=True))
        return Load(f"{name}_in", buffer, at(self.inner).scaled(row_step) + at(k_axis))

    def _is_column_major_value(self, definition: Sequence[Stmt], axis: Axis) -> bool:
        """The loads that differ for each element of the operand are contiguous along rows (M)."""
        row = self.old.rows[-1]
        coefficients = [
            (s.index.coefficient(axis), s.index.coefficient(row))
            for s in definition
            if isinstance(s, Load)
        ]
        row_steps = [of_row for of_axis, of_row in coefficients if of_axis != 0 and of_row != 0]
        return bool(row_steps) and all(of_row == 1 for of_row in row_steps)

    def _is_cache_friendly(self, left: Load, k: _KAxis, axis: Axis) -> bool:
        """The left operand can be read in place: M is contiguous; or K is, and adjacent rows map to
        different sets of a cache."""
        row = self.old.rows[-1]
        if k.k_pack == 1 and (is_column_major(left, row) or left.index.coefficient(axis) == 0):
            return True
        row_step = left.index.coefficient(row)
        is_in_one_set = divides(CPU.set_bytes // left.buffer.dtype.bytes, row_step)
        return _is_k_contiguous(left, k, axis, row) and not is_in_one_set

    def _right(
        self,
        contract: Contract,
        operands: _OperandValues,
        lanes: Axis,
        left: Load,
        panels: ColumnPanels | None,
    ) -> tuple[Load, ColumnPanels | None]:
        """The right operand in memory: as it is, or packed. `panels`: of other matmuls in the same
        batch reduction."""
        k, computation, axis = operands.k_axis, operands.right, contract.axis
        if operands.is_k_contiguous:
            load = plain_load(computation, k.dtype)
            if load is None or not _is_k_contiguous(load, k, axis, lanes):
                return self._packed_columns(contract, operands, lanes), None
            place = load.index.substitute({axis: k.index_of(0)})
            return Load(f"{contract.name}_right_in", load.buffer, place), None
        load, size = plain_load(computation, DType.F32), lanes.extent * axis.extent
        is_row_major = load is not None and load.index.coefficient(lanes) == 1 and k.k_pack == 1
        if load is not None and is_row_major and self._is_in_place(load, size, left):
            return load, panels
        panels = panels or ColumnPanels.of(lanes, self.blocking.columns)
        size = panels.outer.extent * panels.width * axis.extent
        buffer = self._operand(contract, operands, size, "strips of an operand")
        panel = PackedOperand(panels, k.axis, k.k_pack, buffer)
        self._fill(contract, operands, lanes, panel)
        return Load(f"{contract.name}_right_in", buffer, panel.place(panels)), panels

    def _packed_columns(self, contract: Contract, operands: _OperandValues, lanes: Axis) -> Load:
        """The right operand of a skinny matmul, packed so that K is contiguous."""
        k = operands.k_axis
        size = lanes.extent * contract.axis.extent
        buffer = self._operand(contract, operands, size, "columns of an operand")
        columns = PackedColumns(lanes, k.axis, k.k_pack, buffer)
        self._fill(contract, operands, lanes, columns)
        return Load(f"{contract.name}_right_in", buffer, columns.place(at(lanes)))

    def _is_in_place(self, right: Load, size: Dim, left: Load) -> bool:
        """The right operand is better read in place than packed. To pack it costs as much as 35
        rows of the matmul, and makes each row a thirtieth faster. An operand beyond L2 is read
        again for each block of rows. A nest of few rows may be one of several kernels that share
        the packed operand. With a column-major left operand both operands are read only once."""
        is_by_columns = any(is_column_major(left, row) for row in (self.old.rows[-1], self.inner))
        if _is_at_most(size, CPU.near_elements) or is_by_columns:
            return True
        axes = {variable for variable, _ in right.index.terms}
        rows = product(axis.extent for axis in self.old.rows if axis not in axes)
        if (
            not isinstance(rows, int)
            or rows > CPU.pack_many_rows
            or not _is_at_most(size, CPU.unpacked_elements)
        ):
            return False
        return rows >= CPU.pack_few_rows or not axes.isdisjoint(self.old.rows)

    def _operand(self, contract: Contract, operands: _OperandValues, size: Dim, why: str) -> Buffer:
        """A buffer for the packed right operand, shared by all tasks if it is the same in all
        rows."""
        right = operands.right
        is_shared = not live_ins(right) and _is_row_invariant(right, self.old.rows)
        role = Role.SHARED if is_shared else Role.TASK
        return self._new(f"{contract.name}_right", size, why, operands.k_axis.dtype, role)

    def _fill(
        self,
        contract: Contract,
        operands: _OperandValues,
        lanes: Axis,
        packed: PackedOperand | PackedColumns,
    ) -> None:
        """Adds loops that pack the operand: nests of the packing phase, or panels of this nest."""
        k, name = operands.k_axis, packed.buffer.name

        def element(column: Index, number: int, offset: int) -> tuple[str, Sequence[Stmt]]:
            suffix = f"{number or ''}{PAIR_SUFFIX * offset}"
            renames = {n: f"{n}_{name}{suffix}" for s in operands.right for n in defined(s)}
            at_k: Mapping[Variable, Index] = {
                lanes: column,
                contract.axis: k.index_of(offset),
            }
            rewriter = Rewriter(renames, lambda index: index.substitute(at_k))
            renamed = [rewriter.statement(s) for s in operands.right]
            return _cast_to(k.dtype, renames[contract.right], contract.source, renamed)

        if packed.buffer.role is Role.SHARED:
            self.shared[packed.buffer] = packed.nests(element)
        else:
            self.panels += packed.loops(element)

    def _tile(self, name: str, lanes: Axis) -> Store:
        """The store of a result to a tile in the task's memory."""
        buffer, index = self._tile_of_rows(f"{name}_tile", lanes.extent, lanes)
        return Store(buffer, index, f"{name}_sum")

    # --- memory

    def _new(
        self, name: str, size: Dim, why: str, dtype: DType = DType.F32, role: Role = Role.TASK
    ) -> Buffer:
        while name in self.taken:
            name += "_"
        self.buffers.append(Buffer(name, dtype, role, size, why))
        return self.buffers[-1]

    def _tile_of_rows(
        self, name: str, extent: Dim, axis: Axis, dtype: DType = DType.F32
    ) -> tuple[Buffer, Index]:
        """A buffer with `extent` elements for each row of a block, and the index of an element in
        it."""
        row_step = _odd_lines(extent, CPU.line_bytes // dtype.bytes)
        buffer = self._new(name, row_step * self.rows, "a tile of rows", dtype)
        return buffer, at(self.inner).scaled(row_step) + at(axis)

    def _linked_parts(self) -> Iterator[Stmt]:
        """The parts as loops over the rows of a block. Values live across parts are saved in
        memory."""
        handed_on = LiveAcrossParts(self.old, self.parts)
        expanded = {
            b: replace(b, size=_whole_vectors(b.size) * self.rows) for b in handed_on.buffers
        }
        self.buffers += expanded.values()
        saved = {
            name: self._new(f"{name}_kept", self.rows, "a value of each row", dtype)
            for name, dtype in handed_on.names.items()
        }

        def place(buffer: Buffer, index: Index) -> tuple[Buffer, Index]:
            if buffer not in expanded:
                return buffer, index
            return expanded[buffer], at(self.inner).scaled(_whole_vectors(buffer.size)) + index

        for number, part in enumerate(self.parts):
            defined_here = {name for s in part.statements for name in defined(s)}
            names_used = {name for s in part.statements for name in used(s)}
            reloaded = names_used & saved.keys() - defined_here
            names = {name: f"{name}_{number}" for name in sorted(reloaded)}
            rewriter = Rewriter(names, lambda index: index.substitute(self.row_index), place)
            body: list[Stmt] = [Load(n, saved[o], at(self.inner)) for o, n in names.items()]
            for statement in part.statements:
                body.append(rewriter.statement(statement))
                defined_names = (name for name in defined(statement) if name in saved)
                body += [Store(saved[name], at(self.inner), name) for name in defined_names]
            if part.statements:
                yield Loop(self.inner, tuple(body), lanes=False)
            yield from map(rewriter.statement, (*part.line_buffers, *part.loops))


def _is_k_contiguous(load: Load | None, k: _KAxis, axis: Axis, other_axis: Axis) -> bool:
    """K is contiguous, and each pack is aligned to its size."""
    if load is None or load.index.coefficient(axis) != 1:
        return False
    return k.k_pack == 1 or divides(k.k_pack, load.index.coefficient(other_axis))


def _whole_vectors(extent: Dim) -> Dim:
    return quotient(extent + (CPU.widest_lanes - 1), CPU.widest_lanes) * CPU.widest_lanes


def _odd_lines(extent: Dim, elements: int) -> Dim:
    """`extent`, rounded up to an odd number of cache lines, so that the rows of a tile map to
    different sets of a cache."""
    line_buffers = quotient(extent + (elements - 1), elements)
    return (quotient(line_buffers, 2) * 2 + 1) * elements


def _weight(tile: TileMatmul) -> Dim:
    """Work of one row: a vector multiplication counts as one element of other work."""
    return quotient(tile.columns * tile.contract.axis.extent, CPU.widest_lanes)


def _axes(body: Iterable[Stmt]) -> Iterator[Axis]:
    return (s.axis for s in walk(body) if isinstance(s, Loop | Contract))


def _operands_before(contract: Contract, inside: Sequence[Stmt]) -> Sequence[Stmt]:
    return (*inside[: inside.index(contract)], *contract.body)


def _is_longer(size: Dim, least: int) -> bool:
    return isinstance(size, int) and size > least


def _is_at_most(size: Dim, most: int) -> bool:
    return isinstance(size, int) and size <= most


def _is_row_invariant(computation: Iterable[Stmt], rows: Iterable[Axis]) -> bool:
    """The value is computed from inputs of the kernel, and is the same in all rows."""
    loads = [statement for statement in computation if isinstance(statement, Load)]
    axes = {variable for s in loads for variable, _ in s.index.terms}
    is_plain = all(isinstance(s, Load | Let | Constant) for s in computation)
    is_input = all(load.buffer.role is Role.INPUT for load in loads)
    return is_plain and is_input and axes.isdisjoint(rows)


def _cast_to(
    dtype: DType, name: str, source: DType, body: Sequence[Stmt]
) -> tuple[str, Sequence[Stmt]]:
    """The value `name` in `dtype`, and the statements that compute it."""
    if source is dtype:
        return name, body
    cast_name = f"{name}_wide"
    return cast_name, (*body, Let(cast_name, Op.CAST, (name,), source, dtype))


def _only_store(reduction: BatchReduction, body: Sequence[Stmt], lanes: Axis) -> Store | None:
    """The store that is the only use of the result in its loop, if the tile matmul can be the one
    to execute it."""
    match reduction.rest_of(body):
        case [Store(buffer, index, value) as store] if (
            value == reduction.name and buffer.dtype is DType.F32 and index.coefficient(lanes) == 1
        ):
            return None if any(isinstance(v, Computed) for v, _ in index.terms) else store
        case _:
            return None


def _taken_inits(part: BlockPart) -> list[Stmt]:
    """Removes from a part the accumulators that the next loop adds to, and returns them."""
    finished = {s.accumulator for s in part.statements if isinstance(s, Finish)}
    open_inits = [s for s in part.statements if isinstance(s, Init) and s.name not in finished]
    names = {init.name for init in open_inits if isinstance(init, Init)}
    if any(isinstance(s, Accumulate) and s.accumulator in names for s in walk(part.statements)):
        raise _Unblockable
    part.statements = [s for s in part.statements if s not in open_inits]
    return list(open_inits)
