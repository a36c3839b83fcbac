"""The kernels of a plan, compiled side by side before the first one is asked for. Takes the steps,
gives what makes a launch of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from hemstitch.fusion.plan import KernelStep
from hemstitch.options import Options
from hemstitch.runtime.assemble import Launch
from hemstitch.runtime.background import CODE_GENERATOR
from hemstitch.runtime.cuda.device import current_index
from hemstitch.runtime.cuda.launch import launch_of
from hemstitch.runtime.jit import threads_now

MOST_THREADS = 16


@contextmanager
def launches(
    kernels: Sequence[KernelStep], options: Options, index: int | None
) -> Iterator[Callable[[KernelStep], Launch]]:
    """`index`: of the device, the current one if None. Threads, each of which waits for a worker
    process (`elsewhere.py`). None for one kernel, none while kernels are timed, nor in the
    background, where the program needs the threads."""
    index = current_index() if index is None else index
    one = partial(launch_of, index=index, tune=options.tune, cache=options.cache)
    first = {id(step.stitched.kernel.phases): step for step in reversed(kernels)}
    if len(first) < 2 or options.tune or options.asynchronous:
        yield one
        return
    with CODE_GENERATOR, ThreadPoolExecutor(min(threads_now(), MOST_THREADS)) as pool:
        # Of kernels of one kind, which share their phases (`fusion/trial.py`), the first compiles,
        # the others find its machine code in Triton's cache.
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
