"""How many rows of a nest with products go by together. Takes a nest and the number of threads."""

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

ROW_MULTIPLE = 4


def max_block_rows(nest: Nest, threads: int, most: int) -> int:
    """Of a block. Sums of rows in single precision grow no longer than `EPILOGUE_ROWS`. What is
    beyond L2 is read the less often the more rows there are, but either their steps or their
    columns stay there (`targets/cpu/micro_kernel.py`), and each thread has several blocks; of few
    rows, one. Also of those that are read by columns, as nothing of them is copied."""
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
    """As many as are allowed, or fewer that come out even; or, where so many threads would have
    blocks that differ in number by much, that give them equally many."""
    if not isinstance(extent, int) or extent == 0:
        return limit
    blocks = max(1, -(-extent // limit))
    sizes = range(min(extent, limit), extent // (2 * blocks), -1)
    divisors = (size for size in sizes if extent % size == 0)
    rows = max(
        divisors, key=lambda size: (size % ROW_MULTIPLE == 0, size), default=-(-extent // blocks)
    )
    count = -(-extent // rows)
    rounded_up = -(-count // threads) * threads
    return (
        rows
        if count < threads or rounded_up <= CPU.unequal_blocks * count
        else -(-extent // rounded_up)
    )


def has_sums_per_row(nest: Nest) -> bool:
    """What its epilogue takes up has a place for each row of a block."""
    flushed = task_buffers(nest.epilogue)
    sums = [s for s in walk(nest.body) if isinstance(s, AccumulateInto) and s.buffer in flushed]
    return bool(sums) and all(s.index.coefficient(nest.rows[-1]) != 0 for s in sums)


def _left_operands(loops: Iterable[Loop]) -> Iterator[Load | None]:
    """Of their products; None for what is computed."""
    for loop in loops:
        contracts = [statement for statement in loop.body if isinstance(statement, Contract)]
        yield from (plain_load(backward_slice(c.left, c.body), DType.F32) for c in contracts)


def is_column_major(left: Load | None, row: Axis) -> bool:
    """What is multiplied in one step lies side by side."""
    return left is not None and left.index.coefficient(row) == 1


def plain_load(needed: Sequence[Stmt], dtype: DType) -> Load | None:
    """The operand, where it is in memory as that."""
    match needed:
        case [Load(_, buffer, index, None) as load] if buffer.dtype is dtype:
            return None if any(isinstance(v, Computed) for v, _ in index.terms) else load
        case _:
            return None
