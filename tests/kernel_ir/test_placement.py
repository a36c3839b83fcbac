"""Placing by lifetimes: what lives together never overlaps, what does not shares memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hemstitch.kernel_ir.placement import Lifetime, place
from hemstitch.machine.cpu_numbers import CPU

MB = 1 << 20
SIZES = st.one_of(st.integers(0, 5000), st.integers(CPU.halved_bytes - 100, 4 * CPU.halved_bytes))
LIVES = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    SIZES,
    st.integers(0, 12),
    st.integers(0, 6),
)
ROOM = st.sampled_from([None, 0, 10 * CPU.halved_bytes, 100 * CPU.halved_bytes])


def rounded(size: int) -> int:
    return -(-max(size, 1) // CPU.line_bytes) * CPU.line_bytes


@given(st.lists(LIVES, max_size=25), ROOM)
def test_no_two_that_live_together_overlap(lives, room):
    offsets, total = place(lives, room)
    ends = [offset + life.bytes for offset, life in zip(offsets, lives)]
    assert all(offset % CPU.line_bytes == 0 for offset in offsets)
    assert all(end <= total for end in ends)
    for a in range(len(lives)):
        for b in range(a):
            is_overlapping = lives[a].first <= lives[b].last and lives[b].first <= lives[a].last
            if is_overlapping and lives[a].bytes and lives[b].bytes:
                assert ends[a] <= offsets[b] or ends[b] <= offsets[a]


@given(st.lists(LIVES, min_size=1, max_size=25), ROOM)
def test_memory_is_shared(lives, room):
    _, total = place(lives, room)
    assert total <= max(room or 0, place(lives)[1])
    sizes = [rounded(life.bytes) for life in lives]
    steps = range(min(x.first for x in lives), 1 + max(x.last for x in lives))
    busiest = max(
        sum(size for size, life in zip(sizes, lives) if life.first <= step <= life.last)
        for step in steps
    )
    assert busiest <= total <= sum(sizes)


def test_a_chain_takes_two_places():
    assert place([Lifetime(640, step, step + 1) for step in range(50)])[1] == 2 * 640


# A large image and what is made of it: 8 MB are read once, then 4 and 2 MB, two at a time.
LAYERS = [
    *(Lifetime(8 * MB, 0, 1), Lifetime(2 * MB, 1, 2), Lifetime(4 * MB, 2, 4)),
    *(Lifetime(MB, 2, 3), Lifetime(2 * MB, 3, 5), Lifetime(4 * MB, 4, 6)),
]


def halves(lives, room):
    """Of each eighth of a megabyte, which halves of something it is."""
    halves_of_unit: dict[int, set[int]] = {}
    unit = MB // 8
    for offset, life in zip(place(lives, room)[0], lives):
        for piece in range(life.bytes // unit):
            half = 2 * piece * unit // life.bytes
            halves_of_unit.setdefault(offset // unit + piece, set()).add(half)
    return halves_of_unit


def test_with_room_each_line_is_of_the_same_half():
    assert any(len(numbers) > 1 for numbers in halves(LAYERS, None).values())
    assert all(len(numbers) == 1 for numbers in halves(LAYERS, 32 * MB).values())


def test_sizes_share_places_around_a_middle():
    """Less than places of their own would take."""
    assert place(LAYERS, 32 * MB)[1] < sum(life.bytes for life in LAYERS) - 4 * MB


def test_where_there_is_no_room_memory_is_packed():
    packed = place(LAYERS)
    assert packed[1] == 10 * MB
    assert place(LAYERS, 0)[1] == packed[1] and place(LAYERS, 11 * MB)[1] <= 11 * MB
