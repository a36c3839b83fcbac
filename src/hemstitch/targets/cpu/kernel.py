"""A kernel as an LLVM module: its nests, the deal of rows to threads, and a Python-callable entry.

The entry is a METH_FASTCALL function made by the JIT itself: it takes tensors, sizes and a scratch
address, reads the tensors' data pointers, and runs the phases on torch's own OpenMP threads. It
costs a tenth of a call through ctypes (docs/compiler/performance-notes.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from hemstitch.ir.dims import Dim, SymbolicDim, product, total
from hemstitch.ir.failure import Failure
from hemstitch.kernel_ir.nodes import Buffer, Kernel, Nest, Phase
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.targets.cpu.description import CPULowering, Target
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.nest import LLVMNestPrinter
from hemstitch.targets.cpu.scratch_layout import ScratchLayout, scratch_layout
from hemstitch.targets.cpu.slots import STATUS, Slot, Slots

DATA_POINTER = "hemstitch_data_pointer"  # bound to torch's function when the module is loaded
ABSENT_MESSAGE = "a kernel was given a tensor that has no memory"
ARRIVALS = "tickets"  # the slot of the table that counts who has come to a ticket
ATTRIBUTES = 'attributes #0 = { nounwind "prefer-vector-width"="512" }'


@dataclass(frozen=True, slots=True)
class LLVMProgram:
    """A printed kernel. The entry takes (*parameters, *sizes, scratch address)."""

    entry: str
    text: str
    parameters: tuple[Buffer, ...]
    sizes: tuple[Dim, ...]
    scratch_bytes: Dim


@dataclass(frozen=True, slots=True)
class _NestCall:
    """A printed nest, and what each of its slots stands for in the kernel's table."""

    function: str
    slots: tuple[Slot, ...]


class _Table:
    """The kernel's slots: pointers of parameters and scratch, the status, tickets, sizes."""

    def __init__(self, kernel: Kernel, layout: ScratchLayout, calls: dict[Nest, _NestCall]) -> None:
        self.kernel = kernel
        self.layout = layout
        slots: dict[Slot, None] = dict.fromkeys(kernel.buffers)
        slots |= {STATUS: None, ARRIVALS: None}
        sizes: dict[SymbolicDim, None] = {}
        for call in calls.values():
            sizes |= {slot: None for slot in call.slots if isinstance(slot, SymbolicDim)}
        dims = [*layout.offset.values(), work(kernel), *_row_sizes(kernel)]
        sizes |= {size: None for size in dims if isinstance(size, SymbolicDim)}
        self.sizes = tuple(sizes)
        self.position = {slot: place for place, slot in enumerate([*slots, *sizes])}

    def load(self, e: Emitter, size: Dim) -> Value:
        """A size, inside a function that has %table."""
        if isinstance(size, int):
            return e.i64(size)
        return e.define("i64", f"load i64, {self.place(e, size)}")

    def place(self, e: Emitter, slot: Slot) -> Value:
        return e.define("ptr", f"getelementptr i64, ptr %table, i64 {self.position[slot]}")


def work(kernel: Kernel) -> Dim:
    """Elements of the busiest phase that is shared: they decide how many threads are worth it."""
    shared = [phase for phase in kernel.phases if not phase.is_alone]
    known = [total(_nest_work(nest) for nest in phase.nests) for phase in shared]
    ints = [size for size in known if isinstance(size, int)]
    return max(ints) if len(ints) == len(known) else total(known)


def print_llvm(kernel: Kernel, lowering: CPULowering) -> LLVMProgram:
    """A kernel that all stages of processors have lowered."""
    target = lowering.target
    layout = scratch_layout(kernel, target.threads)
    declarations: dict[str, str] = {}
    failures: dict[Failure, int] = {}
    texts: dict[str, str] = {}  # body -> function name: equal nests are printed once
    calls: dict[Nest, _NestCall] = {}
    for phase in kernel.phases:
        for nest in phase.nests:
            emitter = Emitter(target.lanes, target.features)
            emitter.declarations = declarations
            slots = Slots(emitter, layout.stride)
            printer = LLVMNestPrinter(
                *(emitter, slots, lowering.blocking.steps, failures, kernel.non_temporal)
            )
            calls[nest] = _print_nest(nest, kernel.name, printer, texts)
    table = _Table(kernel, layout, calls)
    functions = [_define(name, NEST_PARAMETERS, body) for body, name in texts.items()]
    functions.append(_phases(table, calls, target, declarations))
    if target.parallel:
        functions.append(_task(kernel.name, declarations))
    functions.append(_run(table, target, declarations))
    functions.append(_entry(table, failures, declarations))
    constants = _constants(table, calls, failures)
    text = [*constants, *sorted(declarations.values()), *functions, ATTRIBUTES]
    return LLVMProgram(kernel.name, "\n".join(text), kernel.parameters, table.sizes, layout.total)


NEST_PARAMETERS = "ptr %table, ptr %indices, i64 %task, i64 %threads, i64 %low, i64 %high"


def _define(name: str, parameters: str, body: str, result: str = "void") -> str:
    scope = "" if result == "ptr" else "internal "
    return f"define {scope}{result} @{name}({parameters}) #0 {{\nentry:\n{body}\n}}"


def _emitter(lanes: int, declarations: dict[str, str]) -> Emitter:
    e = Emitter(lanes)
    e.declarations = declarations
    return e


def _print_nest(
    nest: Nest,
    kernel_name: str,
    printer: LLVMNestPrinter,
    texts: dict[str, str],
) -> _NestCall:
    printer.print(nest)
    body = "\n".join(printer.emitter.lines)
    name = texts.setdefault(body, f"{kernel_name}_nest{len(texts)}")
    return _NestCall(name, tuple(printer.slots.values))


def _constants(
    table: _Table, calls: dict[Nest, _NestCall], failures: Mapping[Failure, int]
) -> list[str]:
    """Each nest's slots as positions in the table, and the messages of failed checks."""
    lines = []
    for number, call in enumerate(calls.values()):
        places = ", ".join(f"i32 {table.position[slot]}" for slot in call.slots) or "i32 0"
        count = max(len(call.slots), 1)
        lines.append(f"@slots{number} = private constant [{count} x i32] [{places}]")
    messages = {f"message{number}": failure.message for failure, number in failures.items()}
    for name, message in {**messages, "absent": ABSENT_MESSAGE}.items():
        encoded = message.encode() + b"\0"
        text = "".join(map(_character, encoded))
        lines.append(f'@{name} = private constant [{len(encoded)} x i8] c"{text}"')
    return lines


def _character(byte: int) -> str:
    """In a string of LLVM's."""
    is_plain = 32 <= byte < 127 and chr(byte) not in '"\\'
    return chr(byte) if is_plain else f"\\{byte:02X}"


# --- phases


def _phases(
    table: _Table, calls: dict[Nest, _NestCall], target: Target, declarations: dict[str, str]
) -> str:
    """void phases(table, task, threads): every phase's share of one task, barriers between; those
    behind a ticket if it is the last one to come."""
    e = _emitter(target.lanes, declarations)
    phases = table.kernel.phases
    after_last_block = [phase for phase in phases if phase.is_alone]
    for index, phase in enumerate(phases[: len(phases) - len(after_last_block)]):
        if index and target.parallel:
            e.comment(f"barrier: {phase.why}")
            several = e.compare("sgt", Value("%threads", "i64"), e.i64(1))
            with e.when(several):
                e.call("GOMP_barrier", "void")
        _call_nests(e, table, calls, phase)
    if after_last_block:
        e.comment(f"ticket: {after_last_block[0].why}")
        with e.when(_is_last_to_arrive(e, table)) if target.parallel else nullcontext():
            for phase in after_last_block:
                _call_nests(e, table, calls, phase)
    e.line("ret void")
    parameters = "ptr %table, i64 %task, i64 %threads"
    return _define(f"{table.kernel.name}_phases", parameters, "\n".join(e.lines))


def _is_last_to_arrive(e: Emitter, table: _Table) -> Value:
    """Whether all other tasks have been here; what they have stored is then seen."""
    place = table.place(e, ARRIVALS)
    arrivals = e.define("i64", f"atomicrmw add {place}, i64 1 acq_rel")
    return e.compare("eq", e.binary("add", arrivals, e.i64(1)), Value("%threads", "i64"))


def _call_nests(e: Emitter, table: _Table, calls: dict[Nest, _NestCall], phase: Phase) -> None:
    numbers = {nest: number for number, nest in enumerate(calls)}
    for nest, (low, high) in zip(phase.nests, _row_shares(e, table, phase)):
        arguments = f"ptr %table, ptr @slots{numbers[nest]}, i64 %task, i64 %threads"
        e.line(f"call void @{calls[nest].function}({arguments}, {low}, {high})")


def _row_shares(e: Emitter, table: _Table, phase: Phase) -> list[tuple[Value, Value]]:
    """Which rows of each nest this task runs: an equal part of those of a nest that come out even,
    and of all others together a contiguous part of their work; so a task meets the same rows in
    every phase and every kernel of equal shape."""
    rows = [table.load(e, product(a.extent for a in nest.rows)) for nest in phase.nests]
    if phase.is_alone:
        return [(e.i64(0), count) for count in rows]
    task, threads = Value("%task", "i64"), Value("%threads", "i64")
    following = e.binary("add", task, e.i64(1))
    if len(phase.nests) == 1:
        return [(_part(e, rows[0], task, threads), _part(e, rows[0], following, threads))]
    weights = [table.load(e, nest.weight) for nest in phase.nests]
    weights = [e.intrinsic("smax", weight, e.i64(1)) for weight in weights]
    divisible = [e.compare("eq", e.binary("urem", count, threads), e.i64(0)) for count in rows]
    starts = [e.i64(0)]
    for count, weight, is_divisible in zip(rows, weights, divisible):
        shared_work = e.select(is_divisible, e.i64(0), e.binary("mul", count, weight))
        starts.append(e.binary("add", starts[-1], shared_work))
    parts = [(which, _part(e, starts[-1], which, threads)) for which in (task, following)]
    shares = []
    for start, count, weight, is_divisible in zip(starts, rows, weights, divisible):
        low, high = (
            e.select(
                is_divisible,
                _part(e, count, which, threads),
                _rows_before(e, place, start, count, weight),
            )
            for which, place in parts
        )
        shares.append((low, high))
    return shares


def _part(e: Emitter, whole: Value, numerator: Value, denominator: Value) -> Value:
    return e.binary("udiv", e.binary("mul", whole, numerator), denominator)


def _rows_before(e: Emitter, place: Value, start: Value, count: Value, weight: Value) -> Value:
    """How many rows of a nest lie before `place` in the phase's work."""
    distance = e.intrinsic("smax", e.binary("sub", place, start), e.i64(0))
    rounded = e.binary("add", distance, e.binary("sub", weight, e.i64(1)))
    return e.intrinsic("smin", e.binary("udiv", rounded, weight), count)


# --- launch


def _task(name: str, declarations: dict[str, str]) -> str:
    """void task(table): what each OpenMP thread runs."""
    e = _emitter(1, declarations)
    task = e.convert("zext", e.call("omp_get_thread_num", "i32"), "i64")
    threads = e.convert("zext", e.call("omp_get_num_threads", "i32"), "i64")
    e.line(f"call void @{name}_phases(ptr %table, {task}, {threads})")
    e.line("ret void")
    return _define(f"{name}_task", "ptr %table", "\n".join(e.lines))


def _run(table: _Table, target: Target, declarations: dict[str, str]) -> str:
    """void run(table): on as many threads as the work is worth and torch allows."""
    e = _emitter(1, declarations)
    name = table.kernel.name
    if target.parallel:
        allowed = e.convert("zext", e.call("omp_get_max_threads", "i32"), "i64")
        useful = e.binary("udiv", table.load(e, work(table.kernel)), e.i64(CPU.thread_elements))
        useful = e.intrinsic("smin", useful, e.i64(target.threads))
        threads = e.intrinsic("smin", useful, allowed)
        several = e.compare("sgt", threads, e.i64(1))
        e.line(f"br {several}, label %parallel, label %serial")
        e.label("parallel")
        count = e.convert("trunc", threads, "i32")
        declarations["GOMP_parallel"] = "declare void @GOMP_parallel(ptr, ptr, i32, i32)"
        e.line(f"call void @GOMP_parallel(ptr @{name}_task, ptr %table, {count}, i32 0)")
        e.line("ret void")
        e.label("serial")
    e.line(f"call void @{name}_phases(ptr %table, i64 0, i64 1)")
    e.line("ret void")
    return _define(f"{name}_run", "ptr %table", "\n".join(e.lines))


def _entry(table: _Table, failures: Mapping[Failure, int], declarations: dict[str, str]) -> str:
    """PyObject *entry(self, arguments, count): METH_FASTCALL."""
    e = _emitter(1, declarations)
    e.define("ptr", "alloca i64")  # %v1: the status
    status = Value("%v1", "ptr")
    e.line(f"store i64 0, {status}")
    e.line(f"%table = alloca [{len(table.position)} x i64], align 8")
    parameters = table.kernel.parameters
    is_absent = Value("false", "i1")
    for number, buffer in enumerate(parameters):
        pointer = e.call(DATA_POINTER, "ptr", _argument(e, number))
        _set_slot(e, table.position[buffer], pointer)
        if isinstance(buffer.size, int) and buffer.size > 0:
            is_null = e.define("i1", f"icmp eq {pointer}, null")
            is_absent = e.binary("or", is_absent, is_null)
    _raise_if_absent(e, is_absent, declarations)
    for number, size in enumerate(table.sizes, start=len(parameters)):
        _set_slot(e, table.position[size], e.call("PyLong_AsLongLong", "i64", _argument(e, number)))
    last = len(parameters) + len(table.sizes)
    base = e.call("PyLong_AsLongLong", "i64", _argument(e, last))
    for buffer, offset in table.layout.offset.items():
        _set_slot(e, table.position[buffer], e.binary("add", base, table.load(e, offset)))
    _set_slot(e, table.position[STATUS], status)
    _set_slot(e, table.position[ARRIVALS], e.i64(0))
    thread_state = e.call("PyEval_SaveThread", "ptr")
    e.line(f"call void @{table.kernel.name}_run(ptr %table)")
    e.call("PyEval_RestoreThread", "void", thread_state)
    _return(e, status, failures, declarations)
    arguments = "ptr %self, ptr %arguments, i64 %count"
    return _define(table.kernel.name, arguments, "\n".join(e.lines), "ptr")


def _raise_if_absent(e: Emitter, is_absent: Value, declarations: dict[str, str]) -> None:
    """A ValueError for elements that are nowhere, as where a storage was given back."""
    e.line(f"br {is_absent}, label %absent, label %present")
    e.label("absent")
    declarations["PyExc_ValueError"] = "@PyExc_ValueError = external global ptr"
    error = e.define("ptr", "load ptr, ptr @PyExc_ValueError")
    e.call("PyErr_SetString", "void", error, Value("@absent", "ptr"))
    e.line("ret ptr null")
    e.label("present")


def _argument(e: Emitter, number: int) -> Value:
    place = e.define("ptr", f"getelementptr ptr, ptr %arguments, i64 {number}")
    return e.define("ptr", f"load ptr, {place}")


def _set_slot(e: Emitter, position: int, value: Value) -> None:
    place = e.define("ptr", f"getelementptr i64, ptr %table, i64 {position}")
    e.line(f"store {value}, {place}")


def _return(
    e: Emitter, status: Value, failures: Mapping[Failure, int], declarations: dict[str, str]
) -> None:
    """None, or the exception of a check that has failed."""
    for symbol in ("_Py_NoneStruct", *(f"PyExc_{failure.error}" for failure in failures)):
        declarations[symbol] = f"@{symbol} = external global ptr"
    code = e.define("i64", f"load i64, {status}")
    for failure, number in failures.items():
        failed = e.compare("eq", code, e.i64(number))
        e.line(f"br {failed}, label %failed{number}, label %good{number}")
        e.label(f"failed{number}")
        error = e.define("ptr", f"load ptr, ptr @PyExc_{failure.error}")
        e.call("PyErr_SetString", "void", error, Value(f"@message{number}", "ptr"))
        e.line("ret ptr null")
        e.label(f"good{number}")
    e.call("Py_IncRef", "void", Value("@_Py_NoneStruct", "ptr"))
    e.line("ret ptr @_Py_NoneStruct")


def _nest_work(nest: Nest) -> Dim:
    return product(axis.extent for axis in nest.rows) * nest.weight


def _row_sizes(kernel: Kernel) -> Sequence[Dim]:
    nests = [nest for phase in kernel.phases for nest in phase.nests]
    return [product(axis.extent for axis in nest.rows) for nest in nests] + [
        nest.weight for nest in nests
    ]
