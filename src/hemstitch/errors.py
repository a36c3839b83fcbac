"""Every error and warning that a user can see: one class, one code, one paragraph in
docs/errors.md."""

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
        lines = [f"{self.code}: {what}"]
        if where is not None:
            lines.append(f"  at {where}")
        lines.append(f"  hint: {self.hint}")
        super().__init__("\n".join(lines))


class OptionError(HemstitchError):
    """An option of `torch.compile(..., options=...)` is unknown or has a value it cannot have."""

    code = "H001"
    advice = "docs/errors.md lists the options and their values"


class UnsupportedError(HemstitchError):
    """Something that Hemstitch does not compile was asked for by name."""

    code = "H002"
    advice = "leave this part of the program out of torch.compile"


class InternalError(HemstitchError):
    """Hemstitch found that it was wrong itself: an invariant of one of its stages does not hold."""

    code = "H003"
    advice = "this is a bug in Hemstitch: please report it with this message and the program"


class InputError(HemstitchError):
    """A compiled graph was called with a tensor that it was not compiled for."""

    code = "H004"
    advice = "call the compiled module itself: it recompiles for new types, devices and sizes"


class DifferenceError(HemstitchError):
    """With `verify`, a result differed from that of eager PyTorch."""

    code = "H005"
    advice = "this is a bug in Hemstitch: please report it with this message and the program"


class KernelBuildError(HemstitchError):
    """With `strict`, a kernel could not be built; without it this becomes a KernelBuildWarning."""

    code = "H006"
    advice = "without the option `strict` the operations of this kernel run through the library"


class KernelBuildWarning(UserWarning):
    """A kernel could not be built; its operations run through the library instead."""

    code: ClassVar[str] = "H007"

    def __init__(self, kernel: str, why: str) -> None:
        self.kernel, self.why = kernel, why
        super().__init__(
            f"{self.code}: {kernel} could not be built and runs through the library: {why}"
        )


def near_match(name: str, known: Iterable[str]) -> str:
    """`did you mean "planner"?`, or nothing where no known name is near."""
    found = difflib.get_close_matches(name, tuple(known), n=1)
    return f'did you mean "{found[0]}"?' if found else ""
