"""Loads an object file and gives a Python-callable function. With `llvm_objects.py` the only user
of llvmlite."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import torch

from hemstitch.targets.cpu.description import FAST_DIVISION, Target
from hemstitch.targets.cpu.emitter import Features
from hemstitch.targets.cpu.kernel import DATA_POINTER
from hemstitch.targets.cpu.math64 import SLEEF
from hemstitch.toolchain import llvm_objects

Entry = Callable[..., None]
METH_FASTCALL = 0x80
OPENMP = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef of CPython's C API."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def threads_now() -> int:
    """The number of threads that torch uses for an operation."""
    return torch.get_num_threads()


@cache
def host_target() -> Target:
    """This processor: its widest vectors, and all its threads."""
    features = llvm.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
    threads = max(torch.get_num_threads(), os.cpu_count() or 1)
    usual = features_of(llvm.get_host_cpu_name(), features)
    needed = {4: "avx2", 8: "avx512f"}
    bound = [n for n, names in SLEEF.items() if features.get(needed[n]) and _bind(names)]
    features_with_sleef = replace(usual, sleef=max(bound, default=0))
    return Target(lanes, threads, _bind_symbols(), features_with_sleef)


def processor() -> str:
    """The processor and the version of LLVM, on which machine code depends."""
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvm.get_host_cpu_name()} {features} LLVM {llvm.llvm_version_info}"


def features_of(processor: str, known: Mapping[str, bool]) -> Features:
    """From LLVM's name and features of a processor."""
    avx512 = bool(known.get("avx512f") and known.get("avx512vl"))  # for vectors of any width
    return Features(avx512, avx512 and bool(known.get("avx512bf16")), processor in FAST_DIVISION)


def load(machine_code: bytes, name: str) -> Entry:
    """Link an object file; the returned function `name` owns its machine code."""
    host_target()
    engine = _linked(machine_code)
    address = engine.get_function_address(name)
    definition = _MethodDefinition(name.encode(), address, METH_FASTCALL, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    # meth_dealloc releases the function's `self` last, so that it may own the code and definition.
    entry: Entry = make(ctypes.addressof(definition), (engine, definition), None)
    return entry


def _linked(machine_code: bytes) -> llvm.ExecutionEngine:
    """Linked in memory against torch's and OpenMP's functions."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), llvm_objects.target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
    engine.finalize_object()
    return engine


def assembly(text: str) -> str:
    """The host's machine code as text, for reports and debugging."""
    host_target()
    return str(llvm_objects.target_machine().emit_assembly(llvm.parse_assembly(text)))


@cache
def _bind_symbols() -> bool:
    """Register torch's and OpenMP's functions with the JIT; returns whether there is an OpenMP."""
    llvm_objects.initialize()
    guards: Any = torch._C._dynamo.guards
    llvm.add_symbol(DATA_POINTER, guards._torchinductor_pyobject_tensor_data_ptr)
    return _bind((*OPENMP, "omp_get_max_threads"))


def _bind(names: Iterable[str]) -> bool:
    """Register functions of torch's library, or of the OpenMP that it links; returns whether it has
    all of them."""
    library = ctypes.CDLL(_torch_library())
    try:
        for name in names:
            function = getattr(library, name)
            llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    except AttributeError:
        return False
    return True


def _torch_library() -> str:
    name = "libtorch_cpu.so"
    return f"{torch.__path__[0]}/lib/{name}"
