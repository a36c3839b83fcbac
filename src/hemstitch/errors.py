"""Every error and warning that a user can see: one class, one code, one paragraph in
docs/user/troubleshooting.md."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's program."""

    file: str
    line: int
    source: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}: {self.source.strip()}" if self.source else place


class HemstitchError(Exception):
    """A message, the line of the user's program, and a hint."""

    code: ClassVar[str]
    advice: ClassVar[str]  # the default hint

    def __init__(
        self, message: str, *, hint: str | None = None, where: Location | None = None
    ) -> None:
        self.message, self.where, self.hint = message, where, hint or self.advice
        super().__init__(_message(self.code, message, where, self.hint))


class OptionError(HemstitchError):
    """An option of `torch.compile(..., options=...)` is unknown or has a value it cannot have."""

    code = "H001"
    advice = "docs/user/options.md lists the options and their values"


class UnsupportedError(HemstitchError):
    """The user asked for something by name that Hemstitch does not compile."""

    code = "H002"
    advice = "leave this part of the program out of torch.compile"


class InternalError(HemstitchError):
    """A bug in Hemstitch: an invariant of one of its stages does not hold."""

    code = "H003"
    advice = "this is a bug in Hemstitch: please report it with this message and the program"


class DifferenceError(HemstitchError):
    """With `verify`, a result differed from that of eager PyTorch."""

    code = "H005"
    advice = "this is a bug in Hemstitch: please report it with this message and the program"


class KernelBuildError(HemstitchError):
    """With `strict`, a kernel could not be built; without it this becomes a KernelBuildWarning."""

    code = "H006"
    advice = "without the option `strict` the operations of this kernel run through the library"


class HemstitchWarning(UserWarning):
    """What runs through the library instead, the line of the user's program, and a hint."""

    code: ClassVar[str]
    advice: ClassVar[str]

    def __init__(
        self, message: str, *, hint: str | None = None, where: Location | None = None
    ) -> None:
        self.message, self.where, self.hint = message, where, hint or self.advice
        super().__init__(_message(self.code, message, where, self.hint))


class KernelBuildWarning(HemstitchWarning):
    """A kernel could not be built; its operations run through the library instead."""

    code = "H007"
    advice = "results are the same, only slower; the option `strict` makes this an error"

    def __init__(self, kernel: str, why: str) -> None:
        self.kernel, self.why = kernel, why
        super().__init__(f"{kernel} could not be built and runs through the library: {why}")


class GraphWarning(HemstitchWarning):
    """A graph, or one call of it, runs through the library instead of kernels."""

    code = "H008"
    advice = "results are the same, only slower; the option `strict` makes this an error"

    def __init__(
        self,
        error: Exception,
        subject: str = "a graph could not be compiled and",
        begins: Location | None = None,
    ) -> None:
        """`begins`: the graph's first line, for an error without a location."""
        ours = error if isinstance(error, HemstitchError) else None
        why = repr(error) if ours is None else f"{ours.code}: {ours.message}"
        where = None if ours is None else ours.where
        if where is None and begins is not None:
            why = f"{why}, in the graph that begins here"
        super().__init__(
            f"{subject} runs through the library: {why}",
            hint=None if ours is None else ours.hint,
            where=where or begins,
        )


class PlanWarning(HemstitchWarning):
    """Planning took too long, so the graph has more kernels than necessary."""

    code = "H009"
    advice = "results are the same, only slower; please report the program"

    def __init__(self, why: str) -> None:
        super().__init__(f"a graph is planned conservatively, since {why}")


class VersionWarning(HemstitchWarning):
    """PyTorch is newer than the newest version that Hemstitch is tested with."""

    code = "H010"
    advice = (
        "if something fails, a newer Hemstitch may know this PyTorch, or an older PyTorch will do"
    )


def _message(code: str, message: str, where: Location | None, hint: str) -> str:
    place = [] if where is None else [f"  at {where}"]
    return "\n".join([f"{code}: {message}", *place, f"  hint: {hint}"])


def near_match(name: str, known: Iterable[str]) -> str:
    """`did you mean "planner"?`, or an empty string where no known name is similar."""
    matches = difflib.get_close_matches(name, tuple(known), n=1)
    return f'did you mean "{matches[0]}"?' if matches else ""
