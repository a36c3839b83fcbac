"""Compiles the kernels of kernels.py, each configuration once a session, and evaluates them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from hemstitch.latency.architecture import architecture
from hemstitch.latency.disassembly import Disassembly, SourceLine, disassemble
from hemstitch.latency.evaluate import Estimate, LaunchFacts, evaluate
from hemstitch.latency.lint import Expected, Finding, lint
from hemstitch.latency.ptx import parse_ptx
from hemstitch.toolchain.triton_cross import CrossCompiled, compile_for, tools_folder

COPY = {"source": "*fp32", "result": "*fp32", "count": "i32"}
COPY_HALF = {"source": "*bf16", "result": "*bf16", "count": "i32"}
COPY_BYTES = {"source": "*i8", "result": "*i8", "count": "i32"}
DROPOUT = {"source": "*bf16", "result": "*bf16", "seed": "i32"}
SUMS = {"source": "*bf16", "result": "*fp32", "rows": "i32"}
CHAIN = {"source": "*fp32", "result": "*fp32", "steps": "i32"}
CHASE = {"source": "*i32", "result": "*i32", "steps": "i32"}
PARTIAL = {"source": "*fp32", "result": "*fp32", "partial": "*fp32", "semaphore": "*i32"}
EARLY = {"source": "*fp32", "result": "*fp32", "semaphore": "*i32"}
PRODUCT = {"a": "*fp16", "b": "*fp16", "result": "*fp32", "K": "i32"}


class Built:
    """A kernel compiled for one target."""

    def __init__(self, kernel: Any, compiled: CrossCompiled) -> None:
        self.kernel, self.compiled = kernel, compiled
        self.code: Disassembly = disassemble(compiled.binary, tools_folder())
        self.ptx = parse_ptx(compiled.assembly)

    def line(self, text: str) -> SourceLine:
        """Of the kernel's source, where `text` stands."""
        rows = inspect.getsource(self.kernel.fn).splitlines()
        number = next(number for number, row in enumerate(rows) if text in row)
        return SourceLine(
            self.kernel.fn.__code__.co_filename, self.kernel.starting_line_number + number
        )

    def estimate(
        self, programs: int, *, trips: Mapping[str, float] | None = None, **more: Any
    ) -> Estimate:
        """`trips` by a piece of the `for` line."""
        launch = LaunchFacts(
            programs=programs,
            warps=self.compiled.warps,
            shared_bytes=self.compiled.shared_bytes,
            trips={self.line(text): count for text, count in (trips or {}).items()},
            **more,
        )
        return evaluate(self.code, launch, architecture(self.compiled.target), self.ptx)

    def lint(self, **expected: Any) -> tuple[Finding, ...]:
        known = Expected(
            warps=self.compiled.warps, shared_bytes=self.compiled.shared_bytes, **expected
        )
        return lint(self.code, self.ptx, known, architecture(self.compiled.target))


def compiled(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    target: str = "sm_90",
    *,
    warps: int = 4,
    stages: int = 1,
    divisible: Iterable[str] = (),
    cooperative: bool = False,
    most_registers: int | None = None,
) -> CrossCompiled:
    return _compiled(
        *(kernel, tuple(signature.items()), tuple(constants.items()), target),
        *(warps, stages, tuple(divisible), cooperative, most_registers),
    )


def built(kernel: Any, *arguments: Any, **more: Any) -> Built:
    return _built(kernel, compiled(kernel, *arguments, **more))


@cache
def _built(kernel: Any, result: CrossCompiled) -> Built:
    return Built(kernel, result)


@cache
def _compiled(
    kernel: Any,
    signature: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, object], ...],
    target: str,
    warps: int,
    stages: int,
    divisible: tuple[str, ...],
    cooperative: bool,
    most_registers: int | None,
) -> CrossCompiled:
    return compile_for(
        kernel,
        dict(signature),
        dict(constants),
        target,
        warps=warps,
        stages=stages,
        divisible_by_16=divisible,
        cooperative=cooperative,
        most_registers=most_registers,
    )
