"""The hardware numbers of a CPU that lowering and code generation use. Each has its unit, its
meaning and its source: a page of `docs/design` or `docs/compiler`, or the hardware."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.machine.record import number


@dataclass(frozen=True, slots=True)
class CPUNumbers:
    non_temporal_bytes: int = number(
        "B",
        "read and written by a kernel, from which on its stores are non-temporal: 1.5 times a "
        "usual last-level cache",
        48 << 20,
        "code-generation-for-cpus.md",
    )
    streaming_store_bytes: int = number("B", "of the narrowest non-temporal store", 16, "x86-64")
    peeled_row_elements: int = number(
        "elements",
        "of a row whose lane loop is peeled to whole cache lines; in shorter rows a partial "
        "vector costs as much",
        256,
        "code-generation-for-cpus.md",
    )
    memcpy_bytes: int = number(
        "B",
        "of a row that is copied by memcpy; shorter ones take longer with it where caches hold "
        "them",
        4096,
        "code-generation-for-cpus.md",
    )
    vectors_in_flight: int = number(
        "vectors",
        "a lane loop is unrolled by; one Philox call fills as many",
        4,
        "code-generation-for-cpus.md",
    )
    long_body: int = number(
        "statements",
        "of a loop body; longer ones are unrolled half as much, since they fill the registers",
        64,
        "code-generation-for-cpus.md",
    )
    look_ahead_flops: int = number(
        "flops",
        "of a dependence chain that exceeds the out-of-order window; then unrolling doubles",
        64,
        "code-generation-for-cpus.md",
    )
    chain_share: float = number(
        "1",
        "of a body's flops that lie on its critical path; below it the body has enough parallelism",
        0.7,
        "code-generation-for-cpus.md",
    )
    chain_lag: int = number(
        "instructions",
        "between the starts of interleaved dependence chains, with 32 registers",
        3,
        "code-generation-for-cpus.md",
    )
    thread_elements: int = number(
        "elements", "of work that pay for one more thread", 1 << 14, "performance-notes.md"
    )
    cascade_terms: int = number(
        "terms",
        "that a lane adds up before its sum goes to the next level of the cascade summation",
        64,
        "exactness",
    )
    bandwidth_threads: int = number(
        "threads", "that saturate the memory bandwidth", 8, "performance-notes.md"
    )
    prefetch_bytes: int = number(
        "B", "that software prefetch runs ahead, in whole rows", 8192, "code-generation-for-cpus.md"
    )
    prefetch_short_row_bytes: int = number(
        "B",
        "of a row that is read once and prefetched into L1; longer ones gain nothing",
        512,
        "code-generation-for-cpus.md",
    )
    prefetch_walk_bytes: int = number(
        "B",
        "of a strided read that is prefetched; shorter ones may be cached",
        1 << 20,
        "code-generation-for-cpus.md",
    )
    prefetch_row_bytes: int = number(
        "B",
        "that a row reads of one buffer; prefetching more would evict what is in use",
        32768,
        "code-generation-for-cpus.md",
    )
    prefetch_tensor_bytes: int = number(
        "B",
        "of a tensor that is unlikely to be cached before it is read",
        12 << 20,
        "code-generation-for-cpus.md",
    )
    stream_gap_bytes: int = number(
        "B",
        "between pieces that no hardware prefetcher takes for one stream",
        1024,
        "code-generation-for-cpus.md",
    )
    prefetch_rows: int = number(
        "rows",
        "of software prefetch ahead, for rows in such pieces",
        2,
        "code-generation-for-cpus.md",
    )
    next_block_bytes: int = number(
        "B",
        "of an argument that the block before prefetches; smaller ones are soon cached",
        1 << 16,
        "matmul-on-cpus.md",
    )
    next_block_steps: int = number(
        "steps",
        "of K, up to which a matmul prefetches the rows of its next block; longer ones have time",
        192,
        "matmul-on-cpus.md",
    )
    skinny_rows: int = number(
        "rows",
        "of a tile of a skinny matmul, each of which is a memory stream",
        8,
        "matmul-on-cpus.md",
    )
    unpacked_elements: int = number(
        "elements",
        "of a right operand that is read in place for few rows, not packed",
        1 << 20,
        "matmul-on-cpus.md",
    )
    pack_few_rows: int = number(
        "rows",
        "from which on packing an operand costs more than it gains",
        256,
        "matmul-on-cpus.md",
    )
    pack_many_rows: int = number(
        "rows", "from which on packing gains again", 2048, "matmul-on-cpus.md"
    )
    skinny_columns: int = number(
        "columns",
        "up to which a matmul is skinny: vectors of columns would be nearly empty",
        16,
        "matmul-on-cpus.md",
    )
    set_bytes: int = number(
        "B", "stride between rows that map to one set of a cache", 1 << 12, "x86-64"
    )
    narrow_columns: int = number(
        "columns", "of a matrix that is one micro-panel", 16, "matmul-on-cpus.md"
    )
    near_elements: int = number(
        "elements", "of an operand that stays in L2", 1 << 16, "matmul-on-cpus.md"
    )
    blocks_of_a_thread: int = number("blocks", "per thread, at least", 4, "matmul-on-cpus.md")
    block_rows: int = number(
        "rows",
        "of a block, at least: fewer halve the speed, and do not pay for one more task",
        4,
        "matmul-on-cpus.md",
    )
    block_elements: int = number(
        "elements", "of a block's rows that stay in L2: half of 1 MB", 1 << 17, "matmul-on-cpus.md"
    )
    unequal_blocks: float = number(
        "1",
        "blocks of the longest thread over the mean, up to which a distribution counts as balanced",
        1.04,
        "matmul-on-cpus.md",
    )
    shared_cache_bytes: int = number(
        "B",
        "of a shared cache; intermediates of this size may stay with their threads",
        32 << 20,
        "memory.md",
    )
    line_bytes: int = number("B", "of a cache line", 64, "x86-64")
    widest_lanes: int = number(
        "f32",
        "of the widest vector of all targets: padded memory has room for whole ones",
        16,
        "x86-64",
    )
    halved_bytes: int = number(
        "B",
        "of an allocation that keeps its middle; smaller ones move between caches soon",
        1 << 16,
        "memory.md",
    )
    hoisted_bytes: int = number(
        "B", "of hoisted values in a nest: half of L1", 16 << 10, "kernel-passes.md"
    )
    interleaved_vectors: int = number(
        "vectors", "of all interleaved rows together", 12, "kernel-passes.md"
    )
    interleaved_rows: int = number("rows", "that are interleaved, at most", 4, "kernel-passes.md")
    interleaved_stages: int = number(
        "stages",
        "of a row, divided by its horizontal reductions, from which on interleaving hides latency",
        3,
        "kernel-passes.md",
    )
    combined_addends: int = number(
        "addends", "of one sum, combined in registers", 16, "kernel-passes.md"
    )
    sorted_result_bytes: int = number(
        "B", "of the result of a scatter-add that L2 does not hold", 1 << 20, "scatter-and-scan.md"
    )
    sorted_columns: int = number(
        "columns",
        "of a row of a sorted scatter-add; with fewer the sort costs more than it gains",
        96,
        "scatter-and-scan.md",
    )
    tile_vectors: int = number(
        "vectors", "of columns of a tile in registers", 2, "matmul-on-cpus.md"
    )
    rate_error: float = number(
        "1",
        "of the library's time, by which measured rates may be wrong for other shapes",
        0.1,
        "performance-notes.md",
    )
    transposed_elements: int = number(
        "elements",
        "of an operand that is worth reading once, in place: the matmul is transposed",
        1 << 20,
        "matmul-on-cpus.md",
    )
    transposed_rows: int = number(
        "rows", "of the left operand of a transposed matmul, at most", 128, "matmul-on-cpus.md"
    )
    transposed_ratio: int = number(
        "1",
        "of K and of columns to rows, from which on a matmul is transposed",
        4,
        "matmul-on-cpus.md",
    )
    row_multiple: int = number(
        "rows",
        "that a block should be a multiple of, so that tiles in registers are whole",
        4,
        "matmul-on-cpus.md",
    )
    direct_channels: int = number(
        "channels",
        "of a direct convolution, at most; the library is slow with so few",
        4,
        "convolutions.md",
    )
    direct_features: int = number(
        "features", "of a direct convolution, at least: whole micro-panels", 32, "convolutions.md"
    )
    direct_columns: int = number(
        "columns",
        "of the result of a direct convolution, at least: rows of a block",
        8,
        "convolutions.md",
    )
    direct_steps: int = number(
        "steps", "of K of a direct convolution, at least", 8, "convolutions.md"
    )
    winograd_channels: int = number(
        "channels",
        "of a Winograd convolution; with fewer the sums take longer than they save",
        32,
        "convolutions.md",
    )
    winograd_tiles: int = number(
        "tiles",
        "of a Winograd convolution; with fewer the sums of weights take longer",
        64,
        "convolutions.md",
    )
    gradient_lanes: int = number(
        "f32",
        "of a vector, with which the library reads an image once for each vector of its channels",
        8,
        "convolutions.md",
    )
    gradient_l1_share: float = number(
        "1",
        "of L1; a larger line of an image does not stay there in the library's weight gradient",
        3 / 4,
        "convolutions.md",
    )
    gradient_excess: int = number(
        "1",
        "of the time of the multiplications, that the library's weight gradient then takes longer",
        3,
        "convolutions.md",
    )
    vector_strides: tuple[int, ...] = number(
        "elements",
        "of strides that vector loads and a shuffle support",
        (1, 2),
        "stitching-and-mapping.md",
    )
    transposed_stride: int = number(
        "elements",
        "of the lanes, from which on a transpose in registers is profitable",
        8,
        "layouts.md",
    )
    least_transpose_tile: int = number(
        "iterations", "of a transpose tile: full vectors", 8, "layouts.md"
    )
    transpose_tile: int = number(
        "iterations", "of a transpose tile, at most: it stays in L1", 64, "layouts.md"
    )
    rows_of_a_thread: int = number(
        "rows",
        "per thread that remain where rows are processed together",
        4,
        "stitching-and-mapping.md",
    )
    launch_bytes: int = number(
        "B",
        "moved in the time of an additional kernel, on GPUs too",
        1 << 14,
        "saved-for-backward.md",
    )
    held_byte: float = number(
        "B",
        "moved, that holding a byte from forward to backward costs, on GPUs too",
        0.25,
        "saved-for-backward.md",
    )
    launch_elements: int = number(
        "f32", "moved in the time of one launch: 2 us at 20 GB/s", 10_000, "cost-models.md"
    )
    bytes_per_flop: float = number(
        "B",
        "moved in the time of an operation on one element; nearer caches move more",
        0.1,
        "joint-graph.md",
    )
    cached_byte: float = number(
        "B",
        "moved from memory in the time of a byte that a cache holds",
        0.25,
        "joint-graph.md",
    )
    double_function_ratio: int = number(
        "1",
        "of the time of exp in f64 to that in f32, with AVX2 (log and sin 5, tanh 11, erf 9)",
        7,
        "joint-graph.md",
    )
    double_ratio: int = number(
        "1",
        "of the time of arithmetic in f64 to that in f32: half as many lanes",
        2,
        "joint-graph.md",
    )
    library_packing_share: float = number(
        "1",
        "of a convolution, that the library takes longer for an image that it packs",
        1 / 8,
        "layouts.md",
    )
    topk_elements: int = number(
        "elements",
        "of topk, computed as so many reductions; for more the library is faster",
        8,
        "performance-notes.md",
    )
    long_topk_elements: int = number(
        "elements",
        "of topk of a long row, computed as so many reductions",
        2,
        "performance-notes.md",
    )
    long_topk_row: int = number(
        "elements", "of a row, beyond which it is long for topk", 256, "performance-notes.md"
    )
    compared_writes: int = number(
        "indices",
        "per row, up to which a scatter is that many comparisons",
        8,
        "scatter-and-scan.md",
    )
    compared_row: int = number(
        "elements",
        "compared by a scatter of more than two indices per row; for more the library is faster",
        256,
        "scatter-and-scan.md",
    )


CPU = CPUNumbers()
