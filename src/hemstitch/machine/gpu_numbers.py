"""The hardware numbers of a GPU that lowering and code generation use. Each has its unit, its
meaning and its source: a page of `docs/design` or `docs/compiler`, or the hardware."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.machine.record import number


@dataclass(frozen=True, slots=True)
class GPUNumbers:
    whole_lanes: int = number(
        "lanes",
        "of a row that stays in registers: 16 warps, 16 elements per thread",
        8192,
        "code-generation-for-gpus.md",
    )
    looped_lanes: int = number(
        "lanes", "of a tile of a longer row", 1024, "code-generation-for-gpus.md"
    )
    tile_elements: int = number(
        "elements",
        "of a tile, so that each thread has several loads in flight",
        2048,
        "code-generation-for-gpus.md",
    )
    warp_elements: int = number(
        "elements", "per warp: 16 per thread", 512, "code-generation-for-gpus.md"
    )
    least_warp_elements: int = number(
        "elements",
        "per warp, at least: one vectorised access of 4 per thread",
        128,
        "code-generation-for-gpus.md",
    )
    multiprocessor_warps: int = number(
        "warps", "per multiprocessor that hide memory latency", 16, "code-generation-for-gpus.md"
    )
    sector_elements: int = number("f32", "of a memory sector", 8, "CUDA")
    program_warps: int = number("warps", "of a program, at most", 16, "code-generation-for-gpus.md")
    warp_threads: int = number("threads", "of a warp", 32, "CUDA")
    value_registers: int = number(
        "registers",
        "of the 255 of a thread, for values; addresses, masks and divisions need the others",
        128,
        "code-generation-for-gpus.md",
    )
    accumulated_elements: int = number(
        "elements", "of an accumulator tile: 64 per thread of 8 warps", 16384, "target-gpu.md"
    )
    accumulated_f32_elements: int = number(
        "elements",
        "of an accumulator tile of an f32 matmul, whose operands take registers too",
        8192,
        "target-gpu.md",
    )
    dot_warp_elements: int = number("elements", "of a matmul tile per warp", 1024, "target-gpu.md")
    dot_warps: int = number("warps", "of a program with a matmul", 8, "target-gpu.md")
    warp_group: int = number("warps", "that execute one warpgroup MMA", 4, "CUDA")
    dot_step_bytes: int = number(
        "B", "of a K block, per row of an operand", 128, "code-generation-for-gpus.md"
    )
    dot_block_bytes: int = number(
        "B", "of a block of the right operand", 1 << 14, "code-generation-for-gpus.md"
    )
    peeled_lanes: int = number(
        "lanes",
        "of a part that tiles are peeled to; in shorter rows the cost per row dominates",
        512,
        "code-generation-for-gpus.md",
    )
    empty_share: float = number(
        "1", "of a tile's lanes that may be masked off", 0.2, "code-generation-for-gpus.md"
    )
    hoisted_registers: int = number(
        "registers", "per thread that hoisted loads may take", 64, "code-generation-for-gpus.md"
    )
    multiprocessor_rows: int = number(
        "rows",
        "per multiprocessor that remain where rows are processed together",
        64,
        "code-generation-for-gpus.md",
    )
    line_bytes: int = number("B", "of a cache line: no two buffers share one", 128, "CUDA")
    summed_operand_ratio: float = number(
        "1",
        "of the time to load operands where columns are added up as well, to that without sums",
        2.0,
        "code-generation-for-gpus.md",
    )
    library_seconds: float = number(
        "s", "of a matmul of the library, however small", 4e-6, "code-generation-for-gpus.md"
    )
    dot_columns: int = number(
        "columns",
        "of a matmul tile, unless whole rows are needed",
        128,
        "code-generation-for-gpus.md",
    )
    least_dot_columns: int = number(
        "columns",
        "of a matmul tile, where there would be too few tiles",
        32,
        "code-generation-for-gpus.md",
    )
    dot_rows: int = number("rows", "of a matmul tile, at most", 128, "code-generation-for-gpus.md")
    least_dot_extent: int = number(
        "elements", "of M, N and K of the smallest tile of matrix units", 16, "CUDA"
    )
    dot_programs: int = number(
        "programs",
        "of a launch that one program with large matmul tiles replaces",
        12,
        "code-generation-for-gpus.md",
    )
    register_columns: int = number(
        "columns",
        "of a row that stays in registers, in tiles of 16 rows, with temporaries",
        256,
        "attention.md",
    )
    short_lanes: int = number(
        "lanes",
        "of an axis, below which it is a side of the tile instead",
        32,
        "stitching-and-mapping.md",
    )
    tile_rows: int = number(
        "rows", "of a tile without matmuls, at most", 64, "code-generation-for-gpus.md"
    )
    dot_block_lanes: int = number(
        "lanes",
        "of a block of a long row with a matmul on matrix units",
        64,
        "code-generation-for-gpus.md",
    )
    scalar_dot_block_lanes: int = number(
        "lanes",
        "of a block of a long row with a matmul without matrix units",
        32,
        "code-generation-for-gpus.md",
    )
    dot_steps: int = number(
        "steps", "of K at once, whose operands fit shared memory", 64, "code-generation-for-gpus.md"
    )
    repeated_dot_steps: int = number(
        "steps",
        "of K at once, whose left operand is in registers already",
        128,
        "code-generation-for-gpus.md",
    )
    scalar_dot_steps: int = number(
        "steps",
        "of K at once without matrix units: both operands are in registers",
        32,
        "code-generation-for-gpus.md",
    )
    pipeline_stages: int = number(
        "stages",
        "of a loop over K: one block is multiplied while two are loaded",
        3,
        "code-generation-for-gpus.md",
    )
    access_bytes: int = number("B", "of the widest access of a thread", 16, "CUDA")
    atomic_elements: int = number(
        "elements",
        "of a sum in memory that is added to atomically: one per thread of 4 warps",
        128,
        "code-generation-for-gpus.md",
    )
    unrolled_loads: int = number(
        "iterations",
        "of a loop that only reduces, so that their loads are in flight at once",
        8,
        "code-generation-for-gpus.md",
    )
    unrolled_rows: int = number(
        "iterations", "of a loop that adds up rows", 2, "code-generation-for-gpus.md"
    )
    unrolled_accumulators: int = number(
        "iterations",
        "of a loop with multiple accumulators and as many loads or fewer",
        2,
        "code-generation-for-gpus.md",
    )
    padding_ratio: float = number(
        "1",
        "of lanes after collapsing loops, masked ones included, to those before",
        1.5,
        "code-generation-for-gpus.md",
    )
    accumulated_terms: int = number(
        "terms",
        "of a sum, from which on it has multiple accumulators",
        64,
        "code-generation-for-gpus.md",
    )
    accumulators: int = number(
        "accumulators", "of a sum, at most", 512, "code-generation-for-gpus.md"
    )
    least_combined_rows: int = number(
        "rows", "that are combined into one", 4, "code-generation-for-gpus.md"
    )
    combined_rows: int = number(
        "rows", "that are combined into one, at most", 64, "code-generation-for-gpus.md"
    )
    multiprocessor_registers: int = number("registers", "of a multiprocessor", 65536, "CUDA")
    thread_registers: int = number("registers", "of a thread, at most", 255, "CUDA")
    schedulers: int = number(
        "schedulers",
        "of a multiprocessor, each with a sub-partition: warp instructions issued in a clock",
        4,
        "CUDA",
    )
    cooperative_programs: int = number(
        "programs",
        "per multiprocessor in a cooperative launch, at most: each leaves partial sums",
        4,
        "code-generation-for-gpus.md",
    )
    tuned_bytes: int = number(
        "B",
        "read and written by a kernel that is worth tuning: 7 us of an H200's bandwidth",
        1 << 25,
        "code-generation-for-gpus.md",
    )
    wavefront_threads: int = number("threads", "of a wavefront, the warp of CDNA", 64, "ROCm")
    reserved_shared_bytes: int = number(
        "B",
        "of shared memory that the driver reserves; from sm_90 on cuobjdump includes it",
        1 << 10,
        "CUDA",
    )
    long_scan: int = number(
        "elements",
        "of a row, beyond which one program scans it slower than the library",
        16384,
        "scatter-and-scan.md",
    )
    busy_scans: int = number(
        "rows", "that keep a GPU busy, one program each", 128, "scatter-and-scan.md"
    )


GPU = GPUNumbers()
