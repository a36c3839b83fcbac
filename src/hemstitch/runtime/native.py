"""Kernels of processors: printed, compiled, loaded. Takes the kernels of a plan, gives what makes a
launch of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from hemstitch.codegen.llvm.kernel import LLVMProgram, print_kernel
from hemstitch.codegen.llvm.streams import streamed
from hemstitch.fusion.plan import KernelStep
from hemstitch.ir.dims import Dim
from hemstitch.ir.parser import parse_dim
from hemstitch.kernel.blocked import USUAL, Blocking
from hemstitch.kernel.key import digest
from hemstitch.kernel.nodes import Buffer, Kernel
from hemstitch.kernel.placement import LINE
from hemstitch.options import Options
from hemstitch.runtime import jit
from hemstitch.runtime.assemble import Launch
from hemstitch.runtime.helpers import Helpers
from hemstitch.runtime.killed import end_of, unless_killed
from hemstitch.runtime.remembered import compiler, folder
from hemstitch.runtime.sealed import is_kept, machine_code
from hemstitch.runtime.tune import Tuner

Compile = Callable[[str], bytes]
MOST_KEPT = 512
FEW = 8  # kernels that are compiled before a second helper has started
MOST_HELPERS = 8  # on many cores; each takes 13 MB of its own, and 0.1 s to start


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """Machine code, and what a launch of it needs besides tensors."""

    entry: jit.Entry
    sizes: tuple[Dim, ...]
    scratch_bytes: Dim


LOADED: dict[str, NativeKernel] = {}  # by the kernels' keys, the last used last


@contextmanager
def native(
    kernels: Sequence[KernelStep], options: Options
) -> Iterator[Callable[[KernelStep], Launch]]:
    """While it is open, helpers compile what is printed already: one for few kernels. Nothing is
    begun while kernels are timed, nor in the background, where the program needs the threads."""
    known = _KnownKernels(options.cache)
    tuner = Tuner(folder("tuned")) if options.tune else None
    is_ahead = not (options.tune or options.asynchronous)
    most = min(jit.threads_now(), MOST_HELPERS) if is_ahead and len(kernels) >= FEW else 1
    with closing(Helpers(most)) as helpers:
        for step in kernels if is_ahead else ():
            with suppress(Exception):  # it fails again when it has its turn, and is told
                known.begin(step, helpers)
        yield partial(known.launch, helpers.compiled, tuner)


@dataclass(slots=True)
class _KnownKernels:
    """What is known of a plan's kernels: their keys, and of those that are printed the programs.
    Kernels of one kind have the very same phases (`fusion/trial.py`), and are asked about once.
    `cache`: machine code may come from disk, and is left there."""

    cache: bool
    _keys: dict[tuple[tuple[int, int], frozenset[Buffer], Blocking], str] = field(
        default_factory=dict
    )
    _programs: dict[str, LLVMProgram] = field(default_factory=dict)

    def begin(self, step: KernelStep, helpers: Helpers) -> None:
        key = self._key(step, USUAL)
        is_known = key in LOADED or (self.cache and is_kept(key))
        if not (is_known or end_of(_with_processor(key), cache=self.cache)):
            helpers.begin(self._program(key, step, USUAL).text)

    def launch(self, compile_: Compile, tuner: Tuner | None, step: KernelStep) -> Launch:
        blocking = USUAL if tuner is None else tuner.blocking(step)
        key, stitched = self._key(step, blocking), step.stitched
        loaded = LOADED.pop(key, None)
        if loaded is None:
            own = partial(self._compiled, key, step, blocking, compile_)
            make = partial(unless_killed, _with_processor(key), own, cache=self.cache)
            loaded = _load(machine_code(key, make) if self.cache else make())
        LOADED[key] = loaded
        while len(LOADED) > MOST_KEPT:
            LOADED.pop(next(iter(LOADED)), None)
        sizes, scratch = loaded.sizes, loaded.scratch_bytes
        return Launch(loaded.entry, stitched.tensors, sizes, scratch, stitched.places)

    def _key(self, step: KernelStep, blocking: Blocking) -> str:
        """Of all that its program depends on, not the processor."""
        kernel, streams = step.stitched.kernel, _streams(step, jit.threads_now())
        kind = kernel.kind, streams, blocking
        if kind not in self._keys:
            past = tuple(buffer in streams for buffer in kernel.buffers)
            rest = jit.host_target(), blocking, compiler()
            self._keys[kind] = digest(kernel.buffers, kernel.phases, past, *rest)
        return self._keys[kind]

    def _program(self, key: str, step: KernelStep, blocking: Blocking) -> LLVMProgram:
        if key not in self._programs:
            self._programs[key] = program_of(step, jit.threads_now(), blocking)
        return self._programs[key]

    def _compiled(self, key: str, step: KernelStep, blocking: Blocking, compile_: Compile) -> bytes:
        """A line about the launch, and an object file behind it."""
        program = self._program(key, step, blocking)
        head = [program.entry, str(program.scratch_bytes), *map(str, program.sizes)]
        return json.dumps(head).encode() + b"\n" + compile_(program.text)


def _with_processor(key: str) -> str:
    return f"{jit.processor()}\n{key}"


def _load(content: bytes) -> NativeKernel:
    head, _, code = content.partition(b"\n")
    entry, scratch_bytes, *sizes = json.loads(head)
    return NativeKernel(
        jit.load(code, entry), tuple(map(parse_dim, sizes)), parse_dim(scratch_bytes)
    )


def program_of(step: KernelStep, threads: int, blocking: Blocking = USUAL) -> LLVMProgram:
    """Independent of the kernel's name, so that equal kernels are compiled once. `threads`: as many
    as torch would use."""
    kernel = step.stitched.kernel
    nameless = Kernel("kernel", kernel.buffers, kernel.phases)
    return print_kernel(nameless, jit.host_target(), blocking, _streams(step, threads))


def _streams(step: KernelStep, threads: int) -> frozenset[Buffer]:
    """Of the tensors that are allocated for this graph: where others begin, only a call knows."""
    stitched = step.stitched
    places = stitched.places or (0,) * len(stitched.tensors)
    aligned = [
        buffer
        for buffer, tensor, place in zip(stitched.kernel.parameters, stitched.tensors, places)
        if not (tensor.is_argument or tensor.is_result) and place * buffer.dtype.bytes % LINE == 0
    ]
    sizes = {**step.groups[0].hints, "threads": threads}
    return streamed(stitched.kernel, aligned, sizes)
