"""Loads and stores for every type, stride and mask; masked-off lanes touch no memory."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
import torch

from hemstitch.ir.types import DType
from hemstitch.targets.cpu.conversions import COMPUTE
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.memory import STORAGE, gather, load, scatter, store
from tests.targets.vector_harness import array_pointer, assembly, compile_host

TORCH = {
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
}
STRIDES = [0, 1, 2, -3, "dynamic"]
WIDTHS = [4, 16, 32]
SHARES = [None, 0.6, 1.0]  # of lanes that are loaded or stored; None: without a mask


def numbers(dtype: DType, count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_float:
        return (torch.randn(count, generator=generator) * 100).to(TORCH[dtype])
    low, high = (0, 2) if dtype is DType.BOOL else (0 if dtype is DType.U8 else -100, 100)
    return torch.randint(low, high, (count,), generator=generator).to(TORCH[dtype])


def raw(x: torch.Tensor) -> np.ndarray:
    return x.view(torch.uint8).numpy()


def computed(x: torch.Tensor) -> np.ndarray:
    return (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).numpy()


def element_stride(e: Emitter, stride: int | str, spare: Value) -> Value | int:
    """ "dynamic" is 5 as far as anyone can see who compiles it."""
    return e.lane(spare) if isinstance(stride, str) else stride


def advance(e: Emitter, dtype: DType, pointer: Value, elements: int) -> Value:
    return e.define("ptr", f"getelementptr {STORAGE[dtype]}, {pointer}, i64 {elements}")


@pytest.mark.parametrize("masked", SHARES)
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_load(dtype: DType, stride: int | str, masked: float | None) -> None:
    for width in WIDTHS:
        source = numbers(dtype, 512, width)
        mask = np.random.default_rng(width).random(width) < (masked or 0)

        def body(e: Emitter, v: list[Value]) -> list[Value]:
            pointer = advance(e, dtype, array_pointer(e, 10), 128)
            step = element_stride(e, stride, v[1])
            return [load(e, dtype, pointer, step, v[0] if masked else None)]

        function = compile_host(width, ["i1", "i64"], body)
        (result,) = function(mask, np.full(width, 5), raw(source), n=width)
        step = 5 if isinstance(stride, str) else stride
        expected = computed(source)[128 + step * np.arange(width)]
        expected = np.where(mask, expected, 0) if masked else expected
        np.testing.assert_array_equal(result.view(computed(source).dtype), expected)


@pytest.mark.parametrize("masked", SHARES)
@pytest.mark.parametrize("stride", STRIDES[1:])
@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_store(dtype: DType, stride: int | str, masked: float | None) -> None:
    for width in WIDTHS:
        values = numbers(dtype.compute, width, width)
        if dtype.compute is DType.F32:
            values[:4] = torch.tensor([torch.nan, 3e-40, 65519.99, -torch.inf])
        target = numbers(dtype, 512, 1)
        values = values.to(target.dtype).to(values.dtype)  # what is to be stored is rounded already
        mask = np.random.default_rng(width).random(width) < (masked or 0)

        def body(e: Emitter, v: list[Value]) -> list[Value]:
            pointer = advance(e, dtype, array_pointer(e, 11), 128)
            step = element_stride(e, stride, v[1])
            store(e, dtype, pointer, step, v[2], v[0] if masked else None)
            return []

        step = 5 if isinstance(stride, str) else stride
        places = torch.arange(width)[torch.from_numpy(mask)] if masked else torch.arange(width)
        expected = target.clone()
        expected[128 + step * places] = values[places].to(target.dtype)
        function = compile_host(width, ["i1", "i64", COMPUTE[dtype]], body)
        function(mask, np.full(width, 5), values.numpy(), raw(target), n=width)
        np.testing.assert_array_equal(computed(target), computed(expected))  # NaN is NaN


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_gather_and_scatter(dtype: DType, masked: bool) -> None:
    """target[order] = source[index], lane by lane."""
    for width in WIDTHS:
        random = np.random.default_rng(width)
        source, target = numbers(dtype, 100, 0), numbers(dtype, 100, 1)
        index, order = random.integers(0, 100, width), random.permutation(100)[:width]
        mask = random.random(width) < 0.6 if masked else np.ones(width, bool)

        def body(e: Emitter, v: list[Value]) -> list[Value]:
            condition = v[0] if masked else None
            value = gather(e, dtype, array_pointer(e, 11), v[1], condition)
            scatter(e, dtype, array_pointer(e, 12), v[2], value, condition)
            return []

        expected = target.clone()
        expected[order[mask]] = source[index[mask]]
        function = compile_host(width, ["i1", "i64", "i64"], body)
        function(mask, index, order, raw(source), raw(target), n=width)
        np.testing.assert_array_equal(raw(target), raw(expected))


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("dtype", [DType.BOOL, DType.BF16, DType.F32, DType.F64], ids=str)
def test_masked_off_lanes_touch_nothing(dtype: DType, stride: int | str) -> None:
    """Reading or writing address 8 would end the test run."""

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        nowhere = e.define("ptr", f"inttoptr {e.lane(v[1])} to ptr")
        step = element_stride(e, stride, v[1])
        value = load(e, dtype, nowhere, step, v[0])
        if stride != 0:
            store(e, dtype, nowhere, step, value, v[0])
        return [value]

    for width in WIDTHS:
        function = compile_host(width, ["i1", "i64"], body)
        (result,) = function(np.zeros(width, bool), np.full(width, 8))
        assert not result.any()


def test_a_tail_may_end_where_memory_ends() -> None:
    """The last 3 elements of a page whose successor is out of bounds."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    both = np.frombuffer(pages, np.float32)
    memory, _ = np.split(both, 2)
    memory[:] = np.arange(len(memory))
    c = ctypes.CDLL(None)
    second = ctypes.c_void_p(both.ctypes.data + mmap.PAGESIZE)
    count, mask = len(memory), np.arange(16) < 3

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        pointer = advance(e, DType.F32, array_pointer(e, 9), count - 3)
        value = load(e, DType.F32, pointer, 1, v[0])
        store(e, DType.F32, pointer, 1, e.fneg(value), v[0])
        return [value]

    function = compile_host(16, ["i1"], body)
    assert c.mprotect(second, mmap.PAGESIZE, 0) == 0
    try:
        (result,) = function(mask, memory, n=16)
    finally:
        c.mprotect(second, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
    np.testing.assert_array_equal(result, np.where(mask, count - 3 + np.arange(16), 0))
    np.testing.assert_array_equal(memory[-4:], [count - 4, 3 - count, 2 - count, 1 - count])


def test_every_second_element_may_end_where_memory_ends() -> None:
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    both = np.frombuffer(pages, np.float32)
    memory, _ = np.split(both, 2)
    memory[:] = np.arange(len(memory))
    c = ctypes.CDLL(None)
    second = ctypes.c_void_p(both.ctypes.data + mmap.PAGESIZE)

    def body(e: Emitter, v: list[Value]) -> list[Value]:
        whole = advance(e, DType.F32, array_pointer(e, 9), len(memory) - 31)
        part = advance(e, DType.F32, array_pointer(e, 9), len(memory) - 5)
        return [load(e, DType.F32, whole, 2, None), load(e, DType.F32, part, 2, v[0])]

    function = compile_host(16, ["i1"], body)
    assert c.mprotect(second, mmap.PAGESIZE, 0) == 0
    try:
        whole, part = function(np.arange(16) < 3, memory, n=16)
    finally:
        c.mprotect(second, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
    np.testing.assert_array_equal(whole, memory[-31::2])
    np.testing.assert_array_equal(part, [*memory[-5::2], *np.zeros(13)])


@pytest.mark.parametrize(
    "triple, cpu", [("x86_64-linux-gnu", "haswell"), ("aarch64-linux-gnu", "neoverse-n1")]
)
def test_other_hosts_can_select_everything(triple: str, cpu: str) -> None:
    for dtype in TORCH:

        def body(e: Emitter, v: list[Value], dtype: DType = dtype) -> list[Value]:
            pointer = array_pointer(e, 8)
            for mask in (None, v[0]):
                value = load(e, dtype, pointer, 0, mask)
                for stride in (1, 2, e.lane(v[1])):
                    value = load(e, dtype, pointer, stride, mask)
                    store(e, dtype, pointer, stride, value, mask)
                scatter(e, dtype, pointer, v[1], value, mask)
            return []

        assert "ret" in assembly(8, ["i1", "i64"], body, triple, cpu)
