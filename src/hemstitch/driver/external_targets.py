"""The hook for targets whose kernels are built outside this package. The emulator of the source
tree (`testing/interpret_target.py`) registers itself here as the target "interpret"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from hemstitch.errors import UnsupportedError
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep
from hemstitch.runtime.assembly import Launch


class LaunchBuilder(Protocol):
    """Takes a plan's kernel steps; gives a context in which each step becomes a launch."""

    def __call__(
        self, kernels: Sequence[KernelStep], options: Options, device_index: int | None
    ) -> AbstractContextManager[Callable[[KernelStep], Launch]]: ...


_REGISTERED: dict[str, LaunchBuilder] = {}


def register_target(target: str, build: LaunchBuilder) -> None:
    """From now on `build` makes the kernels of `target` in this process."""
    _REGISTERED[target] = build


def external_target(target: str) -> LaunchBuilder:
    if target not in _REGISTERED:
        raise UnsupportedError(
            f'kernels for the target "{target}" run in an emulator that is not installed with '
            "Hemstitch",
            hint="in Hemstitch's source tree, `import testing.interpret_target` registers it",
        )
    return _REGISTERED[target]
