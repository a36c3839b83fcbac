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
    """Says what happened, where in the user's program, and what to do next."""

    code: ClassVar[str]
    advice: ClassVar[str]  # the hint where the raiser knows no better one

    def __init__(
        self, what: str, *, hint: str | None = None, where: Location | None = None
    ) -> None:
        self.what, self.where, self.hint = what, where, hint or self.advice
        super().__init__(_message(self.code, what, where, self.hint))


class OptionError(HemstitchError):
    """An option of `torch.compile(..., options=...)` is unknown or has a value it cannot have."""

    code = "H001"
    advice = "docs/user/options.md lists the options and their values"


class UnsupportedError(HemstitchError):
    """Something that Hemstitch does not compile was asked for by name."""

    code = "H002"
    advice = "leave this part of the program out of torch.compile"


class InternalError(HemstitchError):
    """Hemstitch found that it was wrong itself: an invariant of one of its stages does not hold."""

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
    """Says what runs through the library instead, where in the user's program, what to do next."""

    code: ClassVar[str]
    advice: ClassVar[str]

    def __init__(
        self, what: str, *, hint: str | None = None, where: Location | None = None
    ) -> None:
        self.what, self.where, self.hint = what, where, hint or self.advice
        super().__init__(_message(self.code, what, where, self.hint))


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
        what: str = "a graph could not be compiled and",
        begins: Location | None = None,
    ) -> None:
        """`begins`: where the graph does, for an error that has no place."""
        ours = error if isinstance(error, HemstitchError) else None
        why = repr(error) if ours is None else f"{ours.code}: {ours.what}"
        where = None if ours is None else ours.where
        if where is None and begins is not None:
            why = f"{why}, in the graph that begins here"
        super().__init__(
            f"{what} runs through the library: {why}",
            hint=None if ours is None else ours.hint,
            where=where or begins,
        )


class PlanWarning(HemstitchWarning):
    """A graph took too long to plan, and has more kernels than it could have."""

    code = "H009"
    advice = "results are the same, only slower; please report the program"

    def __init__(self, why: str) -> None:
        super().__init__(f"a graph is planned conservatively, since {why}")


class VersionWarning(HemstitchWarning):
    """PyTorch is newer than any that Hemstitch was tried with."""

    code = "H010"
    advice = (
        "if something fails, a newer Hemstitch may know this PyTorch, or an older PyTorch will do"
    )


def _message(code: str, what: str, where: Location | None, hint: str) -> str:
    place = [] if where is None else [f"  at {where}"]
    return "\n".join([f"{code}: {what}", *place, f"  hint: {hint}"])


def near_match(name: str, known: Iterable[str]) -> str:
    """`did you mean "planner"?`, or nothing where no known name is near."""
    matches = difflib.get_close_matches(name, tuple(known), n=1)
    return f'did you mean "{matches[0]}"?' if matches else ""
