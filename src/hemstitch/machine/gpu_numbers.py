"""The numbers of a GPU that lowering and printing go by: each with its unit, what it
is of, and where it comes from (a page of `docs/design` or `docs`, or what the hardware says)."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.machine.record import number


@dataclass(frozen=True, slots=True)
class GPUNumbers:
    whole_lanes: int = number(
        "lanes",
        "of a row that stays in registers: 16 warps, 16 elements a thread",
        8192,
        "code-generation-for-gpus.md",
    )
    looped_lanes: int = number(
        "lanes", "of a tile of a longer row", 1024, "code-generation-for-gpus.md"
    )
    tile_elements: int = number(
        "elements",
        "that a tile should have, so that each thread keeps several loads in flight",
        2048,
        "code-generation-for-gpus.md",
    )
    warp_elements: int = number(
        "elements", "of a warp: 16 for each thread", 512, "code-generation-for-gpus.md"
    )
    least_warp_elements: int = number(
        "elements",
        "of a warp: four for each thread come from memory at once",
        128,
        "code-generation-for-gpus.md",
    )
    multiprocessor_warps: int = number(
        "warps",
        "of a multiprocessor that hide what one of them waits for",
        16,
        "code-generation-for-gpus.md",
    )
    sector_elements: int = number("f32", "that come from memory together", 8, "CUDA")
    program_warps: int = number("warps", "of a program at most", 16, "code-generation-for-gpus.md")
    warp_threads: int = number("threads", "of a warp", 32, "CUDA")
    value_registers: int = number(
        "registers",
        "of the 255 of a thread, for values: addresses, masks and a division need some",
        128,
        "code-generation-for-gpus.md",
    )
    accumulated_elements: int = number(
        "elements",
        "of a tile that is added up in registers: 64 a thread of 8 warps",
        16384,
        "gpu.md",
    )
    accumulated_f32_elements: int = number(
        "elements", "of f32, whose operands are there too", 8192, "gpu.md"
    )
    dot_warp_elements: int = number(
        "elements", "of a tile of a matmul for each warp", 1024, "gpu.md"
    )
    dot_warps: int = number("warps", "of a program that multiplies", 8, "gpu.md")
    warp_group: int = number("warps", "that work on one matmul together", 4, "CUDA")
    dot_step_bytes: int = number(
        "B", "of each row of an operand in one block of steps", 128, "code-generation-for-gpus.md"
    )
    dot_block_bytes: int = number(
        "B", "of a block of the right operand", 1 << 14, "code-generation-for-gpus.md"
    )
    peeled_lanes: int = number(
        "lanes",
        "of a part that tiles are peeled to; of shorter rows what is done once a row weighs more",
        512,
        "code-generation-for-gpus.md",
    )
    empty_share: float = number(
        "1", "of a tile's lanes that may be empty", 0.2, "code-generation-for-gpus.md"
    )
    hoisted_registers: int = number(
        "registers", "of a thread that hoisted loads may take", 64, "code-generation-for-gpus.md"
    )
    multiprocessor_rows: int = number(
        "rows",
        "that are left for each multiprocessor where rows are taken together",
        64,
        "code-generation-for-gpus.md",
    )
    line_bytes: int = number("B", "of a cache line: no two buffers share one", 128, "CUDA")


GPU = GPUNumbers()
