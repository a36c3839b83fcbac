"""Random numbers are those of Philox, bit for bit, and the last step differs from ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from hemstitch.ir.philox import philox_reference, philox_words
from testing.emulator import emulate
from tests.emulator import kernels

SEED, FIRST, BLOCK = 0x123456789ABCDEF, 2**31 - 100, 64


def run() -> tuple[torch.Tensor, np.ndarray]:
    uniform, raw = torch.empty(BLOCK), torch.empty(BLOCK, 4, dtype=torch.uint32)
    emulate(
        kernels.uniform,
        1,
        {"out": uniform, "raw": raw, "seed": SEED, "first": FIRST, "BLOCK": BLOCK},
    )
    return uniform, raw.numpy()


def test_the_words_are_those_of_philox() -> None:
    counter = np.arange(FIRST, FIRST + BLOCK).astype(np.uint64)
    zero = np.zeros_like(counter)
    expected = philox_words([counter, zero, zero, zero], (SEED & 0xFFFFFFFF, SEED >> 32))
    assert (run()[1] == np.stack(expected, 1)).all()


def test_our_uniforms_are_the_upper_bits_of_the_words() -> None:
    raw = run()[1]
    indices = np.arange(4 * FIRST, 4 * (FIRST + BLOCK))
    ours = (raw >> 8).astype(np.float32) * np.float32(2.0**-24)
    assert (ours.reshape(-1) == philox_reference(SEED, indices)).all()


def test_the_uniforms_of_triton_fold_the_sign_instead() -> None:
    uniform, raw = run()
    word = raw[:, 0].view(np.int32)
    folded = np.where(word < 0, -word - 1, word).astype(np.float32) * np.float32(4.6566127342e-10)
    assert (uniform.numpy() == folded).all()
    assert (uniform.numpy() != (raw[:, 0] >> 8).astype(np.float32) * np.float32(2.0**-24)).any()
