"""CPU kernels: lowers, compiles and loads the kernels of a plan, and gives a launch of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hemstitch.cache.crashes import compile_unless_crashed, crash_of
from hemstitch.cache.machine_code import is_cached, machine_code
from hemstitch.cache.records import folder, source_digest
from hemstitch.ir.dims import Dim
from hemstitch.ir.parser import parse_dim
from hemstitch.kernel_ir.digest import digest
from hemstitch.kernel_ir.nodes import Buffer, Kernel
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.matmul.lowering.blocking import USUAL, Blocking
from hemstitch.measure.matmul_tuner import Tuner
from hemstitch.options import Options
from hemstitch.pipeline import CPU_LOWERING, run_stages, snapshots, stages_before
from hemstitch.planning.plan import KernelStep
from hemstitch.runtime.assembly import Launch
from hemstitch.targets.cpu.description import CPULowering
from hemstitch.targets.cpu.kernel import LLVMProgram
from hemstitch.toolchain import jit
from hemstitch.toolchain.llvm_workers import Helpers

Compile = Callable[[str], bytes]
MOST_LOADED = 512
FEW_KERNELS = 8  # are compiled before a second helper has started
MOST_HELPERS = 8  # each takes 13 MB, and 0.1 s to start


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """Machine code, with the sizes and the scratch that its launches need."""

    entry: jit.Entry
    sizes: tuple[Dim, ...]
    scratch_bytes: Dim


LOADED: dict[str, NativeKernel] = {}  # by key, least recently used first


@contextmanager
def cpu_launches(
    kernels: Sequence[KernelStep], options: Options
) -> Iterator[Callable[[KernelStep], Launch]]:
    """A context in which helpers compile kernels in parallel; a plan of few kernels has one helper.
    Nothing is compiled ahead while kernels are timed, nor in the background, where the program
    needs the threads."""
    known = _KnownKernels(options.cache, options.check)
    tuner = Tuner(folder("tuned")) if options.tune else None
    compiles_ahead = not (options.tune or options.asynchronous)
    most = (
        min(jit.threads_now(), MOST_HELPERS)
        if compiles_ahead and len(kernels) >= FEW_KERNELS
        else 1
    )
    with closing(Helpers(most)) as helpers:
        for step in kernels if compiles_ahead else ():
            with suppress(Exception):  # it fails again in its own launch, which reports it
                known.begin(step, helpers)
        yield partial(known.launch, helpers.compiled, tuner)


@dataclass(slots=True)
class _KnownKernels:
    """Caches of a plan's kernels: their keys, and the programs of those that were printed. Kernels
    of one kind share their phases (`planning/trials.py`) and therefore one key. `cache`: machine
    code is cached on disk; `check`: as in `program_of`. Beside a key is its kernel, since a kind is
    valid only as long as that exists."""

    cache: bool
    check: bool
    _keys: dict[tuple[tuple[int, int], frozenset[Buffer], Blocking], tuple[str, Kernel]] = field(
        default_factory=dict
    )
    _programs: dict[str, LLVMProgram] = field(default_factory=dict)

    def begin(self, step: KernelStep, helpers: Helpers) -> None:
        key = self._key(step, USUAL)
        is_known = key in LOADED or (self.cache and is_cached(_with_processor(key)))
        if not (is_known or crash_of(_with_processor(key), cache=self.cache)):
            helpers.begin(self._program(key, step, USUAL).text)

    def launch(self, compile_: Compile, tuner: Tuner | None, step: KernelStep) -> Launch:
        blocking = USUAL if tuner is None else tuner.blocking(step)
        key, stitched = self._key(step, blocking), step.stitched
        loaded = LOADED.pop(key, None)
        if loaded is None:
            compile_now = partial(self._compiled, key, step, blocking, compile_)
            make = partial(
                compile_unless_crashed, _with_processor(key), compile_now, cache=self.cache
            )
            loaded = _load(machine_code(_with_processor(key), make) if self.cache else make())
        LOADED[key] = loaded
        while len(LOADED) > MOST_LOADED:
            LOADED.pop(next(iter(LOADED)), None)
        sizes, scratch = loaded.sizes, loaded.scratch_bytes
        return Launch(loaded.entry, stitched.tensors, sizes, scratch, stitched.places)

    def _key(self, step: KernelStep, blocking: Blocking) -> str:
        """A digest of all that its program depends on, except the processor."""
        kernel, lowering = step.stitched.kernel, lowering_of(step, jit.threads_now(), blocking)
        kernel = run_stages(stages_before(CPU_LOWERING, "hoist loop invariants"), kernel, lowering)
        kind = kernel.kind, kernel.non_temporal, blocking
        if kind not in self._keys:
            is_non_temporal = tuple(buffer in kernel.non_temporal for buffer in kernel.buffers)
            rest = lowering.target, blocking, source_digest()
            key = digest(kernel.buffers, kernel.phases, is_non_temporal, *rest)
            self._keys[kind] = key, kernel
        return self._keys[kind][0]

    def _program(self, key: str, step: KernelStep, blocking: Blocking) -> LLVMProgram:
        if key not in self._programs:
            self._programs[key] = program_of(step, jit.threads_now(), blocking, self.check)
        return self._programs[key]

    def _compiled(self, key: str, step: KernelStep, blocking: Blocking, compile_: Compile) -> bytes:
        """A header line about the launch, followed by the object file."""
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


def program_of(
    step: KernelStep, threads: int, blocking: Blocking = USUAL, check: bool = False
) -> LLVMProgram:
    """The kernel's LLVM text. It does not depend on the kernel's name, so that equal kernels are
    compiled once. `threads`: as many as torch would use. `check`: verify after each stage."""
    *_, (_, program) = stages_of(step, threads, blocking, check)
    assert isinstance(program, LLVMProgram)
    return program


def stages_of(
    step: KernelStep, threads: int, blocking: Blocking = USUAL, check: bool = False
) -> Iterator[tuple[str, Any]]:
    """The name and the output of each lowering stage: kernels, then an LLVMProgram."""
    kernel = replace(step.stitched.kernel, name="kernel")
    return snapshots(CPU_LOWERING, kernel, lowering_of(step, threads, blocking), check)


def lowering_of(step: KernelStep, threads: int, blocking: Blocking = USUAL) -> CPULowering:
    """Only tensors that this graph allocates are known to be aligned."""
    stitched = step.stitched
    places = stitched.places or (0,) * len(stitched.tensors)
    aligned = frozenset(
        buffer
        for buffer, tensor, place in zip(stitched.kernel.parameters, stitched.tensors, places)
        if not (tensor.is_argument or tensor.is_result)
        and place * buffer.dtype.bytes % CPU.line_bytes == 0
    )
    sizes = {**step.groups[0].hints, "threads": threads}
    return CPULowering(jit.host_target(), blocking, aligned, sizes)
