"""Builds one nest: the loops of the roots that share a mapping and a phase, and the destinations of
their reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hemstitch.ir.dims import product, total
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import OPS, SCANNED, highest, identity, is_scan
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.kernel_ir.dependence import matmul_problem
from hemstitch.kernel_ir.index import Axis, Index, at, linear
from hemstitch.kernel_ir.nodes import (
    TASK,
    Accumulate,
    AccumulateInto,
    Buffer,
    Constant,
    Finish,
    Init,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Running,
    Scan,
    Stmt,
    Store,
)
from hemstitch.stitching.buffers import Buffers, partial_step
from hemstitch.stitching.compensation_flush import flush
from hemstitch.stitching.dimension_unification import Domain
from hemstitch.stitching.group import (
    Group,
    Root,
    Write,
    computed_below,
    gathered_indices,
    is_scatter_root,
    leaf_below,
    operands,
    reductions_below,
)
from hemstitch.stitching.loop_shapes import ARG_REDUCTIONS, arg_position, domain_of
from hemstitch.stitching.partial_results import combine
from hemstitch.stitching.pulled_values import Values
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.row_buffers import retained_values
from hemstitch.stitching.scan_mapping import column_axis, is_scan_root
from hemstitch.stitching.schedule import Schedule, Scheme
from hemstitch.stitching.view_indices import INDEX_VIEWS, Indices


class NestBuilder(Values):
    """Builds the nest of all roots with this mapping and phase."""

    def __init__(
        self, group: Group, schedule: Schedule, buffers: Buffers, nest: int, phase: int
    ) -> None:
        super().__init__(group, schedule, buffers, (nest, phase))
        self.roots = schedule.at(nest, phase)
        self.accumulators: dict[Node, str] = {}
        self.staged: dict[Node, tuple[Buffer, Index]] = {}  # values retained in a result's memory
        self.flushed: dict[Node, tuple[Stmt, ...]] = {}  # flushes of two-level sums

    def build(self) -> Nest:
        stages = sorted({self.schedule.places[root].stage for root in self.roots})
        loops = [loop for stage in stages for loop in self._loops_of(stage)]
        retained = self._plan_retained(loops)
        for position, (order, roots) in enumerate(loops):
            self._clear_accumulators(order, roots)
            self._open_loops(order, roots, retained.get(position, []))
        weight = total(product(axis.extent for axis in order) for order, _ in loops)
        nest = Nest(
            self.mapping.rows,
            tuple(self.scopes[0].statements),
            tuple(self.scopes[1].statements),
            tuple(statement for flush in self.flushed.values() for statement in flush),
            weight,
            self._why(),
        )
        if self.schedule.unification.contracted:
            problem = matmul_problem(nest)
            if problem is not None:
                raise Refused("matmul", problem)
        return nest

    def _plan_retained(
        self, loops: Sequence[tuple[tuple[Axis, ...], list[Root]]]
    ) -> dict[int, list[Node]]:
        """For each loop, the values that it retains for later ones: in row buffers as long as those
        fit, else in the memory of a result, if possible."""
        evaluated: list[set[Node]] = [
            set().union(
                *(computed_below(root.value, self.members, self.reductions) for root in roots)
            )
            for _, roots in loops
        ]
        first_loop: dict[Node, int] = {}
        for position, ((order, _), nodes) in enumerate(zip(loops, evaluated)):
            for node in nodes - self.group.rematerialised:
                if order and set(order) == set(self._row_axes(node)):
                    first_loop.setdefault(node, position)
        candidates = retained_values(self.group, evaluated, first_loop)
        fitting = self._fitting(candidates)
        if len(fitting) < len(candidates):
            staged = self._staged(loops, evaluated, first_loop)
            self.staged = {node: place for node, place in staged.items() if node not in fitting}
            candidates = [node for node in candidates if node in fitting or node in self.staged]
        retained: dict[int, list[Node]] = {}
        for node in candidates:
            retained.setdefault(first_loop[node], []).append(node)
        return retained

    def _fitting(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes whose row buffers fit together. Cheap values are dropped before expensive ones,
        those nearest to the results first (the 2018 paper's order of shrinking, section 5)."""
        bytes_ = {node: 4 * self.group.hint(self._row_extent(node)) for node in nodes}
        order = sorted(enumerate(nodes), key=lambda pair: (OPS[pair[1].op].is_expensive, -pair[0]))
        for _, node in order:
            if sum(bytes_.values()) <= self.buffers.row_budget:
                break
            del bytes_[node]
        return list(bytes_)

    def _staged(
        self,
        loops: Sequence[tuple[tuple[Axis, ...], list[Root]]],
        evaluated: Sequence[set[Node]],
        first_loop: Mapping[Node, int],
    ) -> dict[Node, tuple[Buffer, Index]]:
        """Expensive values that only one later loop reads, which writes a result of the same shape:
        they are retained in its memory (AStitch's hierarchical reuse, without on-chip memory)."""
        places: dict[Node, tuple[Buffer, Index]] = {}
        for node, maker in first_loop.items():
            readers = [k for k in range(maker + 1, len(loops)) if node in evaluated[k]]
            if not OPS[node.op].is_expensive or len(readers) != 1:
                continue
            order, roots = loops[readers[0]]
            free = (root for root in roots if self._can_hold(node, root, places))
            root = next(free, None) if order == loops[maker][0] else None
            if root is not None:
                places[node] = self._destination(root)
        return places

    def _can_hold(
        self, node: Node, root: Root, places: Mapping[Node, tuple[Buffer, Index]]
    ) -> bool:
        """Whether the memory that `root` writes can retain `node` until then."""
        write = root.write
        if write is None or write.tensor.is_argument:
            return False
        is_free = all(self.buffers.output(write.tensor) is not b for b, _ in places.values())
        return is_free and write.value.type.dtype is node.type.dtype is node.type.dtype.compute

    def _why(self) -> str:
        rows = " x ".join(f"{axis}[{axis.extent}]" for axis in self.mapping.rows) or "one row"
        return f"rows {rows}"

    def _loops_of(self, stage: int) -> list[tuple[tuple[Axis, ...], list[Root]]]:
        """The loops of one stage: roots with the same inner axes share one. A matmul precedes those
        that it is an operand of, so that its row can be retained for them."""
        by_axes: dict[tuple[Axis, ...], list[Root]] = {}
        for root in self.roots:
            if self.schedule.places[root].stage == stage:
                by_axes.setdefault(self._inner(self.schedule.shapes[root].axes), []).append(root)
        return sorted(by_axes.items(), key=lambda loop: max(map(self._matmuls_below, loop[1])))

    def _matmuls_below(self, root: Root) -> int:
        below = computed_below(root.value, self.members, self.reductions)
        return sum(node.op is Op.DOT for node in below)

    def _open_loops(
        self, order: tuple[Axis, ...], roots: list[Root], retained: list[Node], depth: int = 0
    ) -> None:
        finishing = [
            root
            for root in roots
            if root.reduction is not None and self._depth(order, root) == depth < len(order)
        ]
        for root in finishing:
            self._init(root)
        if depth == len(order):
            self._bodies(order, roots, retained)
        else:
            axis = order[depth]
            with self._scope(axis, lanes=depth == len(order) - 1):
                self._open_loops(order, roots, retained, depth + 1)
        for root in finishing:
            self._finish(order, root)

    def _depth(self, order: tuple[Axis, ...], root: Root) -> int:
        """The number of loops around a reduction's accumulator."""
        reduced = set(self.mapping.after_split(self.schedule.shapes[root].reduced))
        depth = len(order) - (self._columns(root) is not None)
        while depth and order[depth - 1] in reduced:
            depth -= 1
        return depth

    def _columns(self, root: Root) -> Axis | None:
        return column_axis(self.schedule.shapes[root], self.mapping)

    def _bodies(self, order: tuple[Axis, ...], roots: list[Root], retained: list[Node]) -> None:
        """Scans, and running maxima of online softmax, precede the values that depend on them."""
        for root in roots:
            if is_scan_root(root):
                self._scan(root)
        roots = [root for root in roots if not is_scan_root(root)]
        leaders = set(self.schedule.running_maximum.values())
        leading = [root for root in roots if root.reduction in leaders]
        if leading:
            self._body(order, leading, [])
        for root in leading:
            node = root.reduction
            assert node is not None
            name = self.buffers.name("m")
            self._emit(Running(name, self.accumulators[node]))
            self.level_of[name] = len(self.scopes) - 1
            self.scopes[-1].values[node, self._domain(node).indices, None] = name
        self._body(order, [root for root in roots if root not in leading], retained)

    def _scan(self, root: Root) -> None:
        node, source = root.reduction, root.value.type.dtype.compute
        assert node is not None
        for below, indices in self._evaluation_order([root]):
            self.value(below, indices)
        domain, dtype = self._domain(node), self.buffers.accumulator_dtype(node)
        value = self._cast(self.value(root.value, domain.indices), source, dtype)
        name, lanes = self.buffers.name("s"), self._columns(root)
        step: Stmt
        if lanes is None:
            step = Scan(name, self.accumulators[node], value)
        else:
            buffer, place = self.buffers.columns(self.place, node, lanes.extent), at(lanes)
            self._emit(AccumulateInto(buffer, place, SCANNED[node.op], dtype, value))
            step = Load(name, buffer, place)
        self._define(name, len(self.scopes) - 1, step)
        name = self._cast(name, dtype, source)
        self.scopes[-1].values[node, domain.indices, None] = name
        if self.schedule.schemes[node] is Scheme.SHARED:
            address = self._final(linear(domain.indices, contiguous_strides(node.shape)))
            self._emit(Store(self.buffers.shared(node), address, name))
        elif self._is_read_later(root):
            extent = self._row_extent(node)
            if 4 * self.group.hint(extent) > self.buffers.row_budget:
                raise Refused("scan", f"{extent} elements of a row do not wait in cache")
            buffer = self.buffers.row(self.place, node, extent)
            self._emit(Store(buffer, self._row_address(node, domain.indices), name))

    def _is_read_later(self, scan: Root) -> bool:
        places = self.schedule.places
        return any(
            scan.reduction in reductions_below(root.values, self.members, self.reductions)
            for root in self.roots
            if places[root].stage > places[scan].stage
        )

    def _cast(self, name: str, source: DType, dtype: DType) -> str:
        if source is dtype:
            return name
        cast = self.buffers.name("w")
        return self._define(cast, len(self.scopes) - 1, Let(cast, Op.CAST, (name,), source, dtype))

    def _body(self, order: tuple[Axis, ...], roots: list[Root], retained: list[Node]) -> None:
        for node, indices in self._evaluation_order(roots):
            self.value(node, indices)
        for node in retained:
            indices = self._domain(node).indices
            name = self.value(node, indices)
            place = self.staged.get(node)
            if place is None:
                buffer = self.buffers.row(self.place, node, self._row_extent(node))
                place = (buffer, self._row_address(node, indices))
            self._emit(Store(*place, name))
        for root in roots:
            if root.reduction in self.group.k_along_lanes:
                assert root.reduction is not None
                self._accumulate_matmul(root.reduction, self.accumulators[root.reduction])
                continue
            domain = domain_of(root, self.schedule.unification)
            name = self.value(root.value, domain.indices)
            if is_scatter_root(root):
                self._scatter_add(root, domain, name)
            elif root.write is not None:
                self._emit(Store(*self._destination(root), name))
            elif self._depth(order, root) < len(order):
                self._accumulate(root, domain, name)
            else:
                assert root.reduction is not None
                self._result(order, root, name, self._arg_order(root, domain))
        self.retained |= {node: self.staged.get(node) for node in retained}

    def _scatter_add(self, root: Root, domain: Domain, name: str) -> None:
        """Adds the value `name` to the element that its index operands select."""
        node, write = root.reduction, root.write
        assert node is not None and write is not None
        targets = self._indices_of(node, domain.indices, node.shape, None)
        if any(self.level_of[index.name] == len(self.scopes) - 1 for index in targets[1:]):
            raise Refused("scatter", "each lane would write to an index of its own")
        place = self._address(write, gathered_indices(node, domain.indices, targets))
        buffer, dtype = self.buffers.output(write.tensor), node.type.dtype.compute
        add = AccumulateInto(
            *(buffer, self._final(place), Op.SUM, dtype, name), atomic=self.mapping.atomic
        )
        self._emit(add)

    def _clear_scattered(self, root: Root) -> None:
        """Clears the row's elements of a scatter-add's result, unless an earlier phase clears them
        all."""
        node, write = root.reduction, root.write
        assert node is not None and write is not None
        if not self.mapping.atomic:
            place = self._address(write, self._domain(node).indices)
            buffer = self.buffers.output(write.tensor)
            self._clear(1, self._row_axes(node), buffer, None, node, self._final(place))

    def _destination(self, root: Root) -> tuple[Buffer, Index]:
        """The buffer and index of a write, for the element that its loop computes."""
        write, domain = root.write, domain_of(root, self.schedule.unification)
        assert write is not None
        address = self._address(write, domain.indices)
        return self.buffers.output(write.tensor), self._final(address)

    def _address(self, write: Write, indices: Indices) -> Index:
        return self.buffers.address(write.tensor, indices, write.strides, write.offset)

    def _evaluation_order(self, roots: list[Root]) -> list[tuple[Node, Indices]]:
        """Members and their indices, operands first, so that `value` does not recurse deeply.
        Operands under a mask are left to `value`."""
        order: list[tuple[Node, Indices]] = []
        visited: set[tuple[Node, Indices]] = set()
        work = [
            (root.value, domain_of(root, self.schedule.unification).indices, False)
            for root in reversed(roots)
        ]
        while work:
            node, indices, done = work.pop()
            if done:
                order.append((node, indices))
                continue
            if (node, indices) in visited or leaf_below(self.group, node) is not None:
                continue
            visited.add((node, indices))
            if node in self.members:
                if node in self.reductions or self._is_retained(node, indices):
                    continue
                work.append((node, indices, True))
                if node.op not in (Op.GATHER, Op.DOT):
                    work.extend((x, i, False) for x, i in operands(node, indices, {}))
            elif node.op in INDEX_VIEWS:
                work.extend((x, i, False) for x, i in operands(node, indices, {}))
        return order

    def _init(self, root: Root) -> None:
        node = root.reduction
        assert node is not None
        lanes = self._columns(root)
        if lanes is not None:
            buffer = self.buffers.columns(self.place, node, lanes.extent)
            self._clear(len(self.scopes) - 1, (lanes,), buffer, None, node, at(lanes))
            return
        name = self.accumulators[node] = self.buffers.name("acc")
        dtype = node.inputs[0].type.dtype.compute
        leader = self.schedule.running_maximum.get(node)
        follows = None if leader is None else self.accumulators[leader]
        if is_scan(node.op):
            dtype = self.buffers.accumulator_dtype(node)
            self._emit(Init(name, SCANNED[node.op], dtype, across=True))
        elif node in self.group.k_along_lanes:
            (columns,) = self._row_axes(node)
            self._emit(Init(name, Op.SUM, dtype, across=True, running_max=follows, columns=columns))
        else:
            self._emit(Init(name, node.op, dtype, across=True, running_max=follows))

    def _accumulate(self, root: Root, domain: Domain, value: str) -> None:
        node = root.reduction
        assert node is not None
        position = self._final(arg_position(node, domain)) if node.op in ARG_REDUCTIONS else None
        self._emit(Accumulate(self.accumulators[node], value, position))

    def _arg_order(self, root: Root, domain: Domain) -> str | None:
        node = root.reduction
        if node is None or node.op not in ARG_REDUCTIONS:
            return None
        name = self.buffers.name("at")
        self._emit(Position(name, self._final(arg_position(node, domain))))
        self.level_of[name] = len(self.scopes) - 1
        return name

    def _finish(self, order: tuple[Axis, ...], root: Root) -> None:
        node = root.reduction
        assert node is not None
        if self._columns(root) is not None:
            return
        name = self.buffers.name("r")
        if is_scan(node.op):
            self._emit(Finish(name, self.accumulators[node]))
            return
        if node in self.group.k_along_lanes:
            self._finish_columns(node, name)
            return
        position = self.buffers.name("at") if node.op in ARG_REDUCTIONS else None
        self._emit(Finish(name, self.accumulators[node], position))
        self.level_of |= {n: len(self.scopes) - 1 for n in (name, position) if n is not None}
        self._result(order, root, name, position)

    def _finish_columns(self, matmul: Node, name: str) -> None:
        """A matmul that accumulates along the lanes goes to a row buffer."""
        (columns,) = self._row_axes(matmul)
        buffer = self.buffers.row(self.place, matmul, columns.extent)
        stored = Store(buffer, self._row_address(matmul, self._domain(matmul).indices), name)
        finish = Finish(name, self.accumulators[matmul])
        self._emit(Loop(columns, (finish, stored), lanes=True))

    def _result(self, order: tuple[Axis, ...], root: Root, name: str, position: str | None) -> None:
        """Stores the value of a reduction, after the loops so far, where its readers find it."""
        node = root.reduction
        assert node is not None
        indices = self._domain(node).indices
        target = self._memory_accumulator(order, root)
        if target is not None:
            buffer, positions, address = target
            dtype = node.inputs[0].type.dtype.compute
            if positions is None:
                name, dtype = self._cast(name, dtype, buffer.dtype), buffer.dtype
            self._emit(AccumulateInto(buffer, address, node.op, dtype, name, positions, position))
            return
        result = position if position is not None else name
        self.scopes[-1].values[node, indices, None] = result
        self.level_of.setdefault(result, len(self.scopes) - 1)
        if self.schedule.schemes[node] is Scheme.SHARED:
            address = self._final(linear(indices, contiguous_strides(node.shape)))
            self._emit(Store(self.buffers.shared(node), address, result))
        elif self._row_axes(node):
            buffer = self.buffers.row(self.place, node, self._row_extent(node))
            self._emit(Store(buffer, self._row_address(node, indices), result))

    def _memory_accumulator(
        self, order: tuple[Axis, ...], root: Root
    ) -> tuple[Buffer, Buffer | None, Index] | None:
        """The accumulator in memory of a reduction whose outer loops reduce too: (values, positions
        of ARGMAX, address); else None."""
        node = root.reduction
        assert node is not None
        reduced = set(self.mapping.after_split(self.schedule.shapes[root].reduced))
        if not reduced & {*order[: self._depth(order, root)], *self.mapping.rows}:
            return None
        indices = self._domain(node).indices
        flat = linear(indices, contiguous_strides(node.shape))
        match self.schedule.schemes[node]:
            case Scheme.PARTIAL:
                if self._is_flushed(order, root):
                    return self.buffers.recent(self.place, node), None, self._final(flat)
                address = self._final(flat) + at(TASK).scaled(partial_step(node))
                return (*self.buffers.partial(node), address)
            case Scheme.SHARED:
                return (*self.buffers.shared_accumulator(node), self._final(flat))
            case Scheme.REGIONAL:
                extent = self._row_extent(node)
                buffers = self.buffers.row_accumulator(self.place, node, extent)
                return (*buffers, self._row_address(node, indices))

    def _is_flushed(self, order: tuple[Axis, ...], root: Root) -> bool:
        """Whether wide or compensated sums are accumulated in two levels, since every step adds a
        whole vector (`compensation_flush.py`)."""
        node = root.reduction
        assert node is not None
        if self.buffers.is_compensated(node):
            return True
        is_wide = self.buffers.accumulator_dtype(node) is not node.type.dtype.compute
        is_arg = node.op in ARG_REDUCTIONS
        return bool(order) and is_wide and not is_arg and self._depth(order, root) == len(order)

    def _clear_accumulators(self, order: tuple[Axis, ...], roots: list[Root]) -> None:
        """Sets the accumulators in memory that this loop adds to, to the reduction's identity."""
        for root in roots:
            node = root.reduction
            if is_scatter_root(root):
                self._clear_scattered(root)
                continue
            target = None if node is None else self._memory_accumulator(order, root)
            if node is None or target is None:
                continue
            buffer, positions, address = target
            if self.schedule.schemes[node] is not Scheme.PARTIAL:
                self._clear(1, self._row_axes(node), buffer, positions, node, address)
                continue
            self._clear_all(node, *self.buffers.partial(node), is_shared=True)
            if self.buffers.is_compensated(node):
                self._clear_all(node, self.buffers.compensation(node), None, is_shared=True)
            if self._is_flushed(order, root):
                self._clear_all(node, buffer, None, is_shared=False)
                self.flushed[node] = flush(self.buffers, node, buffer)

    def _clear_all(
        self, node: Node, buffer: Buffer, positions: Buffer | None, *, is_shared: bool
    ) -> None:
        """Clears a task's accumulator before its first row."""
        axis = Axis(self.buffers.name("k"), node.type.size)
        start = at(TASK).scaled(partial_step(node)) if is_shared else Index()
        self._clear(0, (axis,), buffer, positions, node, at(axis) + start)

    def _clear(
        self,
        level: int,
        axes: tuple[Axis, ...],
        buffer: Buffer,
        positions: Buffer | None,
        node: Node,
        address: Index,
    ) -> None:
        """Loops that set `buffer` to the identity of `node`'s reduction."""
        name, nowhere = self.buffers.name("zero"), self.buffers.name("nowhere")
        body: list[Stmt] = [
            Constant(name, identity(SCANNED.get(node.op, node.op), buffer.dtype), buffer.dtype),
            Store(buffer, address, name),
        ]
        if positions is not None:
            last = Constant(nowhere, highest(DType.I64), DType.I64)
            body += [last, Store(positions, address, nowhere)]
        for depth, axis in enumerate(reversed(axes)):
            body = [Loop(axis, tuple(body), lanes=depth == 0)]
        self.scopes[level].statements.extend(body)

    def reduced(self, node: Node, indices: Indices, mask: str | None) -> str:
        """The name of a reduction's result, loaded from where its scheme stores it."""
        scheme = self.schedule.schemes[node]
        maker = self.schedule.places[self.schedule.root_of[node]]
        if scheme is Scheme.PARTIAL and node not in self.schedule.combined:
            return self._combined(node, indices, mask)
        if (maker.nest, maker.phase) != self.place:
            return self._shared(node, indices, mask)
        if indices == self._domain(node).indices and mask is not None:
            return self.value(node, indices)
        if not self._row_axes(node):
            raise Refused("row", "a row's result is read from another row")
        row_index = self._row_address(node, indices)
        if scheme is Scheme.SHARED:
            return self._shared(node, indices, mask)
        buffer = self.buffers.row(self.place, node, self._row_extent(node))
        return self._narrowed(node, buffer, row_index, mask)

    def _shared(self, node: Node, indices: Indices, mask: str | None) -> str:
        address = self._final(linear(indices, contiguous_strides(node.shape)))
        return self._narrowed(node, self.buffers.shared(node), address, mask)

    def _narrowed(self, node: Node, buffer: Buffer, address: Index, mask: str | None) -> str:
        """Loads a result, converted to the type that its readers expect."""
        name, dtype = self._load(buffer, address, mask), node.type.dtype.compute
        if buffer.dtype is dtype:
            return name
        return self._let(Op.CAST, (name,), buffer.dtype, dtype)

    def _combined(self, node: Node, indices: Indices, mask: str | None) -> str:
        """The tasks' partial results as one, unless an earlier phase combined them: in place, where
        each element is read once and without a mask; else all of them in advance, into memory of
        the task."""
        result_axes = self.schedule.collapsed.axes(self._domain(node).axes)
        address = self._final(linear(indices, contiguous_strides(node.shape)))
        if node.type.size == 1:  # valid whatever the mask
            address = Index((), 0)
        if node.type.size == 1 or (self.mapping.distributes(result_axes) and mask is None):
            level = self._level(address)
            name, statements = combine(self.buffers, node, address)
            self.scopes[level].statements.extend(statements)
            self.level_of[name] = level
            return name
        buffer, is_new = self.buffers.combined(self.place, node)
        if is_new:
            axis = Axis(self.buffers.name("k"), node.type.size)
            name, statements = combine(self.buffers, node, at(axis))
            body = (*statements, Store(buffer, at(axis), name))
            self.scopes[0].statements.append(Loop(axis, body, lanes=True))
        return self._load(buffer, address, mask)
