"""A "no" that carries its reason."""

from __future__ import annotations

from dataclasses import dataclass

OPAQUE = "opaque"  # the check that says no where the library is meant to do it


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something may not be one kernel: the check that said no, and what it saw. `lasts`: it
    stays so, whatever else joins."""

    check: str
    why: str
    lasts: bool = False

    def __str__(self) -> str:
        return f"{self.check}: {self.why}"


class Refused(Exception):
    """Carries a Refusal from deep inside an attempt to the one place that catches it."""

    def __init__(self, check: str, why: str, *, lasts: bool = False) -> None:
        super().__init__(f"{check}: {why}")
        self.refusal = Refusal(check, why, lasts)
