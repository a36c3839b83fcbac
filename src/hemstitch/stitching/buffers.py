"""The memory of a kernel under construction: parameters, scratch buffers and fresh names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hemstitch.ir.dims import Dim, quotient
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import SCANNED
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Index, linear
from hemstitch.kernel_ir.nodes import THREADS, Buffer, Role
from hemstitch.stitching.deadline import Deadline
from hemstitch.stitching.group import Tensor, has_few_terms, is_gemv_sum
from hemstitch.stitching.recomputation import Evaluations

NestKey = tuple[int, int]  # (nest, phase)
Pair = tuple[Buffer, Buffer | None]  # accumulators of values; positions of ARGMAX and ARGMIN
_SUMS = (Op.SUM, *SCANNED)  # of many values
LINE_ELEMENTS = 64  # at least a cache line, whatever the type


class Buffers:
    """Creates each buffer once. `places`: for a tensor, the element at which its parameter begins.
    `row_budget`: bytes that the row buffers of a task may take. `evaluations`: counts the values of
    the kernel."""

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
        self.matmuls: set[Node] = set()  # that the kernel computes so far
        self._written = written
        self._scratch_of: dict[object, Buffer] = {}
        self._names = 0
        self._deadline = deadline or Deadline()

    def name(self, hint: str) -> str:
        """A fresh name for a statement's value. Raises OutOfTime."""
        self._deadline.check()
        self._names += 1
        return f"{hint}{self._names}"

    def accumulator_dtype(self, node: Node) -> DType:
        """The type of an accumulator in memory, or of one that a scan reads after each element."""
        dtype = node.inputs[0].type.dtype.compute
        if node.op in (Op.ARGMAX, Op.ARGMIN):
            return DType.I64
        is_wide = self._sums_in_double and node.op in _SUMS and dtype is DType.F32
        return DType.F64 if is_wide and not has_few_terms(node) else dtype

    def is_compensated(self, node: Node) -> bool:
        """Whether partial sums carry a compensation term: f64 has no wider accumulator."""
        dtype = node.inputs[0].type.dtype
        return self._sums_in_double and node.op is Op.SUM and dtype is DType.F64

    def row_accumulator_dtype(self, node: Node) -> DType:
        """The type of an accumulator that a task fills for each row. A GEMV accumulates in its own
        type, as the library does."""
        is_gemv = is_gemv_sum(node)
        return node.type.dtype.compute if is_gemv else self.accumulator_dtype(node)

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
        """The index in the tensor's parameter, for strides and an offset in elements of the
        tensor."""
        return linear(indices, strides).shifted(offset - self._places[tensor])

    # --- scratch

    def row(self, nest: NestKey, node: Node, size: Dim) -> Buffer:
        """The row buffer of `node`; for ARGMAX and ARGMIN of the positions."""
        return self._make((nest, node), "row", node.type.dtype.compute, Role.TASK, size, "row")

    def row_accumulator(self, nest: NestKey, node: Node, size: Dim) -> Pair:
        """The accumulators of a reduction over outer loops of a row."""
        dtype = self.row_accumulator_dtype(node)
        buffer = self._make((nest, node), "row", dtype, Role.TASK, size, "row")
        return self._with_values(node, buffer, (nest, node, "values"))

    def columns(self, nest: NestKey, scan: Node, size: Dim) -> Buffer:
        """The running results of a scan, one per lane."""
        key, dtype = (nest, scan, "columns"), self.accumulator_dtype(scan)
        return self._make(key, "columns", dtype, Role.TASK, size, "scans so far")

    def recent(self, nest: NestKey, node: Node) -> Buffer:
        """Sums of a task's last few rows, in the result's precision; see
        `compensation_flush.py`."""
        dtype, size = node.type.dtype.compute, node.type.size
        return self._make((nest, node, "recent"), "recent", dtype, Role.TASK, size, "last rows")

    def tile(self, size: Dim) -> Buffer:
        """A transpose tile: it is written in one order of axes and read in another."""
        name = self.name("tile")
        return self._make(name, "tile", DType.F32, Role.TASK, size, "crosses two axes")

    def combined(self, nest: NestKey, node: Node) -> tuple[Buffer, bool]:
        """All elements of a reduction, combined by each task for itself; and whether the buffer is
        new."""
        key = (nest, node, "combined")
        is_new = key not in self._scratch_of
        why = "partial results, combined"
        dtype = node.type.dtype.compute
        return self._make(key, "all", dtype, Role.TASK, node.type.size, why), is_new

    def shared(self, node: Node) -> Buffer:
        """A reduction's results for other tasks; for ARGMAX and ARGMIN the positions."""
        size, dtype = node.type.size, node.type.dtype.compute
        return self._make((node, "shared"), "shared", dtype, Role.SHARED, size, "read by others")

    def shared_accumulator(self, node: Node) -> Pair:
        """As `shared`, accumulated in memory."""
        size, dtype = node.type.size, self.accumulator_dtype(node)
        buffer = self._make((node, "shared"), "shared", dtype, Role.SHARED, size, "read by others")
        return self._with_values(node, buffer, (node, "shared values"))

    def partial(self, node: Node) -> Pair:
        """The partial results of all tasks: one copy of the result per task."""
        size = partial_step(node) * THREADS
        dtype = self.accumulator_dtype(node)
        why = "one partial result a task"
        buffer = self._make((node, "partial"), "partial", dtype, Role.SHARED, size, why)
        return self._with_values(node, buffer, (node, "partial values"))

    def compensation(self, node: Node) -> Buffer:
        """The compensation terms of the partial sums."""
        size = partial_step(node) * THREADS
        return self._make((node, "lost"), "lost", DType.F64, Role.SHARED, size, "lost by rounding")

    def _with_values(self, node: Node, buffer: Buffer, key: object) -> Pair:
        """`buffer`; for ARGMAX and ARGMIN, which keep positions there, a buffer for the compared
        values too."""
        if node.op not in (Op.ARGMAX, Op.ARGMIN):
            return buffer, None
        dtype = node.inputs[0].type.dtype.compute
        values = self._make(key, "values", dtype, buffer.role, buffer.size, "the values compared")
        return values, buffer

    def _make(
        self, key: object, hint: str, dtype: DType, role: Role, size: Dim, why: str
    ) -> Buffer:
        if key not in self._scratch_of:
            self._scratch_of[key] = Buffer(self.name(hint), dtype, role, size, why)
            self.scratch.append(self._scratch_of[key])
        return self._scratch_of[key]


def partial_step(node: Node) -> Dim:
    """Elements from one task's partial results to the next one's: whole cache lines, against false
    sharing."""
    return quotient(node.type.size + (LINE_ELEMENTS - 1), LINE_ELEMENTS) * LINE_ELEMENTS
