"""The scope in which Triton's language computes on arrays: within it a `@triton.jit` function can
be called like any other, outside it everything is as it was.

Triton has such a scope itself, for a whole process (TRITON_INTERPRET=1) and only for functions
that were defined in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import triton.compiler.code_generator  # noqa: F401  its tables must see the unpatched language
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from hemstitch.targets.gpu import device_functions as device
from hemstitch.toolchain.triton_cross import LANGUAGE
from testing.emulator import whole_reductions as reductions
from testing.emulator.checked_builder import EmulatedBuilder
from testing.emulator.libdevice import replacements
from testing.emulator.python_source import loop_range, plain

SPIN = "spin_until_flipped"
_MISSING = object()


class Changes:
    """Attributes that were set, and how they were. Triton's own record of them keeps inherited
    attributes as if they were the class's own, so they would stay."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, object]] = []

    def set_attr(self, owner: Any, name: str, value: object) -> None:
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def restore(self) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def emulated(
    builder: EmulatedBuilder, spin: Callable[[Any, Any], None]
) -> Iterator[Callable[..., Any]]:
    """Gives what makes a plain function of a `JITFunction`. `spin` takes the place of the device
    function of that name. No other thread emulates or compiles meanwhile."""
    with LANGUAGE.alone():
        changes = Changes()
        semantic = TritonSemantic(builder)
        function = _Functions(semantic, spin)
        try:
            _patch_interpreter(changes, builder, semantic)
            _patch_language(changes, builder, semantic)
            _patch_calls(changes, function)
            changes.set_attr(device, "is_nvidia", lambda: False)
            for name, meaning in replacements(semantic):
                changes.set_attr(libdevice, name, meaning)
            yield function
        finally:
            changes.restore()


class _Functions:
    """Plain functions, each made once a scope."""

    def __init__(self, semantic: Any, spin: Callable[[Any, Any], None]) -> None:
        self._semantic = semantic
        self._spin = spin
        self._plain: dict[FunctionType, Callable[..., Any]] = {}

    def __call__(self, function: Any) -> Callable[..., Any]:
        if function.fn.__name__ == SPIN:
            return self._spin
        if function.fn not in self._plain:
            self._plain[function.fn] = plain(function.fn, self._semantic)
        return self._plain[function.fn]


def _patch_interpreter(changes: Changes, builder: EmulatedBuilder, semantic: Any) -> None:
    """3.9 finds the builder through these names, 3.6 is told."""
    changes.set_attr(interpreter, "interpreter_builder", builder)
    changes.set_attr(interpreter, "interpreter_semantic", semantic)


def _patch_language(changes: Changes, builder: EmulatedBuilder, semantic: Any) -> None:
    """As Triton's `_patch_lang`, which wants to be called for every function and whose changes of
    nested calls stay."""
    for language in (tl, tl.core):
        interpreter._patch_builtin(language, builder, changes)
        interpreter._patch_lang_core(language, changes)
        changes.set_attr(language, "range", loop_range(semantic))
    for owner in (tl.tensor, tl.math, tl.core.tensor_descriptor_base):
        interpreter._patch_builtin(owner, builder, changes)
    for language in (tl, tl.core):  # after the loop above, each turn of which sets those of both
        changes.set_attr(language, "reduce", reductions.reduce)
        changes.set_attr(language, "associative_scan", reductions.associative_scan)
    interpreter._patch_lang_tensor(tl.tensor, changes)
    # 3.6 with NumPy 2.4: only an array without axes is a number.
    changes.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.item()))


def _patch_calls(changes: Changes, function: _Functions) -> None:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        return function(self)(*arguments, **named)

    changes.set_attr(JITFunction, "__call__", call)
    # Both: `x.sum(0)` finds a JITFunction, which Python does not bind to `x`.
    for name, member in list(vars(tl.tensor).items()):
        if isinstance(member, JITFunction):
            changes.set_attr(tl.tensor, name, _method(member))


def _method(function: Any) -> Callable[..., Any]:
    return lambda self, *arguments, **named: function(self, *arguments, **named)
