"""Refusals: why groups cannot be one kernel."""

from __future__ import annotations

from dataclasses import dataclass

OPAQUE = "opaque"  # the check for types that only the library handles


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why groups cannot be one kernel: the check that failed, and its reason. `lasts`: it fails as
    well with any further members."""

    check: str
    why: str
    lasts: bool = False

    def __str__(self) -> str:
        return f"{self.check}: {self.why}"


class Refused(Exception):
    """Raises a Refusal from within an attempt; one place catches it."""

    def __init__(self, check: str, why: str, *, lasts: bool = False) -> None:
        super().__init__(f"{check}: {why}")
        self.refusal = Refusal(check, why, lasts)
