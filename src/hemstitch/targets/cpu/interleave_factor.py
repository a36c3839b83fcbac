"""How many vectors of a lane loop are worked on at once, to hide latencies: measured in
docs/compiler/performance-notes.md."""

from __future__ import annotations

from hemstitch.ir.ops import OPS
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import Let, Scan, Stmt, walk
from hemstitch.machine.cpu_numbers import CPU


def unroll_factor(axis: Axis, body: tuple[Stmt, ...], width: int) -> int:
    if any(isinstance(statement, Scan) for statement in walk(body)):
        return 1  # what one vector holds begins where the one before ends
    factor = CPU.vectors_in_flight
    if _is_latency_bound(body):
        factor = CPU.vectors_in_flight * 2
    elif sum(1 for _ in walk(body)) > CPU.long_body:
        factor = CPU.vectors_in_flight // 2
    while factor > 1 and isinstance(axis.extent, int) and axis.extent < factor * width:
        factor //= 2
    return factor


def unroll_factor_of_rest(body: tuple[Stmt, ...], vectors: int) -> int:
    """All the vectors that are left at once, or one by one where that is much to print."""
    return vectors if vectors * sum(1 for _ in walk(body)) <= CPU.long_body else 1


def _is_latency_bound(body: tuple[Stmt, ...]) -> bool:
    work = 0
    depth: dict[str, int] = {}  # flops of the longest way to a value
    for statement in walk(body):
        if isinstance(statement, Let):
            flops = OPS[statement.op].flops
            work += flops
            before = max((depth.get(name, 0) for name in statement.operands), default=0)
            depth[statement.name] = before + flops
    longest = max(depth.values(), default=0)
    return longest >= CPU.look_ahead_flops and longest >= CPU.chain_share * work
