"""The invariants of every plan. Takes a plan with its graph, names the step that violates one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from hemstitch.errors import InternalError
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Graph, Node, Op, toposort
from hemstitch.ir.ops import is_call, is_elementwise, is_view
from hemstitch.ir.types import DType
from hemstitch.planning.materialised_views import same_strides
from hemstitch.planning.plan import KernelStep, LibraryStep, Plan, Step
from hemstitch.stitching.group import INLINE, Group, Tensor, Write


def verify_plan(plan: Plan) -> None:
    """Raises InternalError for the first violation."""
    graph = plan.graph
    calls = [step for step in plan.steps if isinstance(step, LibraryStep)]
    in_place = {c.node: t for c in calls for t in c.results if t is not None and t.is_argument}
    state = _Memory(in_place)
    for number, step in enumerate(plan.steps):
        state.step(step, f"step {number}")
    _check_writes(plan)
    _check_members(plan)
    _check_library(graph, plan)
    _check_outputs(graph, plan, state.filled)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise InternalError(f"invalid plan: {problem}")


def _groups(step: Step) -> tuple[Group, ...]:
    if isinstance(step, LibraryStep):
        return ()
    return step.groups if isinstance(step, KernelStep) else (step.group,)


class _Memory:
    """What has been written so far. `replaced`: inputs whose old contents are gone. `in_place`:
    library calls that replace them, and those `called`: old contents are read before, results
    behind them."""

    def __init__(self, in_place: Mapping[Node, Tensor]) -> None:
        self.filled: set[Tensor] = set()
        self.replaced: set[Tensor] = set()
        self.in_place = in_place
        self.called: set[Node] = set()

    def step(self, step: Step, where: str) -> None:
        if isinstance(step, LibraryStep):
            for operand in step.operands:
                self._read(operand.tensor, where)
            self._in_order(_below_views(step.node.inputs), where)
            self.called.add(step.node)
            self.filled.update(tensor for tensor in step.results if tensor is not None)
            return
        groups = _groups(step)
        for group in groups:
            _check_group(group, where)
            self._in_order(group.reads, where)
            for tensor in group.reads.values():
                self._read(tensor, where)
                others = (g for g in groups if g is not group)
                apart = all(tensor is not w.tensor for other in others for w in other.writes)
                _require(apart, f"{where}: a group reads what another one writes")
        if isinstance(step, KernelStep):
            _check_parameters(step, where)
            self._panels(step, where)
        self._write([write.tensor for group in groups for write in group.writes])

    def _panels(self, step: KernelStep, where: str) -> None:
        """The first step with an operand packs it, or the operand is an argument."""
        for tensor in step.panels:
            is_filled, is_there = tensor in step.writes, tensor in self.filled or tensor.is_argument
            _require(is_filled != is_there, f"{where}: an operand is packed twice, or never")
        self.filled |= step.panels

    def _read(self, tensor: Tensor, where: str) -> None:
        is_there = tensor in self.filled or tensor.is_argument
        _require(is_there, f"{where}: {_name(tensor.node)} is read before it is written")
        is_old = tensor not in self.replaced
        _require(is_old, f"{where}: {_name(tensor.node)} is read after it was replaced")

    def _in_order(self, nodes: Iterable[Node], where: str) -> None:
        gone = {self.in_place[call].node for call in self.called & self.in_place.keys()}
        for node in nodes:
            is_new = node.op is Op.RESULT and node.inputs[0] in self.in_place
            is_early = is_new and node.inputs[0] not in self.called
            _require(not is_early, f"{where}: {_name(node)} is read before it is in place")
            _require(node not in gone, f"{where}: {_name(node)} is read after it was replaced")

    def _write(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            (self.replaced if tensor.is_argument else self.filled).add(tensor)


def _below_views(values: Iterable[Node]) -> Iterator[Node]:
    work = list(values)
    while work:
        node = work.pop()
        yield node
        if is_view(node.op):
            work.extend(node.inputs)


def _check_group(group: Group, where: str) -> None:
    """Members come after their operands, which are in the group, in memory, or inlined."""
    known = set(group.reads)
    for node in group.members:
        _check_known(node.inputs, known, where)
        known.add(node)
    for write in group.writes:
        _check_known(write.sources, known, where)
        _require(len(write.strides) == write.value.type.rank, f"{where}: a write's strides")


def _check_known(values: Iterable[Node], known: set[Node], where: str) -> None:
    work, seen = list(values), set[Node]()
    while work:
        node = work.pop()
        if node in known or node in seen:
            continue
        seen.add(node)
        is_inlined = is_view(node.op) or node.op in INLINE
        _require(is_inlined, f"{where}: {_name(node)} is neither computed nor in memory")
        work.extend(node.inputs)


def _check_parameters(step: KernelStep, where: str) -> None:
    """The kernel's parameters are the groups' tensors, and it writes those that they write."""
    reads = {tensor for group in step.groups for tensor in group.reads.values()} | step.panels
    writes = {write.tensor for group in step.groups for write in group.writes} | step.panels
    _require(set(step.writes) <= writes, f"{where}: the kernel writes something else")
    _require(set(step.reads) <= reads, f"{where}: the kernel reads something else")


def _check_writes(plan: Plan) -> None:
    """Each tensor is written once, or in disjoint parts that cover it."""
    writes: dict[Tensor, list[Write]] = {}
    for step in plan.steps:
        for group in _groups(step):
            for write in group.writes:
                writes.setdefault(write.tensor, []).append(write)
    for tensor, parts in writes.items():
        size: Dim = 0
        for part in parts:
            size = size + part.value.type.size
        _require(size == tensor.node.type.size, f"{_name(tensor.node)} is not written once")
        places = Counter(part.offset for part in parts if part.value.type.size != 0)
        apart = all(count == 1 for count in places.values())
        _require(apart, f"two writes to one place of {_name(tensor.node)}")


def _check_members(plan: Plan) -> None:
    """Only one group computes a node, except for rematerialised ones: these are elementwise, and no
    group loads them."""
    groups = [group for step in plan.steps for group in _groups(step)]
    loaded = {node for group in groups for node in group.reads}
    for group in groups:
        for node in group.rematerialised:
            _require(
                is_elementwise(node.op), f"{_name(node)} is rematerialised, but not elementwise"
            )
            _require(node not in loaded, f"{_name(node)} is rematerialised and loaded")
    writers = Counter(
        node for group in groups for node in group.members if node not in group.rematerialised
    )
    for node, count in writers.items():
        _require(count == 1, f"{_name(node)} is computed by several groups")


def _check_library(graph: Graph, plan: Plan) -> None:
    """Every library call runs once; those with effects in their order."""
    called = [step.node for step in plan.steps if isinstance(step, LibraryStep)]
    wanted = [node for node in toposort(graph.roots) if is_call(node.op)]
    _require(Counter(called) == Counter(wanted), "the library calls are not those of the graph")
    effects = [node for node in called if node in graph.effects]
    _require(effects == list(graph.effects), "effects are out of order")


def _check_outputs(graph: Graph, plan: Plan, filled: set[Tensor]) -> None:
    _require(len(plan.outputs) == len(graph.outputs), "another number of outputs")
    for output, place in zip(graph.outputs, plan.outputs):
        name = _name(output.value)
        _require(place.shape == output.value.shape, f"the output {name} is of another shape")
        if output.mutates is not None:
            _require(place.tensor.node is output.mutates, f"the output {name} is elsewhere")
        else:
            is_there = place.tensor in filled or place.tensor.is_argument
            _require(is_there, f"the output {name} is never written")
            is_exact = same_strides(output.value.shape, place.strides, output.strides)
            is_opaque = output.value.type.dtype is DType.OPAQUE
            _require(is_exact or is_opaque, f"the output {name} has other strides than it shall")


def _name(node: Node) -> str:
    return f"{node.op.value} {node.type}"
