"""The numbers of a processor that lowering and printing go by: each with its unit, what it
is of, and where it comes from (a decision of `docs/decisions`, or what the hardware says)."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.machine.record import measured


@dataclass(frozen=True, slots=True)
class CPUNumbers:
    non_temporal_bytes: int = measured(
        48 << 20,
        "B",
        "a kernel that touches less stores into the caches: half as much again as a last cache "
        "that one can count on",
        "0046",
    )
    streaming_store_bytes: int = measured(16, "B", "the narrowest non-temporal store", "x86-64")
    peeled_row_elements: int = measured(
        256,
        "elements",
        "of a row whose lane loop is peeled to lines; in shorter ones the vector that is not "
        "full costs as much",
        "0046",
    )
    memcpy_bytes: int = measured(
        4096,
        "B",
        "of a row that goes to memcpy; shorter ones take longer by it where the caches hold them",
        "0089",
    )
    vectors_in_flight: int = measured(
        4, "vectors", "of a lane loop, and as many as one Philox makes random numbers for", "0031"
    )
    long_body: int = measured(
        64,
        "statements",
        "of a loop: of longer ones half as many vectors fill the registers",
        "0031",
    )
    look_ahead_flops: int = measured(
        64,
        "flops",
        "one after the other, beyond which a processor does not look: twice as many vectors",
        "0073",
    )
    chain_share: float = measured(
        0.7,
        "1",
        "of a body's flops that are one chain; one with less works on several things at once "
        "anyway",
        "0073",
    )
    chain_lag: int = measured(
        3, "instructions", "of a chain before the next begins, where there are 32 registers", "0073"
    )
    thread_elements: int = measured(
        1 << 14, "elements", "of work that pay for one more thread", "performance.md"
    )
    cascade_terms: int = measured(
        64, "terms", "that each lane adds up, before all of them go to a longer sum", "exactness"
    )
    bandwidth_threads: int = measured(
        8, "threads", "that together use all of memory's bandwidth", "performance.md"
    )
    prefetch_bytes: int = measured(
        8192, "B", "that software prefetch runs ahead, in whole rows", "0054"
    )
    prefetch_short_row_bytes: int = measured(
        512,
        "B",
        "of a row: of those that are walked once only shorter ones gain, and come into L1",
        "0054",
    )
    prefetch_walk_bytes: int = measured(
        1 << 20, "B", "of a walk in pieces; what is shorter may be in a cache", "0054"
    )
    prefetch_row_bytes: int = measured(
        32768, "B", "that a row reads of one buffer; more would push out what is in use", "0054"
    )
    prefetch_tensor_bytes: int = measured(
        12 << 20, "B", "of a tensor that hardly lies in a cache before it is read", "0070"
    )
    stream_gap_bytes: int = measured(
        1024, "B", "between pieces that no processor takes for one stream", "0070"
    )
    prefetch_rows: int = measured(2, "rows", "ahead, of rows in such pieces", "0070")
    next_block_bytes: int = measured(
        1 << 16,
        "B",
        "of an argument that the next block's prefetch asks for: less is in a cache soon",
        "0066",
    )
    next_block_steps: int = measured(
        192, "steps", "of a matmul that asks: the rows of a longer one come in time", "0066"
    )
    skinny_rows: int = measured(
        8, "rows", "of a tile of a skinny matmul; they are streams of memory as well", "0057"
    )
    unpacked_elements: int = measured(
        1 << 20,
        "elements",
        "of a right operand that is read in place, if rows are not so many",
        "0052",
    )
    pack_few_rows: int = measured(
        256, "rows", "from which on to pack an operand costs more than it gains", "0052"
    )
    pack_many_rows: int = measured(2048, "rows", "from which on it gains again", "0052")
    skinny_columns: int = measured(
        16, "columns", "whose vectors would be nearly empty: a skinny matmul", "0057"
    )
    set_bytes: int = measured(1 << 12, "B", "between rows that lie in one set of a cache", "x86-64")
    narrow_columns: int = measured(16, "columns", "of a matrix that is one micro-panel", "0049")
    near_elements: int = measured(
        1 << 16, "elements", "of an operand that stays in L2 whatever lies around it", "0052"
    )
    blocks_of_a_thread: int = measured(4, "blocks", "at least", "0027")
    block_rows: int = measured(
        4, "rows", "of a block at least: for fewer an operand is not read by a task more", "0057"
    )
    block_elements: int = measured(
        1 << 17, "elements", "of its rows that stay in L2: half of one of 1 MB", "0027"
    )
    unequal_blocks: float = measured(
        1.04,
        "1",
        "times the blocks of a thread in the mean, that the longest waited for has",
        "0027",
    )
    shared_cache_bytes: int = measured(
        32 << 20,
        "B",
        "that cores share; intermediates may take them to stay with their threads",
        "0072",
    )


CPU = CPUNumbers()
