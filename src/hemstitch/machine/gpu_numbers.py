"""The numbers of a GPU that lowering and printing go by: each with its unit, what it
is of, and where it comes from (a decision of `docs/decisions`, or what the hardware says)."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.machine.record import measured


@dataclass(frozen=True, slots=True)
class GPUNumbers:
    whole_lanes: int = measured(
        8192, "lanes", "of a row that stays in registers: 16 warps, 16 elements a thread", "0014"
    )
    looped_lanes: int = measured(1024, "lanes", "of a tile of a longer row", "0014")
    tile_elements: int = measured(
        2048,
        "elements",
        "that a tile should have, so that each thread keeps several loads in flight",
        "0069",
    )
    warp_elements: int = measured(512, "elements", "of a warp: 16 for each thread", "0069")
    least_warp_elements: int = measured(
        128, "elements", "of a warp: four for each thread come from memory at once", "0069"
    )
    multiprocessor_warps: int = measured(
        16, "warps", "of a multiprocessor that hide what one of them waits for", "0068"
    )
    sector_elements: int = measured(8, "f32", "that come from memory together", "CUDA")
    program_warps: int = measured(16, "warps", "of a program at most", "0068")
    warp_threads: int = measured(32, "threads", "of a warp", "CUDA")
    value_registers: int = measured(
        128,
        "registers",
        "of the 255 of a thread, for values: addresses, masks and a division need some",
        "0074",
    )
    accumulated_elements: int = measured(
        16384, "elements", "of a tile that is added up in registers: 64 a thread of 8 warps", "0017"
    )
    accumulated_f32_elements: int = measured(
        8192, "elements", "of f32, whose operands are there too", "0017"
    )
    dot_warp_elements: int = measured(
        1024, "elements", "of a tile of a matmul for each warp", "0017"
    )
    dot_warps: int = measured(8, "warps", "of a program that multiplies", "0017")
    warp_group: int = measured(4, "warps", "that work on one matmul together", "CUDA")
    dot_step_bytes: int = measured(
        128, "B", "of each row of an operand in one block of steps", "0069"
    )
    dot_block_bytes: int = measured(1 << 14, "B", "of a block of the right operand", "0069")
    peeled_lanes: int = measured(
        512,
        "lanes",
        "of a part that tiles are peeled to; of shorter rows what is done once a row weighs more",
        "0070",
    )
    empty_share: float = measured(0.2, "1", "of a tile's lanes that may be empty", "0070")
    hoisted_registers: int = measured(
        64, "registers", "of a thread that hoisted loads may take", "0075"
    )
    multiprocessor_rows: int = measured(
        64, "rows", "that are left for each multiprocessor where rows are taken together", "0075"
    )
    line_bytes: int = measured(128, "B", "of a cache line: no two buffers share one", "CUDA")


GPU = GPUNumbers()
