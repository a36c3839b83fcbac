"""Machine code for many widths, numbers of threads and processors."""

from __future__ import annotations

from dataclasses import replace

import llvmlite.binding as llvm
import pytest
import torch

from hemstitch.driver import cpu_kernels as native
from hemstitch.targets.cpu import kernel as printer
from hemstitch.targets.cpu.description import Target
from hemstitch.targets.cpu.emitter import PORTABLE
from hemstitch.targets.cpu.instruction_sets import AVX512, instruction_set_of
from hemstitch.toolchain import jit
from hemstitch.toolchain import llvm_objects as objects

FEATURES = llvm.get_host_cpu_features()
TARGETS = [(4, 1, "host"), (8, 1, "host"), (8, 3, "host"), (16, 2, "host")]
TARGETS += [(8, 2, "haswell")] * bool(FEATURES.get("avx2"))  # AVX2 and no more
TARGETS += [(16, 2, "avx512")] * instruction_set_of("", FEATURES).features.avx512


@pytest.fixture(params=TARGETS, ids=lambda p: f"{p[0]} lanes, {p[1]} threads, {p[2]}")
def target(request, monkeypatch):
    """Code for this many lanes and threads, which are used however little there is to do."""
    lanes, threads, processor = request.param
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    parallel = jit.host_target().parallel and threads > 1
    found = Target(lanes, threads, parallel, AVX512 if processor == "avx512" else PORTABLE)
    monkeypatch.setattr(jit, "host_target", lambda: found)
    monkeypatch.setattr(printer, "CPU", replace(printer.CPU, thread_elements=1))
    if processor == "haswell":
        triple = llvm.Target.from_default_triple()
        old = triple.create_target_machine
        monkeypatch.setattr(objects, "target_machine", lambda: old(cpu=processor))
    native.LOADED.clear()
    yield found
    native.LOADED.clear()
    torch.set_num_threads(before)
