"""Kernels of processors: printed, compiled, loaded. Takes the kernels of a plan, gives what makes a
launch of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from hashlib import sha256

from hemstitch.codegen.llvm.kernel import Program, print_kernel
from hemstitch.codegen.llvm.streams import streamed
from hemstitch.fusion.plan import KernelStep
from hemstitch.kernel.blocked import USUAL, Blocking
from hemstitch.kernel.nodes import Buffer, Kernel
from hemstitch.kernel.placement import LINE
from hemstitch.options import Options
from hemstitch.runtime import jit, objects
from hemstitch.runtime.assemble import Launch
from hemstitch.runtime.helpers import Helpers, may_start
from hemstitch.runtime.remembered import folder
from hemstitch.runtime.sealed import is_kept, machine_code
from hemstitch.runtime.tune import Tuner

Compile = Callable[[str], bytes]
LOADED: dict[bytes, jit.Entry] = {}  # by what they were compiled from, the last used last
MOST_KEPT = 512
FEW = 8  # kernels that are compiled before a helper has started
MOST_HELPERS = 8  # on many cores; each takes 13 MB of its own, and 0.1 s to start


@contextmanager
def native(
    kernels: Sequence[KernelStep], options: Options
) -> Iterator[Callable[[KernelStep], Launch]]:
    """While it is open, helpers compile what is printed already. There are none for few kernels,
    none while kernels are timed, nor in the background, where the program needs the threads."""
    printed = _Printed()
    if len(kernels) < FEW or options.tune or options.asynchronous or not may_start():
        tuner = Tuner(folder("tuned")) if options.tune else None
        yield partial(_launch, _compile(options, objects.compiled), printed, tuner)
        return
    with closing(Helpers(min(jit.threads_now(), MOST_HELPERS), objects.compiled)) as helpers:
        for step in kernels:
            with suppress(Exception):  # it fails again when it has its turn, and is told
                _begin(printed.program(step).text, helpers, options.cache)
        yield partial(_launch, _compile(options, helpers.compiled), printed, None)


def _compile(options: Options, compile_: Compile) -> Compile:
    return partial(machine_code, compile_=compile_) if options.cache else compile_


def _begin(text: str, helpers: Helpers, cache: bool) -> None:
    is_known = _hash(text) in LOADED or (cache and is_kept(text))
    if not is_known:
        helpers.begin(text)


class _Printed:
    """The programs of a plan. Kernels of one kind have the very same phases (`fusion/trial.py`),
    and are printed once."""

    def __init__(self) -> None:
        self._programs: dict[tuple[int, int, frozenset[Buffer]], Program] = {}

    def program(self, step: KernelStep) -> Program:
        kernel, streams = step.stitched.kernel, _streams(step)
        key = id(kernel.buffers), id(kernel.phases), streams
        if key not in self._programs:
            self._programs[key] = program_of(step)
        return self._programs[key]


def _launch(compile_: Compile, printed: _Printed, tuner: Tuner | None, step: KernelStep) -> Launch:
    program = printed.program(step) if tuner is None else program_of(step, tuner.blocking(step))
    entry = _loaded(program.text, program.entry, compile_)
    stitched = step.stitched
    return Launch(entry, stitched.tensors, program.sizes, program.scratch_bytes, stitched.places)


def _loaded(text: str, entry: str, compile_: Compile) -> jit.Entry:
    """Machine code is shared by all graphs of the process that need the same. Of a text, ten times
    as long, nothing is kept but its hash."""
    key = _hash(text)
    found = LOADED.pop(key, None) or jit.load(compile_(text), entry)
    LOADED[key] = found
    while len(LOADED) > MOST_KEPT:
        LOADED.pop(next(iter(LOADED)), None)
    return found


def _hash(text: str) -> bytes:
    return sha256(text.encode()).digest()


def program_of(step: KernelStep, blocking: Blocking = USUAL) -> Program:
    """Machine-independent of the kernel's name, so that equal kernels are compiled once."""
    kernel = step.stitched.kernel
    nameless = Kernel("kernel", kernel.buffers, kernel.phases)
    return print_kernel(nameless, jit.host_target(), blocking, _streams(step))


def _streams(step: KernelStep) -> frozenset[Buffer]:
    """Of the tensors that are allocated for this graph: where others begin, only a call knows."""
    stitched = step.stitched
    places = stitched.places or (0,) * len(stitched.tensors)
    aligned = [
        buffer
        for buffer, tensor, place in zip(stitched.kernel.parameters, stitched.tensors, places)
        if not (tensor.is_argument or tensor.is_result) and place * buffer.dtype.bytes % LINE == 0
    ]
    sizes = {**step.groups[0].hints, "threads": jit.threads_now()}
    return streamed(stitched.kernel, aligned, sizes)
