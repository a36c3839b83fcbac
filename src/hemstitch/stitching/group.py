"""A kernel's specification: the nodes to compute, the tensors to read and the writes to perform."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hemstitch.ir.dims import Dim, evaluate, product
from hemstitch.ir.graph import Address, Node, Op
from hemstitch.ir.ops import OPS, OpClass, combines, is_scatter, is_view
from hemstitch.ir.types import contiguous_strides
from hemstitch.kernel_ir.index import Computed, Index, Window, at
from hemstitch.stitching.dimension_unification import Domain
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.view_indices import (
    INDEX_VIEWS,
    Indices,
    below_views,
    source_indices,
    strided,
)

# Computed in every kernel that reads them, which costs less than the memory traffic.
INLINE = frozenset({Op.CONSTANT, Op.SIZE, Op.IOTA, Op.PHILOX})
MOST_CONCAT_PARTS = 4  # each element of a concatenation tests every part
MAX_F32_TERMS = 16  # of a sum in single precision; of numerics


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value in memory between kernels. Strides in elements.

    `is_copy`: it is a copy of a value that is in memory already, such as an argument.
    """

    node: Node
    strides: tuple[Dim, ...]
    is_copy: bool = False

    @property
    def is_argument(self) -> bool:
        """It is the caller's memory."""
        return self.node.op is Op.INPUT and not self.is_copy

    @property
    def is_result(self) -> bool:
        """It is the result of a library call."""
        return self.node.op is Op.RESULT and not self.is_copy

    @property
    def bytes(self) -> Dim:
        return self.node.type.bytes

    def extent(self, hint: Callable[[Dim], int]) -> int:
        """Elements from the first to the last, gaps between them included."""
        sizes = zip(self.node.shape, self.strides)
        return 1 + sum(max(0, hint(size) - 1) * hint(step) for size, step in sizes)

    @property
    def may_be_unallocated(self) -> bool:
        """The tensor may be empty, and so have no address, while an index into it does not involve
        the empty axis: an expanded element."""
        sizes = zip(self.node.shape, self.strides)
        return any(step == 0 and not isinstance(size, int) for size, step in sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """The kernel stores `value` in `tensor` with these strides and this offset, in elements."""

    value: Node
    tensor: Tensor
    strides: tuple[Dim, ...]
    offset: Dim = 0

    @property
    def sources(self) -> tuple[Node, ...]:
        """The nodes that the write reads: the operands of a view or of an inline node, else the
        value itself."""
        is_inline = is_view(self.value.op) or self.value.op in INLINE
        is_own = self.value is self.tensor.node and not self.tensor.is_copy
        return self.value.inputs if is_own and is_inline else (self.value,)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The specification of one kernel; two groups are equal only if they are identical.

    `members`: elementwise, gather, reduction, scan and matmul nodes in topological order, no views.
    `reads`: the tensors of other nodes that they read, directly or through views and inline nodes.
    `hints`: example sizes of symbols. `rematerialised`: elementwise members that other groups
    compute as well; their loops are those of their readers. `k_along_lanes`: matmuls that
    accumulate along the lanes (`online_softmax.py`). `running_maximum`: for a sum of online
    softmax, its MAX reduction.
    """

    members: tuple[Node, ...]
    writes: tuple[Write, ...]
    reads: Mapping[Node, Tensor]
    hints: Mapping[str, int]
    rematerialised: frozenset[Node] = frozenset()
    k_along_lanes: frozenset[Node] = frozenset()
    running_maximum: Mapping[Node, Node] = field(default_factory=dict)

    def hint(self, size: Dim) -> int:
        return evaluate(size, self.hints)


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """What gets a loop of its own: a reduction or scan, or a write; a scatter-add is both."""

    value: Node  # what the loop computes; of a matmul the left operand
    reduction: Node | None
    write: Write | None

    @property
    def values(self) -> tuple[Node, ...]:
        """All nodes that its loop reads."""
        return (self.value,) if self.reduction is None else self.reduction.inputs


def is_scatter_root(root: Root) -> bool:
    return root.reduction is not None and is_scatter(root.reduction.op)


def through_memory(group: Group) -> list[Group]:
    """The group's writes in two steps each: every value into a temporary, then from there to its
    destination. For writes that would replace values that are still read."""
    written = dict.fromkeys(write.value for write in group.writes)
    temporaries = {
        v: Tensor(v, contiguous_strides(v.shape), is_copy=v in group.reads) for v in written
    }
    firsts = [Write(value, tensor, tensor.strides) for value, tensor in temporaries.items()]
    return [
        *(Group((), (write,), group.reads, group.hints) for write in firsts),
        *(Group((), (write,), temporaries, group.hints) for write in group.writes),
    ]


_WORK = frozenset(
    {
        OpClass.ELEMENTWISE,
        OpClass.GATHER,
        OpClass.REDUCTION,
        OpClass.SCAN,
        OpClass.SCATTER,
        OpClass.CONTRACTION,
    }
)


def is_member(node: Node) -> bool:
    """Whether kernels compute this operation (views and inline nodes are no members)."""
    return OPS[node.op].op_class in _WORK


MAX_GEMV_STEPS = 1 << 12  # K of a GEMV that accumulates in single precision; of numerics


def has_few_terms(node: Node) -> bool:
    """Whether the sum has so few terms that it accumulates in its own type, as eager PyTorch
    does."""
    [source], axes = node.inputs[:1], node.attr
    if node.op is not Op.SUM or not isinstance(axes, tuple):
        return False
    terms = product(source.shape[axis] for axis in axes if isinstance(axis, int))
    return isinstance(terms, int) and terms <= MAX_F32_TERMS


def is_gemv_sum(node: Node) -> bool:
    """Whether the reduction is a GEMV written as a sum of products (`matmul/patterns/gemv.py`): a
    factor is broadcast, but not along the summed axes."""
    if node.op is not Op.SUM or node.inputs[0].op is not Op.MUL:
        return False
    assert isinstance(node.attr, tuple)
    axes = [axis for axis in node.attr if isinstance(axis, int)]
    shape = node.inputs[0].shape
    count = product(shape[axis] for axis in axes)
    is_short = isinstance(count, int) and count <= MAX_GEMV_STEPS
    broadcast_factors = (
        factor.inputs[0] for factor in node.inputs[0].inputs if factor.op is Op.BROADCAST
    )
    return is_short and any(all(x.shape[k] == shape[k] for k in axes) for x in broadcast_factors)


def reductions_of(group: Group) -> frozenset[Node]:
    """The members with a loop of their own to reduce or scan in."""
    return group.k_along_lanes.union(node for node in group.members if combines(node.op))


def roots(group: Group) -> list[Root]:
    """Reductions in topological order, then the writes; writes to memory that the group reads come
    last."""
    reducing = reductions_of(group)
    reductions = [node for node in group.members if node in reducing]
    read = set(group.reads.values())
    writes = sorted(group.writes, key=lambda write: write.tensor in read)
    own: dict[Node, list[Write]] = {node: [] for node in reductions if is_scatter(node.op)}
    for write in writes:
        own.get(write.value, []).append(write)
    return [
        *(Root(n.inputs[0], n, write) for n in reductions for write in own.get(n) or (None,)),
        *(Root(write.value, None, write) for write in writes if write.value not in own),
    ]


def reductions_below(
    values: Iterable[Node], members: frozenset[Node], reductions: frozenset[Node]
) -> set[Node]:
    """The group's reductions that `values` read without another reduction in between."""
    below: set[Node] = set()
    visited: set[Node] = set()
    work = list(values)
    while work:
        node = work.pop()
        if node in visited:
            continue
        visited.add(node)
        if node in reductions:
            below.add(node)
        elif node in members or OPS[node.op].op_class is OpClass.VIEW:
            work.extend(node.inputs)
    return below


def computed_below(value: Node, members: frozenset[Node], reductions: frozenset[Node]) -> set[Node]:
    """The members other than reductions that are evaluated with `value`."""
    evaluated: set[Node] = set()
    visited: set[Node] = set()
    work = [value]
    while work:
        node = work.pop()
        if node in visited:
            continue
        visited.add(node)
        if node in reductions:
            continue
        if node in members:
            evaluated.add(node)
            work.extend(node.inputs)
        elif OPS[node.op].op_class is OpClass.VIEW:
            work.extend(node.inputs)
    return evaluated


def operands(
    node: Node, indices: Indices, contracted: Mapping[Node, Domain]
) -> Iterator[tuple[Node, Indices]]:
    """The nodes that `node` at `indices` reads, each with its indices; without the conditions of
    PAD and CONCAT.

    `contracted`: the domain of each matmul's contracted axis.
    """
    if node.op in INDEX_VIEWS:
        yield node.inputs[0], source_indices(node, indices)
    elif node.op is Op.PAD:
        yield node.inputs[0], pad_indices(node, indices)
        yield node.inputs[1], ()
    elif node.op is Op.CONCAT:
        yield from zip(node.inputs, concat_indices(node, indices))
    elif node.op is Op.GATHER:
        for index in node.inputs[1:]:
            yield index, indices
        yield node.inputs[0], gathered_indices(node, indices, unknown_indices(node))
    elif node.op is Op.DOT:
        yield from zip(node.inputs, dot_indices(indices, *contracted[node].indices))
    else:
        for operand in node.inputs:
            yield operand, indices if operand.type.rank else ()


def dot_indices(indices: Indices, step: Index) -> tuple[Indices, Indices]:
    """DOT: the indices of both operands at one step of K, for the element at `indices`."""
    *batch, row, column = indices
    return (*batch, row, step), (*batch, step, column)


def leaf_below(group: Group, node: Node) -> tuple[Tensor, tuple[Dim, ...], Dim] | None:
    """`node` as strides and offset of a tensor in memory; None where it is no strided view of
    one."""
    base = below_views(node, group.reads)
    if base not in group.reads:
        return None
    tensor = group.reads[base]
    if base is node:
        return tensor, tensor.strides, 0
    alias = strided(node, {base: tensor.strides})
    return None if alias is None else (tensor, alias[1], alias[2])


def pad_indices(node: Node, indices: Indices) -> Indices:
    """PAD: the indices into the unpadded tensor; only meaningful inside it."""
    assert isinstance(node.attr, tuple)
    lows = [low for low in node.attr if isinstance(low, int)]
    sizes = zip(indices, lows, node.inputs[0].shape, node.shape)
    return tuple(
        at(Window(index.shifted(-low), size)) if size != wide else index
        for index, low, size, wide in sizes
    )


def concat_indices(node: Node, indices: Indices) -> list[Indices]:
    """CONCAT: the indices into each part; only meaningful inside it."""
    if len(node.inputs) > MOST_CONCAT_PARTS:
        raise Refused("concat", f"{len(node.inputs)} parts, at most {MOST_CONCAT_PARTS} inside")
    axis = node.attr
    assert isinstance(axis, int)
    start: Dim = 0
    part_indices = []
    for part in node.inputs:
        inside = at(Window(indices[axis].shifted(-1 * start), part.shape[axis]))
        part_indices.append((*indices[:axis], inside, *indices[axis + 1 :]))
        start = start + part.shape[axis]
    return part_indices


def unknown_indices(node: Node) -> list[Computed]:
    """Placeholders for the values of the node's inputs, where only the other indices matter."""
    return [Computed(f"?{k}", 1) for k in range(len(node.inputs))]


def gathered_indices(node: Node, indices: Indices, values: Sequence[Computed]) -> Indices:
    """GATHER: the indices into the source. SCATTER_ADD: into the result. `values[k]`: the value of
    input k."""
    assert isinstance(node.attr, tuple)
    targets: list[Index] = []
    for address in node.attr:
        assert isinstance(address, Address)
        if address.axis is not None:
            targets.append(indices[address.axis])
        else:
            assert address.operand is not None
            targets.append(at(values[address.operand]))
    return tuple(targets)
