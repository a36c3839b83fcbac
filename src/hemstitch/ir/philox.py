"""The random numbers of `Op.PHILOX`, in NumPy: takes a seed and linear indices, gives uniforms.

Philox4x32-7 (Salmon et al. 2011), the fewest rounds that pass all of BigCrush. Element i is word
i % 4 of the output for counter i // 4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 7

Words = list[npt.NDArray[np.uint64]]
_WORD, _MASK = np.uint64(32), np.uint64(0xFFFFFFFF)


def philox_words(counter: Words, key: tuple[int, int]) -> Words:
    """The four output words for four counter words; each array holds 32-bit words."""
    words = list(counter)
    low_key, high_key = key
    for _ in range(ROUNDS):
        products = [words[2 * k] * np.uint64(MULTIPLIERS[k]) for k in range(2)]
        words = [
            (products[1] >> _WORD) ^ words[1] ^ np.uint64(low_key),
            products[1] & _MASK,
            (products[0] >> _WORD) ^ words[3] ^ np.uint64(high_key),
            products[0] & _MASK,
        ]
        low_key = (low_key + KEY_STEPS[0]) & 0xFFFFFFFF
        high_key = (high_key + KEY_STEPS[1]) & 0xFFFFFFFF
    return words


def philox_reference(seed: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Uniform in [0, 1), of the shape of `indices`."""
    index = indices.astype(np.uint64)
    counter = index >> np.uint64(2)
    zero = np.zeros_like(counter)
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    words = philox_words([counter & _MASK, counter >> _WORD, zero, zero], key)
    chosen = np.choose((index & np.uint64(3)).astype(np.int64), words)
    return ((chosen >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)).astype(np.float32)
