"""The hardware numbers of a GPU that lowering and code generation use. Each has its unit, its
meaning and its source: a decision of `docs/decisions`, or the hardware."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.machine.record import number


@dataclass(frozen=True, slots=True)
class GPUNumbers:
    whole_lanes: int = number(
        "lanes", "of a row that stays in registers: 16 warps, 16 elements per thread", 8192, "0014"
    )
    looped_lanes: int = number("lanes", "of a tile of a longer row", 1024, "0014")
    tile_elements: int = number(
        "elements", "of a tile, so that each thread has several loads in flight", 2048, "0069"
    )
    warp_elements: int = number("elements", "per warp: 16 per thread", 512, "0069")
    least_warp_elements: int = number(
        "elements", "per warp, at least: one vectorised access of 4 per thread", 128, "0069"
    )
    multiprocessor_warps: int = number(
        "warps", "per multiprocessor that hide memory latency", 16, "0068"
    )
    sector_elements: int = number("f32", "of a memory sector", 8, "CUDA")
    program_warps: int = number("warps", "of a program, at most", 16, "0068")
    warp_threads: int = number("threads", "of a warp", 32, "CUDA")
    value_registers: int = number(
        "registers",
        "of the 255 of a thread, for values; addresses, masks and divisions need the others",
        128,
        "0074",
    )
    accumulated_elements: int = number(
        "elements", "of an accumulator tile: 64 per thread of 8 warps", 16384, "0017"
    )
    accumulated_f32_elements: int = number(
        "elements",
        "of an accumulator tile of an f32 matmul, whose operands take registers too",
        8192,
        "0017",
    )
    dot_warp_elements: int = number("elements", "of a matmul tile per warp", 1024, "0017")
    dot_warps: int = number("warps", "of a program with a matmul", 8, "0017")
    warp_group: int = number("warps", "that execute one warpgroup MMA", 4, "CUDA")
    dot_step_bytes: int = number("B", "of a K block, per row of an operand", 128, "0069")
    dot_block_bytes: int = number("B", "of a block of the right operand", 1 << 14, "0069")
    peeled_lanes: int = number(
        "lanes",
        "of a part that tiles are peeled to; in shorter rows the cost per row dominates",
        512,
        "0070",
    )
    empty_share: float = number("1", "of a tile's lanes that may be masked off", 0.2, "0070")
    hoisted_registers: int = number(
        "registers", "per thread that hoisted loads may take", 64, "0075"
    )
    multiprocessor_rows: int = number(
        "rows", "per multiprocessor that remain where rows are processed together", 64, "0075"
    )
    line_bytes: int = number("B", "of a cache line: no two buffers share one", 128, "CUDA")


GPU = GPUNumbers()
