"""How long a matmul takes by the library and in a kernel. Takes the record of an inlined matmul and
the kernel that it is part of, gives seconds: measured ones, or by the machine's rates.

What fusing saves beside is the planner's to say (`planning/matmul_profitability.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, prod

from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import is_view
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    AccumulateMatmul,
    Contract,
    Kernel,
    Loop,
    Role,
    Store,
    statements,
    walk,
)
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.machine.matmul_rates import Rates
from hemstitch.machine.probes import MatmulProbe
from hemstitch.machine.record import Execution, Machine, MatrixUnits
from hemstitch.matmul.inlined_matmuls import InlinedMatmul
from hemstitch.matmul.lowering.blocking import block_nest
from hemstitch.matmul.patterns.gemv import is_vector
from hemstitch.stitching.matmul_mapping import rows_of_a_tile
from hemstitch.stitching.online_softmax import is_long
from hemstitch.stitching.refusal import Refusal


@dataclass(frozen=True, slots=True)
class MatmulGain:
    """Seconds of a library call, of what a kernel does in its place, and of what that saves; and by
    how many the first two may be wrong."""

    library: float = 0.0
    kernel: float = 0.0
    saved: float = 0.0
    doubt: float = 0.0

    def __add__(self, other: MatmulGain) -> MatmulGain:
        return MatmulGain(
            self.library + other.library,
            self.kernel + other.kernel,
            self.saved + other.saved,
            self.doubt + other.doubt,
        )

    @property
    def gain(self) -> float:
        return self.saved + self.library - self.kernel - self.doubt

    @property
    def refusal(self) -> Refusal:
        if self.kernel == inf:
            return Refusal("matmul", "no kernel multiplies so")
        library, kernel, saved = (
            f"{1e6 * s:.4g} us" for s in (self.library, self.kernel, self.saved)
        )
        return Refusal("matmul", f"{library} by the library, {kernel} in a kernel, {saved} saved")


IMPOSSIBLE = MatmulGain(kernel=inf)


def refusal_of(
    result: Node, factors: Sequence[Node], hints: Mapping[str, int], machine: Machine
) -> Refusal | None:
    """Whatever is fused: products that cannot gain are not worth planning with."""
    dtype = result.type.dtype
    left, right = factors
    if dtype not in machine.matrix_units or is_vector(left, right):
        return Refusal("matmul", "no kernel multiplies so")
    units = machine.matrix_units[dtype]
    if machine.execution is Execution.SIMT:
        return None
    values = [result, *(node for node in map(below, factors) if node.op is not Op.INPUT)]
    moved = 2 * sum(evaluate(value.type.bytes, hints) for value in values)
    work = evaluate(result.type.size * left.shape[-1], hints)
    saved = moved / machine.memory_bytes_per_second + machine.launch_seconds
    rates = units.rates(dtype)
    fastest = min(rates.transposed, rates.skinny.row, rates.packed.at(_elements(right, hints)).row)
    weighed = MatmulGain(_by_library(work, right, rates, hints), work * fastest, saved)
    return None if weighed.gain > 0 else weighed.refusal


@dataclass(frozen=True, slots=True)
class MatmulKernel:
    """The kernel of a cluster with matmuls. `packed`: elements of the right operand of one that are
    packed into panels, where there are no matrix units."""

    kernel: Kernel
    packed: float


def matmul_seconds(
    matmul: InlinedMatmul, kernel: MatmulKernel, machine: Machine, hints: Mapping[str, int]
) -> MatmulGain:
    """Of the library, whose time for all columns of the call the matmul has its share of; of the
    kernel; and the doubt, where rates come from other shapes. Nothing is saved yet."""
    measured = _measured(matmul, machine)
    if measured is not None:
        by_library, in_kernel = measured
        return MatmulGain(share_of_call(matmul, hints) * by_library, in_kernel)
    return SECONDS[machine.execution](matmul, kernel, machine, hints)


def share_of_call(matmul: InlinedMatmul, hints: Mapping[str, int]) -> float:
    """Of the columns that the call makes at once."""
    return evaluate(matmul.dot.shape[-1], hints) / max(1, evaluate(matmul.call_columns, hints))


def call_seconds(
    matmul: InlinedMatmul, units: MatrixUnits, machine: Machine, hints: Mapping[str, int]
) -> float:
    """What launching its share of the call takes. A call takes the host of a GPU longer than a
    launch, which nobody sees while the GPU multiplies."""
    share = share_of_call(matmul, hints)
    launch = share * machine.launch_seconds
    if machine.execution is Execution.SIMD:
        return launch
    work = evaluate(matmul.multiplications, hints)
    return launch + max(0.0, share * units.call_seconds - 2 * work / units.operations_per_second)


def _on_processor(
    matmul: InlinedMatmul, kernel: MatmulKernel, machine: Machine, hints: Mapping[str, int]
) -> MatmulGain:
    units = machine.matrix_units[matmul.dtype]
    work, share = evaluate(matmul.multiplications, hints), share_of_call(matmul, hints)
    library = _by_library(work, matmul.call_right, units.rates(matmul.dtype), hints, share)
    doubt = 0.0 if units.measured is None else CPU.rate_error * library
    return MatmulGain(library, _in_blocks(matmul, kernel.packed, machine, hints), doubt=doubt)


def _on_gpu(
    matmul: InlinedMatmul, kernel: MatmulKernel, machine: Machine, hints: Mapping[str, int]
) -> MatmulGain:
    units = machine.matrix_units[matmul.dtype]
    work, share = evaluate(matmul.multiplications, hints), share_of_call(matmul, hints)
    library = max(2 * work / units.operations_per_second, share * GPU.library_seconds)
    return MatmulGain(library, _in_tiles(matmul, kernel.kernel, machine, hints))


Seconds = Callable[[InlinedMatmul, MatmulKernel, Machine, Mapping[str, int]], MatmulGain]
SECONDS: Mapping[Execution, Seconds] = {
    Execution.SIMD: _on_processor,
    Execution.SIMT: _on_gpu,
}


def _in_blocks(
    matmul: InlinedMatmul, packed: float, machine: Machine, hints: Mapping[str, int]
) -> float:
    """Without matrix units. The last tile of columns takes as long as any other."""
    columns = evaluate(matmul.dot.shape[-1], hints)
    rates, tile = (
        machine.matrix_units[matmul.dtype].rates(matmul.dtype),
        CPU.tile_vectors * machine.lanes,
    )
    pace = rates.packed.at(_elements(matmul.right, hints))
    elements = evaluate(matmul.left.type.size, hints)
    is_prepacked = packed < inf and matmul.is_prepacked
    packing = 0.0 if is_prepacked else packed / matmul.sharers * pace.operand
    if columns <= CPU.skinny_columns:
        return packing + elements * (rates.skinny.operand + columns * rates.skinny.row)
    row = rates.transposed if matmul.is_transposed else pace.row
    return packing + elements * ceil(columns / tile) * tile * row


def _elements(matrices: Node, hints: Mapping[str, int]) -> int:
    """Of one of them."""
    steps, columns = matrices.shape[-2:]
    return evaluate(steps, hints) * evaluate(columns, hints)


def _measured(matmul: InlinedMatmul, machine: Machine) -> tuple[float, float] | None:
    """Of this very matmul, by the library with all columns of its call and by a kernel with its
    own; None where that is not measured."""
    sizes = (*matmul.left.shape, matmul.dot.shape[-1], matmul.call_columns)
    if machine.measured is None or len(sizes) != 4:
        return None
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    if len(known) < len(sizes):
        return None
    rows, steps, columns, all_columns = known
    dtype, on = matmul.dtype, (machine.threads, machine.lanes)
    by_library = machine.measured.get(MatmulProbe("library", dtype, rows, steps, all_columns, *on))
    ours = machine.measured.get(MatmulProbe("kernel", dtype, rows, steps, columns, *on))
    return None if by_library is None or ours is None else (by_library, ours)


def _by_library(
    work: int, right: Node, rates: Rates, hints: Mapping[str, int], share: float = 1.0
) -> float:
    """On a processor. `share`: of a call, that this is."""
    elements = max(1, _elements(right, hints))
    matrices = evaluate(right.type.size, hints) // elements
    rows = work / max(1, matrices * elements)
    return share * rates.call + rates.library_seconds(matrices, elements, rows)


def _in_tiles(
    matmul: InlinedMatmul, kernel: Kernel, machine: Machine, hints: Mapping[str, int]
) -> float:
    """With matrix units. Where a kernel needs whole rows its tiles are flat, so that L2 is the
    limit; of few tiles, or a few more than there are multiprocessors, most of these have none."""
    units, work = machine.matrix_units[matmul.dtype], evaluate(matmul.multiplications, hints)
    columns = _columns(kernel, hints)
    most = max(GPU.least_dot_extent, min(units.tile_elements // columns, GPU.dot_rows))
    tiles, flattest, has_sums = 0, most, False
    for nest in (nest for phase in kernel.phases for nest in phase.nests):
        inside = list(walk(nest.body))
        if any(isinstance(statement, Contract | AccumulateMatmul) for statement in inside):
            extents = [evaluate(axis.extent, hints) for axis in nest.rows]
            rows = rows_of_a_tile(extents, most, machine.threads)
            tiles += prod(extents[:-1]) * ceil(extents[-1] / rows)
            flattest = min(flattest, rows)
            has_sums |= any(isinstance(statement, AccumulateInto) for statement in inside)
    bytes_ = work * (1 / flattest + 1 / columns) * matmul.dtype.bytes
    loaded = (
        bytes_ / units.operand_bytes_per_second * (GPU.summed_operand_ratio if has_sums else 1.0)
    )
    at_once = max(1, tiles) / ceil(max(1, tiles) / machine.threads)
    return max(units.seconds(2 * work) * machine.threads / at_once, loaded)


def packed_elements(kernel: Kernel, hints: Mapping[str, int], threads: int) -> float:
    """How many elements of a matmul's right operand are packed into panels, by all tasks together,
    in the mean of the kernel's matmuls: once for all tasks; or once for each matrix, and in each of
    them. Infinite where no blocks are possible."""
    elements = products = 0
    for nest in (nest for phase in kernel.phases for nest in phase.nests):
        inside = sum(isinstance(statement, Contract) for statement in walk(nest.body))
        if not inside:
            continue
        blocks = block_nest(nest, threads)
        if blocks is None:
            return inf
        products += inside
        batches = prod(evaluate(axis.extent, hints) for axis in nest.rows[:-1])
        stored = {s.buffer for s in walk(blocks.nest.panels) if isinstance(s, Store)}
        for buffer in blocks.buffers:
            size = evaluate(buffer.size, hints)
            if buffer.role is Role.SHARED:
                elements += size
            elif buffer in stored:
                elements += ceil(batches / threads) * threads * size
    return elements / products


def _columns(kernel: Kernel, hints: Mapping[str, int]) -> int:
    """Of the widest tile of a product. Long rows go by in blocks."""
    widths = [GPU.least_dot_extent]
    for statement in statements(kernel):
        if isinstance(statement, AccumulateMatmul):
            widths.append(evaluate(statement.axis.extent, hints))
        elif isinstance(statement, Loop) and any(isinstance(s, Contract) for s in statement.body):
            extent = statement.axis.extent
            widths.append(GPU.dot_columns if is_long(extent) else evaluate(extent, hints))
    return 1 << (max(widths) - 1).bit_length()


def below(value: Node) -> Node:
    """What is under the views."""
    while is_view(value.op) and len(value.inputs) == 1:
        value = value.inputs[0]
    return value
