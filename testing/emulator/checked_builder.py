"""Triton's interpreter with its arithmetic repaired and its memory checked.

Each method says which defect of which version of Triton it repairs; both are 3.6 and 3.9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions

from hemstitch.errors import UnsupportedError
from hemstitch.ir.functions import fused_multiply_add
from testing.emulator import numerics
from testing.emulator.checked_memory import EmulatedMemory
from testing.emulator.findings import DeadlockError
from testing.emulator.history import Access
from testing.emulator.numerics import Array
from testing.emulator.python_source import where
from testing.emulator.tensors import Handle, is_bf16, narrowed, numpy_type, widened

MOST_ATOMICS = 100_000  # of a program that never waits: it spins, and nobody else can run
WIDE_FLOATS = (tl.float32, tl.float64)
ACQUIRES = (ir.MEM_SEMANTIC.ACQUIRE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
RELEASES = (ir.MEM_SEMANTIC.RELEASE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
ACROSS_PROGRAMS = (ir.MEM_SYNC_SCOPE.GPU, ir.MEM_SYNC_SCOPE.SYSTEM)


class FailedAssertion(AssertionError):
    """A `tl.device_assert` of the kernel. On a GPU the launch traps."""


class EmulatedBuilder(InterpreterBuilder):  # type: ignore[misc]
    """One for each launch."""

    def __init__(self, memory: EmulatedMemory, programs: int) -> None:
        super().__init__()
        # Both: compute whether integers overflow, and then do not look at it.
        self.options = InterpreterOptions(sanitize_overflow=False, debug=True)
        self.memory = memory
        self.set_grid_dim(programs, 1, 1)
        self._atomics = 0

    def enter(self, program: int) -> None:
        """From here on this program runs."""
        self.memory.program = program
        self.set_grid_idx(program, 0, 0)
        self._atomics = 0

    # Memory.

    def create_masked_load(
        self, ptrs: Any, mask: Any, other: Any, *hints: object, **more: object
    ) -> Any:
        """Both: nothing checks the addresses."""
        dtype = ptrs.get_element_ty()
        filled = np.zeros(ptrs.data.shape, numpy_type(dtype)) if other is None else other.data
        return Handle(self._load(ptrs.data, np.asarray(mask.data), filled), dtype)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *hints: object) -> None:
        """Both: nothing checks the addresses; of two values for one address the last wins."""
        data = np.ascontiguousarray(np.broadcast_to(value.data, ptrs.data.shape))
        active = np.broadcast_to(np.asarray(mask.data), ptrs.data.shape)
        real = self.memory.access(ptrs.data, active, data.itemsize, Access.WRITE)
        native.store(real, data, active)
        if self.memory.clocks is not None:
            found = native.load(real, active, data, data.dtype)
            bits = np.dtype(f"u{data.itemsize}")
            if (wrong := found.view(bits) != data.view(bits)).any():
                self.memory.ambiguous(ptrs.data, wrong)

    def create_atomic_rmw(
        self, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        """Both: nothing checks the addresses, and no order follows from `sem`. 3.6: an operand that
        was broadcast is read as if its elements were all there."""
        active = np.broadcast_to(np.asarray(mask.data), ptr.data.shape)
        real = self._atomic(ptr, active, val, scope)
        every = Handle(np.ascontiguousarray(np.broadcast_to(val.data, ptr.data.shape)), val.dtype)
        result = super().create_atomic_rmw(op, real, every, Handle(active, tl.int1), sem, scope)
        self._synchronise(ptr, active, sem, scope)
        return result

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        """Both: as `create_atomic_rmw`."""
        active = np.ones(ptr.data.shape, np.bool_)
        real = self._atomic(ptr, active, val, scope)
        result = super().create_atomic_cas(real, cmp, val, sem, scope)
        self._synchronise(ptr, active, sem, scope)
        return result

    def create_atomic_poll(self, *arguments: object) -> Any:
        """3.9: polls forever, since no other program can run."""
        raise UnsupportedError("tl.atomic_poll in the emulator", hint="spin_until_flipped waits")

    def create_assert(self, condition: Any, message: str) -> None:
        """Both: of several lanes the truth is asked as if there were one."""
        if not np.all(condition.data):
            raise FailedAssertion(message)

    def create_barrier(self) -> None:
        """Both: ignored."""
        self.memory.barrier()

    # Numbers.

    def get_bf16(self, value: float) -> Any:
        """3.6: missing."""
        return narrowed(np.array([value], np.float32), tl.bfloat16)

    def get_all_ones_value(self, type: Any) -> Any:
        """3.6: raises for unsigned types with NumPy 2."""
        dtype = numpy_type(type)
        return Handle(np.invert(np.zeros(1, dtype)), type.scalar)

    # Conversions.

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        """Both: f32 to bf16 truncates; from and to bf16 otherwise as if its bits were the number;
        a float that no integer holds becomes anything."""
        dtype = dst_type.scalar
        _refuse_f8(src.dtype.scalar, dtype)
        values = widened(src)
        if dtype == tl.bfloat16:
            return src if is_bf16(src) else Handle(numerics.to_bf16(values), dtype)
        wanted = numpy_type(dtype)
        if values.dtype.kind == "f" and wanted.kind in "iu":
            return Handle(numerics.to_integer(values, wanted), dtype)
        return Handle(values.astype(wanted), dtype)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        """Both: rounding to nearest even truncates; 3.6: bf16 to f16 and back is not a number."""
        dtype = dst_type.scalar
        if rounding_mode != ir.ROUNDING_MODE.RTZ:
            return self.cast_impl(src, dst_type)
        if dtype == tl.bfloat16:
            return Handle(numerics.to_bf16_towards_zero(widened(src)), dtype)
        _refuse_f8(src.dtype.scalar, dtype)
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    # Elementwise arithmetic.

    def binary_op(self, lhs: Any, rhs: Any, op: Callable[[Array, Array], Array]) -> Any:
        """Both: bf16 computes on bits; 3.6: booleans add up to True."""
        left, right = widened(lhs), widened(rhs)
        if left.dtype == right.dtype == np.bool_:
            wrapped = op(left.astype(np.int8), right.astype(np.int8))
            return Handle((wrapped & 1).astype(np.bool_), tl.int1)
        result = op(left, right)
        if result.dtype == np.bool_:
            return Handle(result, tl.int1)
        return narrowed(result.astype(left.dtype, copy=False), lhs.dtype.scalar)

    def unary_op(self, arg: Any, op: Callable[[Array], Array]) -> Any:
        """Both: bf16 computes on bits. f32 is computed in f64, so that it is rounded once."""
        values = widened(arg)
        if values.dtype != np.float32:
            return Handle(op(values), arg.dtype.scalar)
        return narrowed(numerics.through_f64(op, values).astype(np.float32), arg.dtype.scalar)

    def create_erf(self, arg: Any) -> Any:
        """Both: one Python call for each element."""
        return self.unary_op(arg, lambda x: torch.erf(torch.from_numpy(x)).numpy())

    def create_rsqrt(self, arg: Any) -> Any:
        """Both: rounds twice."""
        return self.unary_op(arg, lambda x: 1 / np.sqrt(x))

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        """Both: bf16 computes on bits; 3.6: rounds twice."""
        fused = fused_multiply_add(widened(x), widened(y), widened(z))
        return narrowed(fused, z.dtype.scalar)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        """3.6: propagates NaN, where hardware gives the number."""
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        """3.6: as `create_minnumf`."""
        return self.binary_op(lhs, rhs, np.fmax)

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        """Both: bf16 computes on bits; 3.6: propagates NaN unasked."""
        if propagate_nans == ir.PROPAGATE_NAN.NONE:
            return self.binary_op(self.binary_op(arg, lo, np.fmax), hi, np.fmin)
        return self.binary_op(self.binary_op(arg, lo, np.maximum), hi, np.minimum)

    def create_umulhi(self, lhs: Any, rhs: Any) -> Any:
        """3.6: extends the sign of signed operands."""
        if lhs.data.dtype.itemsize != 4:
            return super().create_umulhi(lhs, rhs)
        left, right = (x.data.view(np.uint32).astype(np.uint64) for x in (lhs, rhs))
        high = (left * right >> np.uint64(32)).astype(np.uint32)
        return Handle(high.view(lhs.data.dtype), lhs.dtype.scalar)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, imprecise: int) -> Any:
        """Both: bf16 multiplies bits; tf32 is computed as f32."""
        _refuse_f8(a.dtype.scalar, b.dtype.scalar)
        left, right = widened(a), widened(b)
        if input_precision == ir.INPUT_PRECISION.TF32 and a.dtype.scalar == tl.float32:
            left, right = numerics.to_tf32(left), numerics.to_tf32(right)
        return narrowed(numerics.dot(left, right, widened(d)), d.dtype.scalar)

    def _load(self, addresses: Array, mask: Array, other: Array) -> Array:
        active = np.broadcast_to(mask, addresses.shape)
        real = self.memory.access(addresses, active, other.itemsize, Access.READ)
        filled = np.ascontiguousarray(np.broadcast_to(other, addresses.shape))
        loaded: Array = native.load(real, active, filled, other.dtype)
        return loaded

    def _atomic(self, ptr: Any, active: Array, val: Any, scope: Any) -> Any:
        if is_bf16(val):
            raise UnsupportedError("atomics on bf16 in the emulator", hint="accumulate in f32")
        self._atomics += 1
        if self._atomics > MOST_ATOMICS:
            raise DeadlockError("a program spins without spin_until_flipped", where=where())
        access = Access.ATOMIC if scope in ACROSS_PROGRAMS else Access.WRITE
        real = self.memory.access(ptr.data, active, val.data.itemsize, access)
        return Handle(real, ptr.dtype)

    def _synchronise(self, ptr: Any, active: Array, sem: Any, scope: Any) -> None:
        """Only one lone atomic orders anything: one thread performs it for its program."""
        if ptr.data.size != 1 or not active.all() or scope not in ACROSS_PROGRAMS:
            return
        address = int(ptr.data.reshape(-1)[0])
        if sem in ACQUIRES:
            self.memory.acquire(address)
        if sem in RELEASES:
            self.memory.release(address)


def _refuse_f8(*dtypes: Any) -> None:
    """Both: conversions of 8-bit floats are off by one now and then."""
    for dtype in dtypes:
        if dtype.is_fp8():
            raise UnsupportedError(f"{dtype} in the emulator", hint="use bf16 or f16")
