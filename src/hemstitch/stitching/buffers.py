"""The memory one kernel touches while it is being built: parameters, scratch, fresh names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hemstitch.ir.dims import Dim, quotient
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import SCANNED
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Index, linear
from hemstitch.kernel_ir.nodes import THREADS, Buffer, Role
from hemstitch.stitching.deadline import Deadline
from hemstitch.stitching.group import Tensor, adds_up_products, has_few_terms
from hemstitch.stitching.recomputation import Evaluations

NestKey = tuple[int, int]  # nest and phase
Pair = tuple[Buffer, Buffer | None]  # accumulated values, and positions of ARGMAX and ARGMIN
_SUMS = (Op.SUM, *SCANNED)  # of values that may be many
APART = 64  # elements, of a byte at least: a cache line


class Buffers:
    """Makes each buffer once. `places`: the element of a tensor at which its parameter begins;
    `row_budget`: bytes that the row buffers of a task may take; `evaluations`: the kernel's."""

    def __init__(
        self,
        written: frozenset[Tensor],
        places: Mapping[Tensor, int],
        row_budget: int,
        evaluations: Evaluations,
        sums_in_double: bool = True,
        deadline: Deadline | None = None,
    ) -> None:
        self.row_budget = row_budget
        self.evaluations = evaluations
        self._places = places
        self._sums_in_double = sums_in_double
        self.tensors: dict[Tensor, Buffer] = {}
        self.scratch: list[Buffer] = []
        self.products: set[Node] = set()  # those that the kernel has added up so far
        self._written = written
        self._made: dict[object, Buffer] = {}
        self._names = 0
        self._deadline = deadline or Deadline()

    def name(self, hint: str) -> str:
        """Of a statement. Raises OutOfTime."""
        self._deadline.check()
        self._names += 1
        return f"{hint}{self._names}"

    def accumulator_dtype(self, node: Node) -> DType:
        """Of an accumulator in memory, or one that a scan reads after each element."""
        dtype = node.inputs[0].type.dtype.compute
        if node.op in (Op.ARGMAX, Op.ARGMIN):
            return DType.I64
        is_wide = self._sums_in_double and node.op in _SUMS and dtype is DType.F32
        return DType.F64 if is_wide and not has_few_terms(node) else dtype

    def is_compensated(self, node: Node) -> bool:
        """Whether what rounding loses is added up beside partial sums: no type is wider."""
        dtype = node.inputs[0].type.dtype
        return self._sums_in_double and node.op is Op.SUM and dtype is DType.F64

    def row_accumulator_dtype(self, node: Node) -> DType:
        """Of one that a task fills for each row: as the library adds up products of matrices."""
        is_product = adds_up_products(node)
        return node.type.dtype.compute if is_product else self.accumulator_dtype(node)

    # --- parameters

    def input(self, tensor: Tensor) -> Buffer:
        if tensor not in self.tensors:
            role = Role.OUTPUT if tensor in self._written else Role.INPUT
            hint = "out" if role is Role.OUTPUT else "in"
            name = f"{hint}{len(self.tensors)}"
            type_ = tensor.node.type
            self.tensors[tensor] = Buffer(name, type_.dtype, role, type_.size)
        return self.tensors[tensor]

    def output(self, tensor: Tensor) -> Buffer:
        assert tensor in self._written
        return self.input(tensor)

    def address(
        self, tensor: Tensor, indices: Sequence[Index], strides: Sequence[Dim], offset: Dim
    ) -> Index:
        """In the tensor's parameter, of an element that lies at `offset` in the tensor."""
        return linear(indices, strides).shifted(offset - self._places[tensor])

    # --- scratch

    def row(self, nest: NestKey, node: Node, size: Dim) -> Buffer:
        """A row's values of `node`; for ARGMAX and ARGMIN the positions."""
        return self._make((nest, node), "row", node.type.dtype.compute, Role.TASK, size, "row")

    def row_accumulator(self, nest: NestKey, node: Node, size: Dim) -> Pair:
        dtype = self.row_accumulator_dtype(node)
        found = self._make((nest, node), "row", dtype, Role.TASK, size, "row")
        return self._pair(node, found, (nest, node, "values"))

    def columns(self, nest: NestKey, scan: Node, size: Dim) -> Buffer:
        """What each lane of a scan has come to."""
        key, dtype = (nest, scan, "columns"), self.accumulator_dtype(scan)
        return self._make(key, "columns", dtype, Role.TASK, size, "scans so far")

    def recent(self, nest: NestKey, node: Node) -> Buffer:
        """Sums of the last few rows of a task, in the result's precision."""
        dtype, size = node.type.dtype.compute, node.type.size
        return self._make((nest, node, "recent"), "recent", dtype, Role.TASK, size, "last rows")

    def tile(self, size: Dim) -> Buffer:
        """Room for values on their way from one order of axes to another."""
        name = self.name("tile")
        return self._make(name, "tile", DType.F32, Role.TASK, size, "crosses two axes")

    def combined(self, nest: NestKey, node: Node) -> tuple[Buffer, bool]:
        """All of a reduction, combined by each task for itself; and whether it is new."""
        key = (nest, node, "combined")
        is_new = key not in self._made
        why = "partial results, combined"
        dtype = node.type.dtype.compute
        return self._make(key, "all", dtype, Role.TASK, node.type.size, why), is_new

    def shared(self, node: Node) -> Buffer:
        """A reduction's results for other tasks; for ARGMAX and ARGMIN the positions."""
        size, dtype = node.type.size, node.type.dtype.compute
        return self._make((node, "shared"), "shared", dtype, Role.SHARED, size, "read by others")

    def shared_accumulator(self, node: Node) -> Pair:
        size, dtype = node.type.size, self.accumulator_dtype(node)
        found = self._make((node, "shared"), "shared", dtype, Role.SHARED, size, "read by others")
        return self._pair(node, found, (node, "shared values"))

    def partial(self, node: Node) -> Pair:
        """What each task has reduced so far: one copy of the result a task."""
        size = partial_step(node) * THREADS
        dtype = self.accumulator_dtype(node)
        why = "one partial result a task"
        found = self._make((node, "partial"), "partial", dtype, Role.SHARED, size, why)
        return self._pair(node, found, (node, "partial values"))

    def lost(self, node: Node) -> Buffer:
        """What rounding has lost of the partial results."""
        size = partial_step(node) * THREADS
        return self._make((node, "lost"), "lost", DType.F64, Role.SHARED, size, "lost by rounding")

    def _pair(self, node: Node, found: Buffer, key: object) -> Pair:
        if node.op not in (Op.ARGMAX, Op.ARGMIN):
            return found, None
        dtype = node.inputs[0].type.dtype.compute
        values = self._make(key, "values", dtype, found.role, found.size, "the values compared")
        return values, found

    def _make(
        self, key: object, hint: str, dtype: DType, role: Role, size: Dim, why: str
    ) -> Buffer:
        if key not in self._made:
            self._made[key] = Buffer(self.name(hint), dtype, role, size, why)
            self.scratch.append(self._made[key])
        return self._made[key]


def partial_step(node: Node) -> Dim:
    """Elements from one task's partial results to the next one's: never two on one cache line,
    which would go to and fro between the processors that add to them."""
    return quotient(node.type.size + (APART - 1), APART) * APART
