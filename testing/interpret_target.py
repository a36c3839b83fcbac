"""Registers the emulator with the driver: the option `target="interpret"` then builds Triton
kernels that run on CPU tensors. Triton is imported with the first kernel."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from hemstitch.driver.external_targets import register_target
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep
from hemstitch.runtime.assembly import Launch


def emulated_launches(
    kernels: Sequence[KernelStep], options: Options, device_index: int | None
) -> AbstractContextManager[Callable[[KernelStep], Launch]]:
    emulated_kernels = importlib.import_module("testing.emulated_kernels")
    return nullcontext(partial(emulated_kernels.launch_of, check=options.check))


register_target("interpret", emulated_launches)
