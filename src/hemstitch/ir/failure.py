"""What a call raises where a check of its data does not hold, as eager has it."""

from __future__ import annotations

import json
from dataclasses import dataclass

EXCEPTIONS: dict[str, type[Exception]] = {"IndexError": IndexError, "RuntimeError": RuntimeError}


@dataclass(frozen=True, slots=True)
class Failure:
    """`error`: the name of an exception of Python's; `message`: what it says."""

    error: str
    message: str

    def __str__(self) -> str:
        return f"{self.error} {json.dumps(self.message)}"

    @property
    def text(self) -> str:
        """As a traceback has it."""
        return f"{self.error}: {self.message}"

    @staticmethod
    def of(text: str) -> Failure:
        return Failure(*text.split(": ", 1))

    def exception(self) -> Exception:
        return EXCEPTIONS[self.error](self.message)


OUT_OF_RANGE = Failure("IndexError", "index out of range in self")  # of an embedding, say
