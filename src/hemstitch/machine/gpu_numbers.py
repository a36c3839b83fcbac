"""The numbers of a GPU that lowering and printing go by: each with its unit, what it
is of, and where it comes from (a decision of `docs/decisions`, or what the hardware says)."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.machine.record import number


@dataclass(frozen=True, slots=True)
class GPUNumbers:
    whole_lanes: int = number(
        "lanes", "of a row that stays in registers: 16 warps, 16 elements a thread", 8192, "0014"
    )
    looped_lanes: int = number("lanes", "of a tile of a longer row", 1024, "0014")
    tile_elements: int = number(
        "elements",
        "that a tile should have, so that each thread keeps several loads in flight",
        2048,
        "0069",
    )
    warp_elements: int = number("elements", "of a warp: 16 for each thread", 512, "0069")
    least_warp_elements: int = number(
        "elements", "of a warp: four for each thread come from memory at once", 128, "0069"
    )
    multiprocessor_warps: int = number(
        "warps", "of a multiprocessor that hide what one of them waits for", 16, "0068"
    )
    sector_elements: int = number("f32", "that come from memory together", 8, "CUDA")
    program_warps: int = number("warps", "of a program at most", 16, "0068")
    warp_threads: int = number("threads", "of a warp", 32, "CUDA")
    value_registers: int = number(
        "registers",
        "of the 255 of a thread, for values: addresses, masks and a division need some",
        128,
        "0074",
    )
    accumulated_elements: int = number(
        "elements", "of a tile that is added up in registers: 64 a thread of 8 warps", 16384, "0017"
    )
    accumulated_f32_elements: int = number(
        "elements", "of f32, whose operands are there too", 8192, "0017"
    )
    dot_warp_elements: int = number("elements", "of a tile of a matmul for each warp", 1024, "0017")
    dot_warps: int = number("warps", "of a program that multiplies", 8, "0017")
    warp_group: int = number("warps", "that work on one matmul together", 4, "CUDA")
    dot_step_bytes: int = number(
        "B", "of each row of an operand in one block of steps", 128, "0069"
    )
    dot_block_bytes: int = number("B", "of a block of the right operand", 1 << 14, "0069")
    peeled_lanes: int = number(
        "lanes",
        "of a part that tiles are peeled to; of shorter rows what is done once a row weighs more",
        512,
        "0070",
    )
    empty_share: float = number("1", "of a tile's lanes that may be empty", 0.2, "0070")
    hoisted_registers: int = number(
        "registers", "of a thread that hoisted loads may take", 64, "0075"
    )
    multiprocessor_rows: int = number(
        "rows", "that are left for each multiprocessor where rows are taken together", 64, "0075"
    )
    line_bytes: int = number("B", "of a cache line: no two buffers share one", 128, "CUDA")


GPU = GPUNumbers()
