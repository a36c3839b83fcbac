"""The f32 vector functions against f64, over a sweep of bit patterns and special values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch

from hemstitch.ir.graph import Op
from hemstitch.targets.cpu.emitter import PORTABLE, Features
from hemstitch.targets.cpu.instruction_sets import AVX512, instruction_set_of
from hemstitch.targets.cpu.math32 import FUNCTIONS
from tests.targets.vector_harness import assembly, compile_host, pad

LIMITS = dict.fromkeys(FUNCTIONS, 2.0) | {Op.ERFC: 3.2, Op.TAN: 2.8}
BINARY = (Op.POW, Op.ATAN2, Op.FMOD)
COUNT = 1 << 18
SPECIAL = np.array(
    [
        *(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 0.75, 0.9277, 1e-45, 1e-40, 2.0**-126, 3e-8, 1e-4),
        *(np.pi / 4, np.pi / 2, np.pi, 355.0, 88.72284, 88.72, 87.33655, 103.9, 104.1, 89.4, 89.5),
        *(
            126.5,
            128.0,
            149.5,
            151.0,
            1e5,
            1e6,
            1e10,
            1e20,
            2.0**24,
            2.0**24 + 2,
            1e38,
            3.4028235e38,
        ),
        *(10.05, 10.5, 9.01, 16.6, 17.4, np.inf, np.nan),
    ],
    np.float32,
)
SPECIAL = np.concatenate([SPECIAL, -SPECIAL])


def random_floats(random: np.random.Generator, count: int) -> np.ndarray:
    return random.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)


def unary_inputs() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    spread = [random.standard_normal(COUNT) * scale for scale in (0.1, 1, 10, 1e4)]
    near_one = 1 + random.standard_normal(COUNT) * 0.2
    exponents = random.uniform(-105, 90, COUNT)  # all that exp gives, denormals too
    floats = [part.astype(np.float32) for part in (*spread, near_one, exponents)]
    step = (1 << 32) // (1 << 20)
    sweep = (np.arange(1 << 20, dtype=np.uint32) * step + random.integers(step)).astype(np.uint32)
    return [pad(np.concatenate([SPECIAL, *floats, sweep.view(np.float32)]), 16)]


def binary_inputs() -> list[np.ndarray]:
    random = np.random.default_rng(2)
    x, y = np.array(np.meshgrid(SPECIAL, SPECIAL), np.float32).reshape(2, -1)
    base = np.abs(random.standard_normal(COUNT) * 10).astype(np.float32)
    exponent = random.uniform(-60, 60, COUNT).astype(np.float32)
    near_one = (1 + random.standard_normal(COUNT) * 1e-3).astype(np.float32)
    first = [x, random_floats(random, COUNT), base, -base, near_one]
    second = [y, random_floats(random, COUNT), exponent, np.round(exponent), exponent * 1000]
    return [pad(np.concatenate(part), 16) for part in (first, second)]


def reference(op: Op, *arrays: np.ndarray) -> np.ndarray:
    function: Callable[..., torch.Tensor] = getattr(torch, op.value)
    return function(*(torch.from_numpy(array.astype(np.float64)) for array in arrays)).numpy()


def errors(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """In units of the last place of the exact value's f32; inf where NaN, inf or zero's sign is
    wrong. A result may overflow half a unit early or late."""
    rounded = exact.astype(np.float32)
    spacing = np.spacing(np.minimum(np.abs(rounded), np.float32(3.4028235e38))).astype(np.float64)
    error = np.abs(result.astype(np.float64) - exact) / spacing
    edge = np.abs(np.abs(exact) - 2.0**128) < 2.0**105
    infinite = np.isinf(rounded) | np.isinf(result)
    error = np.where(infinite, np.where((rounded == result) | edge, 0, np.inf), error)
    error = np.where(np.isnan(rounded) | np.isnan(result), np.inf, error)
    error = np.where(np.isnan(rounded) & np.isnan(result), 0, error)
    wrong_zero = (rounded == 0) & (np.signbit(rounded) != np.signbit(result))
    return np.where(wrong_zero, np.inf, error)


HAS_AVX512 = instruction_set_of("", llvm.get_host_cpu_features()).features.avx512
FEATURES = [PORTABLE, *[AVX512, replace(AVX512, fast_division=True)] * HAS_AVX512]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: op.value)
def test_accuracy(op: Op, features: Features) -> None:
    arrays = binary_inputs() if op in BINARY else unary_inputs()
    kinds = ["float"] * len(arrays)
    function = compile_host(16, kinds, lambda e, v: [FUNCTIONS[op](e, *v)], features=features)
    (result,) = function(*arrays)
    error = errors(result, reference(op, *arrays))
    worst = int(error.argmax())
    limit = 0 if op is Op.FMOD else LIMITS[op]
    assert error[worst] <= limit, f"{[x[worst] for x in arrays]} gives {result[worst]}"


def test_tanh_close_to_zero_is_right_to_a_rounding() -> None:
    """So that x - tanh(x) is what eager gives."""
    x = np.concatenate([np.linspace(1e-6, 0.5, COUNT), np.logspace(-40, -4, 1 << 14)])
    x = pad(np.concatenate([x, -x]).astype(np.float32), 16)
    tanh = compile_host(16, ["float"], lambda e, v: [FUNCTIONS[Op.TANH](e, *v)], features=PORTABLE)
    (result,) = tanh(x)
    assert errors(result, reference(Op.TANH, x)).max() <= 0.75
    tiny = np.abs(x) < 1e-4
    np.testing.assert_array_equal(result[tiny], x[tiny])


WIDTHS = [(32, PORTABLE), *((width, features) for width in (4, 8) for features in FEATURES)]


@pytest.mark.parametrize(("width", "features"), WIDTHS, ids=str)
@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: op.value)
def test_every_width_gives_the_same(op: Op, width: int, features: Features) -> None:
    random = np.random.default_rng(width)
    count = 2 if op in BINARY else 1
    values = np.concatenate([SPECIAL, random.standard_normal(1000).astype(np.float32)])
    arrays = [pad(random.permutation(values), 32) for _ in range(count)]
    kinds = ["float"] * count
    results = [
        compile_host(w, kinds, lambda e, v: [FUNCTIONS[op](e, *v)], w != 16, features)
        for w in (16, width)
    ]
    first, second = (function(*arrays)[0] for function in results)
    np.testing.assert_array_equal(first, second)


def test_bounded_functions_stay_in_bounds() -> None:
    random = np.random.default_rng(3)
    x = random_floats(random, 1 << 18)
    for op, low, high in ((Op.TANH, -1, 1), (Op.ERF, -1, 1), (Op.SIGMOID, 0, 1), (Op.ERFC, 0, 2)):
        (result,) = compile_host(16, ["float"], lambda e, v, op=op: [FUNCTIONS[op](e, *v)])(x)
        assert np.nanmin(result) >= low and np.nanmax(result) <= high
    (sine,) = compile_host(16, ["float"], lambda e, v: [FUNCTIONS[Op.SIN](e, *v)])(x)
    assert np.nanmax(np.abs(sine)) <= 1


TARGETS = [("x86_64-linux-gnu", "haswell"), ("aarch64-linux-gnu", "neoverse-n1")]


@pytest.mark.parametrize("triple, cpu", TARGETS)
def test_no_function_calls_a_library(triple: str, cpu: str) -> None:
    def everything(e, v):  # type: ignore[no-untyped-def]
        return [FUNCTIONS[op](e, *(v if op in BINARY else v[:1])) for op in FUNCTIONS]

    for width in (4, 8, 16):
        text = assembly(width, ["float", "float"], everything, triple, cpu)
        calls = [line for line in text.split("\n") if line.strip().startswith(("call", "bl\t"))]
        assert not calls
