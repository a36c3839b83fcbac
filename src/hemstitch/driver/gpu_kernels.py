"""GPU kernels: compiles the kernels of a plan in parallel, and gives a launch of each."""

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
    """`index`: of the device, the current one if None. Each thread waits for a worker process
    (`toolchain/triton_workers.py`). There are none for a single kernel, while kernels are timed, or
    in the background, where the program needs the threads."""
    index = current_index(options.target) if index is None else index
    build_launch = partial(
        launch_of, index=index, kind=options.target, tune=options.tune, cache=options.cache
    )
    first = {id(step.stitched.kernel.phases): step for step in reversed(kernels)}
    if len(first) < 2 or options.tune or options.asynchronous:
        yield build_launch
        return
    with CODE_GENERATOR, ThreadPoolExecutor(min(threads_now(), MOST_THREADS)) as pool:
        # Kernels of one kind share their phases (`planning/trials.py`). The first one is compiled,
        # the others find its machine code in Triton's cache.
        futures: dict[int, Future[Launch]] = {
            id(step.stitched.kernel): pool.submit(build_launch, step)
            for step in reversed(first.values())
        }

        def launch(step: KernelStep) -> Launch:
            future = futures.get(id(step.stitched.kernel))
            return build_launch(step) if future is None else future.result()

        try:
            yield launch
        finally:
            pool.shutdown(cancel_futures=True)


def launch_of(
    step: KernelStep,
    index: int | None = None,
    kind: str = "cuda",
    tune: bool = False,
    cache: bool = False,
) -> Launch:
    """`index`: of the device of its tensors, the current one if None; `kind`: its type. A
    call with tensors of another device compiles for that one. `tune`: time several candidates now.
    `cache`: failures to compile are recorded for later processes.
    Raises KernelBuildError.
    """
    find = partial(device_of, kind)
    first = find(current_index(kind) if index is None else index)
    kernel = step.stitched.kernel
    # The name has no number of the plan, so that equal kernels are compiled once.
    name = f"stitched{_NUMBER.sub('', kernel.name)}"
    lowering = GPULowering(step.groups[0].hint, first.processors)
    programs = candidates(replace(kernel, name=name), lowering)
    make = partial(Launcher, find=find, cache=cache)
    extents = [tensor.extent(step.groups[0].hint) for tensor in step.stitched.tensors]
    sizes_of = partial(likely_sizes, step)
    program = best(programs, sizes_of, extents, first, tune, make, folder("tuned"))
    launcher = make(program)
    launcher.prepare(first.index, likely_sizes(step, program))
    return Launch(launcher, step.stitched.tensors, program.sizes, 0, step.stitched.places)


def likely_sizes(step: KernelStep, program: TritonProgram) -> tuple[int, ...]:
    """The sizes of the example arguments."""
    return tuple(map(step.groups[0].hint, program.sizes))


def candidates(kernel: Kernel, lowering: GPULowering) -> Iterator[TritonProgram]:
    """Distinct programs of the kernel with several tile shapes; the default shape first."""
    printed: set[tuple[str, int]] = set()
    kernel = run_stages(stages_to(GPU, KERNEL), kernel, lowering)
    for shape in tiling.CANDIDATES:
        program = run_stages(stages_to(GPU, TEXT), kernel, replace(lowering, shape=shape))
        if (program.text, program.warps) not in printed:
            printed.add((program.text, program.warps))
            yield program
