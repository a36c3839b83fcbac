"""The kernels of a plan, compiled side by side before the first one is asked for. Takes the steps,
gives what makes a launch of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from hemstitch.cache.records import folder
from hemstitch.kernel_ir.nodes import Kernel
from hemstitch.measure.gpu_tuner import best
from hemstitch.options import Options
from hemstitch.pipeline import GPU, KERNEL, TEXT, run_stages, stages_to
from hemstitch.planning.plan import KernelStep
from hemstitch.runtime.assembly import Launch
from hemstitch.runtime.gpu.device import current_index, device_of
from hemstitch.runtime.gpu.launch import Launcher
from hemstitch.targets.gpu import tiling
from hemstitch.targets.gpu.description import GPULowering
from hemstitch.targets.gpu.kernel import TritonProgram
from hemstitch.toolchain.compile_lock import CODE_GENERATOR
from hemstitch.toolchain.jit import threads_now

_NUMBER = re.compile(r"^k\d+")
MOST_THREADS = 16


@contextmanager
def launches(
    kernels: Sequence[KernelStep], options: Options, index: int | None
) -> Iterator[Callable[[KernelStep], Launch]]:
    """`index`: of the device, the current one if None. Threads, each of which waits for a worker
    process (`toolchain/triton_workers.py`). None for one kernel, none while kernels are timed, nor
    in the background, where the program needs the threads."""
    index = current_index() if index is None else index
    one = partial(launch_of, index=index, tune=options.tune, cache=options.cache)
    first = {id(step.stitched.kernel.phases): step for step in reversed(kernels)}
    if len(first) < 2 or options.tune or options.asynchronous:
        yield one
        return
    with CODE_GENERATOR, ThreadPoolExecutor(min(threads_now(), MOST_THREADS)) as pool:
        # Of kernels of one kind, which share their phases (`planning/trials.py`), the first
        # compiles, the others find its machine code in Triton's cache.
        begun: dict[int, Future[Launch]] = {
            id(step.stitched.kernel): pool.submit(one, step) for step in reversed(first.values())
        }

        def launch(step: KernelStep) -> Launch:
            own = begun.get(id(step.stitched.kernel))
            return one(step) if own is None else own.result()

        try:
            yield launch
        finally:
            pool.shutdown(cancel_futures=True)


def launch_of(
    step: KernelStep, index: int | None = None, tune: bool = False, cache: bool = False
) -> Launch:
    """`index`: of the device whose tensors it will get, the current one if None. A call with
    tensors of another device compiles for that one. `tune`: time several candidates now. `cache`:
    later processes learn of what does not compile.

    Raises KernelBuildError.
    """
    first = device_of(current_index() if index is None else index)
    kernel = step.stitched.kernel
    # Without its number in the plan, so that equal kernels are compiled once.
    name = f"stitched{_NUMBER.sub('', kernel.name)}"
    lowering = GPULowering(step.groups[0].hint, first.processors)
    programs = candidates(replace(kernel, name=name), lowering)
    make = partial(Launcher, find=device_of, cache=cache)
    extents = [tensor.extent(step.groups[0].hint) for tensor in step.stitched.tensors]
    sizes_of = partial(likely_sizes, step)
    program = best(programs, sizes_of, extents, first, tune, make, folder("tuned"))
    launcher = make(program)
    launcher.prepare(first.index, likely_sizes(step, program))
    return Launch(launcher, step.stitched.tensors, program.sizes, 0, step.stitched.places)


def likely_sizes(step: KernelStep, program: TritonProgram) -> tuple[int, ...]:
    """Those of the example."""
    return tuple(map(step.groups[0].hint, program.sizes))


def candidates(kernel: Kernel, lowering: GPULowering) -> Iterator[TritonProgram]:
    """The kernel with tiles of several shapes, each different; the usual one first."""
    seen: set[tuple[str, int]] = set()
    kernel = run_stages(stages_to(GPU, KERNEL), kernel, lowering)
    for shape in tiling.CANDIDATES:
        program = run_stages(stages_to(GPU, TEXT), kernel, replace(lowering, shape=shape))
        if (program.text, program.warps) not in seen:
            seen.add((program.text, program.warps))
            yield program
