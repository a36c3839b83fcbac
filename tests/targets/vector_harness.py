"""Compiles one vector function for this host and runs it over arrays; prints others' assembly."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

from hemstitch.targets.cpu.emitter import PORTABLE, Emitter, Features, Value

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()

NUMPY = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "float": np.float32,
    "double": np.float64,
}
Body = Callable[[Emitter, list[Value]], Sequence[Value]]
Inputs = Sequence[str]


def memory_type(element: str) -> str:
    return "i8" if element == "i1" else element


def function_text(
    width: int, inputs: Sequence[str], body: Body, features: Features = PORTABLE
) -> tuple[str, list[str]]:
    """(void f(ptr arrays, i64 n), the output elements): for each block of `width` elements, body of
    the blocks of arrays 8, 9, ... (of types `inputs`), its results to arrays 0, 1, ..."""
    e = Emitter(width, features)
    outputs: list[str] = []

    def array(k: int, element: str, index: Value) -> Value:
        return e.define("ptr", f"getelementptr {element}, {array_pointer(e, k)}, {index}")

    def step(index: Value, _: list[Value]) -> list[Value]:
        values = []
        for k, element in enumerate(inputs):
            place = array(8 + k, memory_type(element), index)
            type_ = e.vector(memory_type(element))
            value = e.define(type_, f"load {type_}, {place}, align 1")
            if element == "i1":
                value = e.compare("ne", value, e.constant(0, "i8"))
            values.append(value)
        outputs.clear()
        for k, result in enumerate(body(e, values)):
            outputs.append(result.element)
            if result.element == "i1":
                result = e.convert("zext", result, "i8")
            place = array(k, result.element, index)
            e.line(f"store {result}, {place}, align 1")
        return []

    e.loop(e.i64(0), Value("%n", "i64"), e.i64(width), [], step)
    text = "\n".join(
        [
            *e.declarations.values(),
            "define void @f(ptr %arrays, i64 %n) #0 {",
            "entry:",
            *e.lines,
            "  ret void",
            "}",
            'attributes #0 = { nounwind "prefer-vector-width"="512" }',
        ]
    )
    return text, outputs


def host_machine(opt: int = 1) -> llvm.TargetMachine:
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=opt
    )


@dataclass
class Compiled:
    """Keeps the engine alive; calling runs over whole arrays whose length `width` divides."""

    engine: llvm.ExecutionEngine
    outputs: list[str]

    def __call__(self, *arrays: np.ndarray, n: int | None = None) -> list[np.ndarray]:
        arrays = tuple(np.ascontiguousarray(array) for array in arrays)
        n = len(arrays[0]) if n is None else n
        results = [np.zeros(n, NUMPY[element]) for element in self.outputs]
        self.run(results, arrays, n)
        return results

    def run(self, results: Sequence[np.ndarray], arrays: Sequence[np.ndarray], n: int) -> None:
        slots = (ctypes.c_void_p * 64)()
        for k, result in enumerate(results):
            slots[k] = result.ctypes.data
        for k, array in enumerate(arrays):
            slots[8 + k] = array.ctypes.data
        address = self.engine.get_function_address("f")
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)(slots, n)


def compile_host(
    width: int, inputs: Sequence[str], body: Body, opt: int = 1, features: Features = PORTABLE
) -> Compiled:
    text, outputs = function_text(width, inputs, body, features)
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, host_machine(opt))
    engine.finalize_object()
    return Compiled(engine, outputs)


def assembly(width: int, inputs: Sequence[str], body: Body, triple: str, cpu: str) -> str:
    """What LLVM selects for another machine; raises (or aborts) where it cannot."""
    text, _ = function_text(width, inputs, body)
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=1)
    return machine.emit_assembly(module)


def pad(array: np.ndarray, width: int) -> np.ndarray:
    """Repeated up to a multiple of `width`."""
    return np.resize(array, -(-len(array) // width) * width)


def array_pointer(e: Emitter, k: int) -> Value:
    """Where array k starts: 0.. are outputs, 8.. are inputs."""
    slot = e.define("ptr", f"getelementptr ptr, ptr %arrays, i64 {k}")
    return e.define("ptr", f"load ptr, {slot}")
