"""Random numbers: the published test vectors, and vectors of any width against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from hemstitch.codegen.llvm.emitter import Emitter, Value
from hemstitch.codegen.llvm.philox import uniform, uniform4
from hemstitch.ir.philox import philox_reference, philox_words
from tests.codegen.vector_harness import assembly, compile_host

# from the Random123 distribution: counter, key, output
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
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
    (result,) = compile_host(width, ["i64"], lambda e, v: [uniform(e, e.i64(seed), v[0])])(index)
    np.testing.assert_array_equal(result, philox_reference(seed, index))


@pytest.mark.parametrize("width", [4, 8, 16, 32])
@pytest.mark.parametrize("first", [0, 4, 1 << 33, (1 << 34) - 8])
def test_four_vectors_at_once(first: int, width: int) -> None:
    seed = -12345678901234

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        return uniform4(e, e.i64(seed), e.lane(v[0]))

    results = compile_host(width, ["i64"], body)(np.full(width, first))
    expected = philox_reference(seed, first + np.arange(4 * width))
    np.testing.assert_array_equal(np.concatenate(results), expected)


@pytest.mark.parametrize("width", [4, 8])
def test_four_vectors_that_start_before_the_tensor(width: int) -> None:
    first = -2 * width

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        return uniform4(e, e.i64(7), e.lane(v[0]))

    results = np.concatenate(compile_host(width, ["i64"], body)(np.full(width, first)))
    expected = philox_reference(7, np.arange(2 * width))
    np.testing.assert_array_equal(results[-first:], expected)


@pytest.mark.parametrize(
    "triple, cpu", [("x86_64-linux-gnu", "haswell"), ("aarch64-linux-gnu", "neoverse-n1")]
)
def test_other_hosts_can_select_it(triple: str, cpu: str) -> None:
    def body(e: Emitter, v: list[Value]) -> list[Value]:
        seed = e.lane(v[0])
        return [uniform(e, seed, v[0]), *uniform4(e, seed, seed)]

    text = assembly(8, ["i64"], body, triple, cpu)
    assert ("umull" if "aarch64" in triple else "vpmuludq") in text
