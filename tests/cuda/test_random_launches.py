"""Kernels of random programs are compiled for a GPU and launched, with arguments that fit: the stub
runs nothing, so what they compute is the emulator's to test."""

from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("triton")

from hemstitch.driver.gpu_kernels import likely_sizes
from hemstitch.ir.dims import evaluate
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES
from hemstitch.targets.gpu.description import generic_gpu
from hemstitch.toolchain.triton_signature import signature
from tests.compiled import plan_for
from tests.cuda import steps
from tests.lowered import optimize, triton
from tests.programs import Program


@pytest.mark.parametrize("seed", range(12))
def test_they_compile_and_get_their_arguments(seed, driver):
    random = Random(seed)
    program = Program(
        random,
        steps=random.randint(2, 10),
        symbolic=seed % 3 == 0,
        empty=seed % 6 == 5,
        scattering=seed % 4 == 1,
    )
    graph = optimize(program.graph, program.builder)
    for step in plan_for(graph, generic_gpu()).kernels:
        printed = triton(step.stitched.kernel, step.groups[0].hint, steps.PROGRAMS)
        sizes = likely_sizes(step, printed)
        values = {str(name): size for name, size in zip(printed.sizes, sizes)}
        zeros = driver.device().zeros
        given = [
            zeros(2 * evaluate(buffer.size, values) + 4).view(TORCH_DTYPES[buffer.dtype])
            for buffer in printed.parameters
        ]
        types = list(signature(printed).values())
        driver.expect(types)
        driver.forget()
        steps.launcher_of(printed, driver)(*given, *sizes, 0)
        tiles = evaluate(printed.tiles, values)
        assert len(driver.seen) == (tiles > 0)
        for seen in driver.seen:
            assert 0 < seen.grid[0] <= tiles and seen.cooperative == (printed.barriers > 0)
            addresses = tuple(tensor.data_ptr() for tensor in given)
            assert seen.arguments[: len(given)] == addresses
            assert seen.arguments[len(types) - len(sizes) :] == sizes
            assert all(seen.arguments[: len(types) - len(sizes)])
