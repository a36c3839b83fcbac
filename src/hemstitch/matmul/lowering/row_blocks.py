"""The size of row blocks (M) in a nest with matmuls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hemstitch.ir.dims import Dim, product
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.dependence import backward_slice
from hemstitch.kernel_ir.index import Axis, Computed
from hemstitch.kernel_ir.nodes import (
    EPILOGUE_ROWS,
    AccumulateInto,
    Contract,
    Load,
    Loop,
    Nest,
    Stmt,
    walk,
)
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.matmul.lowering.row_parts import task_buffers


def max_block_rows(nest: Nest, threads: int, most: int) -> int:
    """The largest number of rows in a block. `most`: that of the blocking.

    Sums of rows in f32 take at most `EPILOGUE_ROWS` addends. The more rows a block has, the fewer
    times an operand beyond L2 is read. But the block's part of the left operand has to stay in L2,
    along K or along N (`targets/cpu/micro_kernel.py`), and each thread should have several blocks.
    A thread has one block if there are few rows, or if left operands are column-major: these are
    not copied.
    """
    loops = [s for s in nest.body if isinstance(s, Loop)]
    sizes = [
        (loop.axis.extent, statement.axis.extent)
        for loop in loops
        for statement in loop.body
        if isinstance(statement, Contract)
    ]
    known_sizes = [(a, b) for a, b in sizes if isinstance(a, int) and isinstance(b, int)]
    rows = product(axis.extent for axis in nest.rows)
    is_known = len(known_sizes) == len(sizes) and isinstance(rows, int)
    minimum = EPILOGUE_ROWS
    if isinstance(rows, int):
        minimum = min(minimum, max(CPU.block_rows, -(-rows // threads)))
    is_summed = bool(nest.epilogue) and not has_sums_per_row(nest)
    if is_summed or not is_known or all(a * b <= CPU.near_elements for a, b in known_sizes):
        return minimum
    assert isinstance(rows, int)
    fitting = CPU.block_elements // max(min(a, b) for a, b in known_sizes)
    if all(is_column_major(load, nest.rows[-1]) for load in _left_operands(loops)):
        blocks = threads * -(-rows // (threads * fitting))
        return max(-(-rows // blocks), minimum)
    balanced = -(-rows // (threads * CPU.blocks_of_a_thread))
    return max(min(fitting, balanced, most), minimum)


def block_rows(extent: Dim, limit: int, threads: int) -> int:
    """Rows of a block, at most `limit`: a divisor of `extent` if there is one that is large enough.
    Where threads would get unequal numbers of blocks, each gets the same number."""
    if not isinstance(extent, int) or extent == 0:
        return limit
    blocks = max(1, -(-extent // limit))
    sizes = range(min(extent, limit), extent // (2 * blocks), -1)
    divisors = (size for size in sizes if extent % size == 0)
    rows = max(
        divisors,
        key=lambda size: (size % CPU.row_multiple == 0, size),
        default=-(-extent // blocks),
    )
    count = -(-extent // rows)
    rounded_up = -(-count // threads) * threads
    return (
        rows
        if count < threads or rounded_up <= CPU.unequal_blocks * count
        else -(-extent // rounded_up)
    )


def has_sums_per_row(nest: Nest) -> bool:
    """The sums that the nest's epilogue flushes have an element for each row of a block."""
    flushed = task_buffers(nest.epilogue)
    sums = [s for s in walk(nest.body) if isinstance(s, AccumulateInto) and s.buffer in flushed]
    return bool(sums) and all(s.index.coefficient(nest.rows[-1]) != 0 for s in sums)


def _left_operands(loops: Iterable[Loop]) -> Iterator[Load | None]:
    """The left operands of all contractions in these loops; None for one that is computed."""
    for loop in loops:
        contracts = [statement for statement in loop.body if isinstance(statement, Contract)]
        yield from (plain_load(backward_slice(c.left, c.body), DType.F32) for c in contracts)


def is_column_major(left: Load | None, row: Axis) -> bool:
    """The left operand is contiguous along rows (M)."""
    return left is not None and left.index.coefficient(row) == 1


def plain_load(needed: Sequence[Stmt], dtype: DType) -> Load | None:
    """The load of an operand in memory that needs no computation, no mask and no cast, or None."""
    match needed:
        case [Load(_, buffer, index, None) as load] if buffer.dtype is dtype:
            return None if any(isinstance(v, Computed) for v, _ in index.terms) else load
        case _:
            return None
