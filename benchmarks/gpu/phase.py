"""The form of a slice: phases one after the other, each a list of jobs that may use what the phases
before have found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu.worker import Job, Line


@dataclass(frozen=True, slots=True)
class Phase:
    """`parallel`: jobs do not disturb each other, as they do where times are taken; `in_turns`: not
    until they say that they are ready. `job_seconds`: after so long a job is stopped."""

    jobs: Callable[[str, list[Line]], list[Job]]
    job_seconds: float
    parallel: bool = False
    in_turns: bool = False
