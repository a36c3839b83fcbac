"""How long a cache line takes from one core to another. Two cores of a virtual machine share an L3
or not, which its host changes within minutes; programs on two threads then take up to 1.4 times as
long (docs/design/memory.md). So it is measured beside what it decides."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
import time

import llvmlite.binding as llvm

LINE, VOLLEYS, GAMES = 64, 10_000, 3
# Waits until the number is its own, and makes it the other's: `first`, `first` + 2, ...
TEXT = """
define void @volleys(ptr %ball, i64 %first, i64 %end) {
start:
  br label %next
next:
  %turn = phi i64 [ %first, %start ], [ %after, %hit ]
  br label %wait
wait:
  %seen = load atomic i64, ptr %ball seq_cst, align 64
  %mine = icmp eq i64 %seen, %turn
  br i1 %mine, label %hit, label %wait
hit:
  %passed = add i64 %turn, 1
  store atomic i64 %passed, ptr %ball seq_cst, align 64
  %after = add i64 %turn, 2
  %more = icmp ult i64 %after, %end
  br i1 %more, label %next, label %done
done:
  ret void
}
"""
VOLLEYS_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def nanoseconds_between() -> float:
    """One way, between the first two cores that this process may use; NaN where there is but one
    or threads cannot be told where to run."""
    if not hasattr(os, "sched_setaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        return math.nan
    return min(_game(cores[0], cores[1]) for _ in range(GAMES))  # the least disturbed


def _game(*cores: int) -> float:
    # A number alone in its cache line.
    room = ctypes.create_string_buffer(2 * LINE)
    ball = -(-ctypes.addressof(room) // LINE) * LINE
    volleys, both = VOLLEYS_TYPE(_engine().get_function_address("volleys")), threading.Barrier(2)
    taken: list[float] = []

    def play(core: int, first: int) -> None:
        os.sched_setaffinity(0, {core})  # of this thread
        both.wait()
        start = time.perf_counter_ns()
        volleys(ball, first, 2 * VOLLEYS)
        taken.append((time.perf_counter_ns() - start) / (2 * VOLLEYS))

    threads = [threading.Thread(target=play, args=(core, i)) for i, core in enumerate(cores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(taken)


@functools.cache
def _engine() -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(TEXT), target)
    engine.finalize_object()
    return engine
