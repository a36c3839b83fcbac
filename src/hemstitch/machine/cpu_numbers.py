"""The numbers of a processor that lowering and printing go by: each with its unit, what it
is of, and where it comes from (a page of `docs/design` or `docs`, or what the hardware says)."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.machine.record import number


@dataclass(frozen=True, slots=True)
class CPUNumbers:
    non_temporal_bytes: int = number(
        "B",
        "a kernel that touches less stores into the caches: half as much again as a last cache "
        "that one can count on",
        48 << 20,
        "code-generation-for-cpus.md",
    )
    streaming_store_bytes: int = number("B", "the narrowest non-temporal store", 16, "x86-64")
    peeled_row_elements: int = number(
        "elements",
        "of a row whose lane loop is peeled to lines; in shorter ones the vector that is not "
        "full costs as much",
        256,
        "code-generation-for-cpus.md",
    )
    memcpy_bytes: int = number(
        "B",
        "of a row that goes to memcpy; shorter ones take longer by it where the caches hold them",
        4096,
        "code-generation-for-cpus.md",
    )
    vectors_in_flight: int = number(
        "vectors",
        "of a lane loop, and as many as one Philox makes random numbers for",
        4,
        "code-generation-for-cpus.md",
    )
    long_body: int = number(
        "statements",
        "of a loop: of longer ones half as many vectors fill the registers",
        64,
        "code-generation-for-cpus.md",
    )
    look_ahead_flops: int = number(
        "flops",
        "one after the other, beyond which a processor does not look: twice as many vectors",
        64,
        "code-generation-for-cpus.md",
    )
    chain_share: float = number(
        "1",
        "of a body's flops that are one chain; one with less works on several things at once "
        "anyway",
        0.7,
        "code-generation-for-cpus.md",
    )
    chain_lag: int = number(
        "instructions",
        "of a chain before the next begins, where there are 32 registers",
        3,
        "code-generation-for-cpus.md",
    )
    thread_elements: int = number(
        "elements", "of work that pay for one more thread", 1 << 14, "performance-notes.md"
    )
    cascade_terms: int = number(
        "terms", "that each lane adds up, before all of them go to a longer sum", 64, "exactness"
    )
    bandwidth_threads: int = number(
        "threads", "that together use all of memory's bandwidth", 8, "performance-notes.md"
    )
    prefetch_bytes: int = number(
        "B", "that software prefetch runs ahead, in whole rows", 8192, "code-generation-for-cpus.md"
    )
    prefetch_short_row_bytes: int = number(
        "B",
        "of a row: of those that are walked once only shorter ones gain, and come into L1",
        512,
        "code-generation-for-cpus.md",
    )
    prefetch_walk_bytes: int = number(
        "B",
        "of a walk in pieces; what is shorter may be in a cache",
        1 << 20,
        "code-generation-for-cpus.md",
    )
    prefetch_row_bytes: int = number(
        "B",
        "that a row reads of one buffer; more would push out what is in use",
        32768,
        "code-generation-for-cpus.md",
    )
    prefetch_tensor_bytes: int = number(
        "B",
        "of a tensor that hardly lies in a cache before it is read",
        12 << 20,
        "code-generation-for-cpus.md",
    )
    stream_gap_bytes: int = number(
        "B",
        "between pieces that no processor takes for one stream",
        1024,
        "code-generation-for-cpus.md",
    )
    prefetch_rows: int = number(
        "rows", "ahead, of rows in such pieces", 2, "code-generation-for-cpus.md"
    )
    next_block_bytes: int = number(
        "B",
        "of an argument that the next block's prefetch asks for: less is in a cache soon",
        1 << 16,
        "matmul-on-cpus.md",
    )
    next_block_steps: int = number(
        "steps",
        "of a matmul that asks: the rows of a longer one come in time",
        192,
        "matmul-on-cpus.md",
    )
    skinny_rows: int = number(
        "rows",
        "of a tile of a skinny matmul; they are streams of memory as well",
        8,
        "matmul-on-cpus.md",
    )
    unpacked_elements: int = number(
        "elements",
        "of a right operand that is read in place, if rows are not so many",
        1 << 20,
        "matmul-on-cpus.md",
    )
    pack_few_rows: int = number(
        "rows",
        "from which on to pack an operand costs more than it gains",
        256,
        "matmul-on-cpus.md",
    )
    pack_many_rows: int = number("rows", "from which on it gains again", 2048, "matmul-on-cpus.md")
    skinny_columns: int = number(
        "columns", "whose vectors would be nearly empty: a skinny matmul", 16, "matmul-on-cpus.md"
    )
    set_bytes: int = number("B", "between rows that lie in one set of a cache", 1 << 12, "x86-64")
    narrow_columns: int = number(
        "columns", "of a matrix that is one micro-panel", 16, "matmul-on-cpus.md"
    )
    near_elements: int = number(
        "elements",
        "of an operand that stays in L2 whatever lies around it",
        1 << 16,
        "matmul-on-cpus.md",
    )
    blocks_of_a_thread: int = number("blocks", "at least", 4, "matmul-on-cpus.md")
    block_rows: int = number(
        "rows",
        "of a block at least: for fewer an operand is not read by a task more",
        4,
        "matmul-on-cpus.md",
    )
    block_elements: int = number(
        "elements", "of its rows that stay in L2: half of one of 1 MB", 1 << 17, "matmul-on-cpus.md"
    )
    unequal_blocks: float = number(
        "1",
        "times the blocks of a thread in the mean, that the longest waited for has",
        1.04,
        "matmul-on-cpus.md",
    )
    shared_cache_bytes: int = number(
        "B",
        "that cores share; intermediates may take them to stay with their threads",
        32 << 20,
        "memory.md",
    )


CPU = CPUNumbers()
