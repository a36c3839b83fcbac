"""Placing by lifetimes: what lives together never overlaps, what does not shares memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hemstitch.kernel.placement import LINE, Lifetime, place

LIVES = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(0, 5000),
    st.integers(0, 12),
    st.integers(0, 6),
)


def rounded(size: int) -> int:
    return -(-max(size, 1) // LINE) * LINE


@given(st.lists(LIVES, max_size=25))
def test_no_two_that_live_together_overlap(lives):
    offsets, total = place(lives)
    ends = [offset + life.bytes for offset, life in zip(offsets, lives)]
    assert all(offset % LINE == 0 for offset in offsets)
    assert all(end <= total for end in ends)
    for a in range(len(lives)):
        for b in range(a):
            together = lives[a].first <= lives[b].last and lives[b].first <= lives[a].last
            if together and lives[a].bytes and lives[b].bytes:
                assert ends[a] <= offsets[b] or ends[b] <= offsets[a]


@given(st.lists(LIVES, min_size=1, max_size=25))
def test_memory_is_shared(lives):
    _, total = place(lives)
    sizes = [rounded(life.bytes) for life in lives]
    steps = range(min(x.first for x in lives), 1 + max(x.last for x in lives))
    busiest = max(
        sum(size for size, life in zip(sizes, lives) if life.first <= step <= life.last)
        for step in steps
    )
    assert busiest <= total <= sum(sizes)


def test_a_chain_takes_two_places():
    assert place([Lifetime(640, step, step + 1) for step in range(50)])[1] == 2 * 640
