"""What one kernel is asked to do: nodes to compute, what it reads, what it must leave behind."""

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
from hemstitch.stitching.view_indices import BENDING, Indices, below_views, strided, through

# Made anew in every kernel that reads them: they cost less than the traffic.
INLINE = frozenset({Op.CONSTANT, Op.SIZE, Op.IOTA, Op.PHILOX})
MOST_CONCAT_PARTS = 4  # a concatenation read inside a kernel tests every part for each element
FEW_TERMS = 16  # of a sum in single precision


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value in memory between kernels. Strides in elements.

    `is_copy`: memory of its own for what is in memory already, as an argument, for one.
    """

    node: Node
    strides: tuple[Dim, ...]
    is_copy: bool = False

    @property
    def is_argument(self) -> bool:
        """The caller's memory."""
        return self.node.op is Op.INPUT and not self.is_copy

    @property
    def is_result(self) -> bool:
        """As a library call gives it."""
        return self.node.op is Op.RESULT and not self.is_copy

    @property
    def bytes(self) -> Dim:
        return self.node.type.bytes

    def extent(self, hint: Callable[[Dim], int]) -> int:
        """Elements from the first one to behind the last: more than there are, where those are
        apart."""
        sizes = zip(self.node.shape, self.strides)
        return 1 + sum(max(0, hint(size) - 1) * hint(step) for size, step in sizes)

    @property
    def may_be_nowhere(self) -> bool:
        """It may turn out empty, and so without an address, although an index into it says
        nothing of the axis that is: an expanded element."""
        sizes = zip(self.node.shape, self.strides)
        return any(step == 0 and not isinstance(size, int) for size, step in sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """The kernel must store `value` into `tensor` at these strides and offset (in elements)."""

    value: Node
    tensor: Tensor
    strides: tuple[Dim, ...]
    offset: Dim = 0

    @property
    def sources(self) -> tuple[Node, ...]:
        """What it reads. A view, or what is made inline, is not read from the very memory that this
        write fills."""
        is_made = is_view(self.value.op) or self.value.op in INLINE
        is_own = self.value is self.tensor.node and not self.tensor.is_copy
        return self.value.inputs if is_own and is_made else (self.value,)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """What one kernel is to do; identity is equality.

    `members` in topological order: elementwise, gather, reduction, scan and product nodes, no
    views.

    Whatever else they read is in memory (`reads`), a view of something, or made inline.
    `rematerialised`: elementwise members that other groups make as well; they follow whatever loop
    reads them.
    """

    members: tuple[Node, ...]
    writes: tuple[Write, ...]
    reads: Mapping[Node, Tensor]
    hints: Mapping[str, int]
    rematerialised: frozenset[Node] = frozenset()
    along: frozenset[Node] = (
        frozenset()
    )  # products that add up along the lanes; see online_softmax.py
    follows: Mapping[Node, Node] = field(default_factory=dict)  # a sum, and the maximum so far that
    # it may be counted from

    def hint(self, size: Dim) -> int:
        return evaluate(size, self.hints)


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """What gets a loop of its own: a reduction or scan, or a write; a sum by index is both."""

    value: Node  # what is computed inside the loop; of a product the left operand
    reduction: Node | None
    write: Write | None

    @property
    def values(self) -> tuple[Node, ...]:
        """All that it reads."""
        return (self.value,) if self.reduction is None else self.reduction.inputs


def is_scatter_root(root: Root) -> bool:
    return root.reduction is not None and is_scatter(root.reduction.op)


def through_memory(group: Group) -> list[Group]:
    """The same in small steps: each value into memory of its own, then from there to its place,
    for writes that would replace what is still read."""
    values = dict.fromkeys(write.value for write in group.writes)
    made = {v: Tensor(v, contiguous_strides(v.shape), is_copy=v in group.reads) for v in values}
    firsts = [Write(value, tensor, tensor.strides) for value, tensor in made.items()]
    return [
        *(Group((), (write,), group.reads, group.hints) for write in firsts),
        *(Group((), (write,), made, group.hints) for write in group.writes),
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
    """Can be computed inside a kernel, and is work there."""
    return OPS[node.op].op_class in _WORK


MOST_SINGLE = 1 << 12  # products that are added up one by one in single precision


def has_few_terms(node: Node) -> bool:
    """As many as eager adds up in the sum's own type, too."""
    [source], axes = node.inputs[:1], node.attr
    if node.op is not Op.SUM or not isinstance(axes, tuple):
        return False
    terms = product(source.shape[axis] for axis in axes if isinstance(axis, int))
    return isinstance(terms, int) and terms <= FEW_TERMS


def adds_up_products(node: Node) -> bool:
    """The reduction is a product of matrices, written as what it is (`matmul/patterns/gemv.py`): a
    factor is read again and again, but not along what is added up."""
    if node.op is not Op.SUM or node.inputs[0].op is not Op.MUL:
        return False
    assert isinstance(node.attr, tuple)
    axes = [axis for axis in node.attr if isinstance(axis, int)]
    shape = node.inputs[0].shape
    count = product(shape[axis] for axis in axes)
    is_short = isinstance(count, int) and count <= MOST_SINGLE
    again = (factor.inputs[0] for factor in node.inputs[0].inputs if factor.op is Op.BROADCAST)
    return is_short and any(all(x.shape[k] == shape[k] for k in axes) for x in again)


def reductions_of(group: Group) -> frozenset[Node]:
    """What has a loop of its own to reduce or scan in."""
    return group.along.union(node for node in group.members if combines(node.op))


def roots(group: Group) -> list[Root]:
    """Reductions in topological order, then the writes, those into memory that is read last."""
    found = reductions_of(group)
    reductions = [node for node in group.members if node in found]
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
    """The reductions of the group that `values` read without another one in between."""
    found: set[Node] = set()
    seen: set[Node] = set()
    work = list(values)
    while work:
        node = work.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in reductions:
            found.add(node)
        elif node in members or OPS[node.op].op_class is OpClass.VIEW:
            work.extend(node.inputs)
    return found


def computed_below(value: Node, members: frozenset[Node], reductions: frozenset[Node]) -> set[Node]:
    """The non-reduction members evaluated when `value` is."""
    found: set[Node] = set()
    seen: set[Node] = set()
    work = [value]
    while work:
        node = work.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in reductions:
            continue
        if node in members:
            found.add(node)
            work.extend(node.inputs)
        elif OPS[node.op].op_class is OpClass.VIEW:
            work.extend(node.inputs)
    return found


def operands(
    node: Node, indices: Indices, contracted: Mapping[Node, Domain]
) -> Iterator[tuple[Node, Indices]]:
    """What `node` at `indices` reads, and where; conditions of PAD and CONCAT left aside.

    `contracted`: the index along which each product adds up.
    """
    if node.op in BENDING:
        yield node.inputs[0], through(node, indices)
    elif node.op is Op.PAD:
        yield node.inputs[0], padded(node, indices)
        yield node.inputs[1], ()
    elif node.op is Op.CONCAT:
        yield from zip(node.inputs, parts(node, indices))
    elif node.op is Op.GATHER:
        for index in node.inputs[1:]:
            yield index, indices
        yield node.inputs[0], addressed(node, indices, unknown(node))
    elif node.op is Op.DOT:
        yield from zip(node.inputs, factors(indices, *contracted[node].indices))
    else:
        for operand in node.inputs:
            yield operand, indices if operand.type.rank else ()


def factors(indices: Indices, step: Index) -> tuple[Indices, Indices]:
    """DOT: the indices of both operands in one step of adding up the product at `indices`."""
    *batch, row, column = indices
    return (*batch, row, step), (*batch, step, column)


def leaf_below(group: Group, node: Node) -> tuple[Tensor, tuple[Dim, ...], Dim] | None:
    """`node` as strides and offset over a tensor in memory, where it is no more than that."""
    base = below_views(node, group.reads)
    if base not in group.reads:
        return None
    tensor = group.reads[base]
    if base is node:
        return tensor, tensor.strides, 0
    alias = strided(node, {base: tensor.strides})
    return None if alias is None else (tensor, alias[1], alias[2])


def padded(node: Node, indices: Indices) -> Indices:
    """PAD: the index into the unpadded tensor; only meaningful inside it."""
    assert isinstance(node.attr, tuple)
    lows = [low for low in node.attr if isinstance(low, int)]
    sizes = zip(indices, lows, node.inputs[0].shape, node.shape)
    return tuple(
        at(Window(index.shifted(-low), size)) if size != wide else index
        for index, low, size, wide in sizes
    )


def parts(node: Node, indices: Indices) -> list[Indices]:
    """CONCAT: the index into each part; only meaningful inside it."""
    if len(node.inputs) > MOST_CONCAT_PARTS:
        raise Refused("concat", f"{len(node.inputs)} parts, at most {MOST_CONCAT_PARTS} inside")
    axis = node.attr
    assert isinstance(axis, int)
    start: Dim = 0
    found = []
    for part in node.inputs:
        inside = at(Window(indices[axis].shifted(-1 * start), part.shape[axis]))
        found.append((*indices[:axis], inside, *indices[axis + 1 :]))
        start = start + part.shape[axis]
    return found


def unknown(node: Node) -> list[Computed]:
    """Stand for the values of its inputs, where only the other indices matter."""
    return [Computed(f"?{k}", 1) for k in range(len(node.inputs))]


def addressed(node: Node, indices: Indices, values: Sequence[Computed]) -> Indices:
    """GATHER: the index into the source; SCATTER_ADD: into the result. values[k] stands for
    input k."""
    assert isinstance(node.attr, tuple)
    found: list[Index] = []
    for address in node.attr:
        assert isinstance(address, Address)
        if address.axis is not None:
            found.append(indices[address.axis])
        else:
            assert address.operand is not None
            found.append(at(values[address.operand]))
    return tuple(found)
