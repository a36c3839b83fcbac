"""Random numbers: the published test vectors, and vectors of any width against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from hemstitch.ir.graph import Op
from hemstitch.ir.philox import philox_reference, philox_words
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.vector_philox import compare_words, to_uniform, words, words4
from tests.targets.vector_harness import assembly, compile_host

# from the Random123 distribution: counter, key, output
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
    ),
]
SEEDS = [0, 1, -1, 0x123456789ABCDEF, -(1 << 63)]


@pytest.mark.parametrize("counter, key, output", KNOWN)
def test_the_reference_is_philox(
    counter: tuple[int, ...], key: tuple[int, int], output: tuple[int, ...]
) -> None:
    words = philox_words([np.array([word], np.uint64) for word in counter], key)
    assert tuple(int(word[0]) for word in words) == output


def test_the_reference_is_uniform() -> None:
    x = philox_reference(7, np.arange(1 << 16).reshape(256, 256))
    assert x.shape == (256, 256) and x.dtype == np.float32
    assert x.min() >= 0 and x.max() < 1
    counts, _ = np.histogram(x, bins=64, range=(0, 1))
    assert np.abs(counts - 1024).max() < 6 * 32


@pytest.mark.parametrize("width", [4, 8, 16, 32])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_indices(seed: int, width: int) -> None:
    random = np.random.default_rng(width)
    index = random.integers(0, 1 << 62, 256)
    index[:64] = random.integers(0, 100, 64)

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        return [to_uniform(e, words(e, e.i64(seed), v[0]))]

    (result,) = compile_host(width, ["i64"], body)(index)
    np.testing.assert_array_equal(result, philox_reference(seed, index))


@pytest.mark.parametrize("width", [4, 8, 16, 32])
@pytest.mark.parametrize("first", [0, 4, 1 << 33, (1 << 34) - 8])
def test_four_vectors_at_once(first: int, width: int) -> None:
    seed = -12345678901234

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        return [to_uniform(e, word) for word in words4(e, e.i64(seed), e.lane(v[0]))]

    results = compile_host(width, ["i64"], body)(np.full(width, first))
    expected = philox_reference(seed, first + np.arange(4 * width))
    np.testing.assert_array_equal(np.concatenate(results), expected)


@pytest.mark.parametrize("width", [4, 8])
def test_four_vectors_that_start_before_the_tensor(width: int) -> None:
    first = -2 * width

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        return [to_uniform(e, word) for word in words4(e, e.i64(7), e.lane(v[0]))]

    results = np.concatenate(compile_host(width, ["i64"], body)(np.full(width, first)))
    expected = philox_reference(7, np.arange(2 * width))
    np.testing.assert_array_equal(results[-first:], expected)


@pytest.mark.parametrize("op", [Op.LT, Op.LE, Op.GT, Op.GE])
@pytest.mark.parametrize("bound", [0.1, 0.5, 1 - 2.0**-23, 2.0**-24, 0.3 + 2.0**-26, 1e-30, 0.75])
def test_words_are_compared_as_their_numbers_are(op: Op, bound: float) -> None:
    border = int(np.float32(bound) * 2**24) << 8
    near = (border + np.arange(-600, 600, 8)) % (1 << 32)
    index = np.random.default_rng(3).integers(0, 1 << 32, 128)
    drawn = np.concatenate([near, index, [0, (1 << 32) - 1], np.zeros(104)]).astype(np.uint32)

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        masks = compare_words(e, op, v, bound)
        assert masks is not None
        return masks

    (result,) = compile_host(16, ["i32"], body)(drawn.view(np.int32))
    number = (drawn >> 8).astype(np.float32) * np.float32(2.0**-24)
    holds = {
        Op.LT: number < np.float32(bound),
        Op.LE: number <= np.float32(bound),
        Op.GT: number > np.float32(bound),
        Op.GE: number >= np.float32(bound),
    }
    np.testing.assert_array_equal(result, holds[op])


@pytest.mark.parametrize(
    "bound", [None, 0.0, -1.0, 1.0, 2.0, 1 - 1e-12, float("nan"), float("inf")]
)
def test_what_no_word_is_between_stays_a_comparison_of_numbers(bound: float | None) -> None:
    e = Emitter(16)
    assert compare_words(e, Op.LT, [e.constant(7, "i32")], bound) is None


@pytest.mark.parametrize(
    "triple, cpu", [("x86_64-linux-gnu", "haswell"), ("aarch64-linux-gnu", "neoverse-n1")]
)
def test_other_hosts_can_select_it(triple: str, cpu: str) -> None:
    def body(e: Emitter, v: list[Value]) -> list[Value]:
        seed = e.lane(v[0])
        return [words(e, seed, v[0]), *words4(e, seed, seed)]

    text = assembly(8, ["i64"], body, triple, cpu)
    assert ("umull" if "aarch64" in triple else "vpmuludq") in text
