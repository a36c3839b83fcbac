"""A file of results that is whole after every line, and the same lines on the screen."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.worker import Job, Line

SHOWN = 160  # characters of a line on the screen


class Results:
    def __init__(self, path: Path, machine: dict[str, object], command: dict[str, object]) -> None:
        self.path = path
        self.start = time.monotonic()
        self.record: dict[str, Any] = {
            "machine": machine,
            "command": command,
            "lines": {},
            "phases": [],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write()

    def add(self, name: str, line: Line) -> None:
        self.record["lines"].setdefault(name, []).append(line)
        self._write()
        print(f"{time.monotonic() - self.start:6.1f} {name}: {shown(line)}", flush=True)

    def end(self, name: str, phase: int, jobs: int, left_out: list[Job], seconds: float) -> None:
        """What a phase took, and what there was no time for."""
        self.record["phases"].append(
            {
                "slice": name,
                "phase": phase,
                "jobs": jobs,
                "left out": left_out,
                "seconds": round(seconds, 1),
            }
        )
        self._write()
        print(
            f"{time.monotonic() - self.start:6.1f} {name}, phase {phase}: {jobs} jobs, "
            f"{len(left_out)} left out, {seconds:.1f} s",
            flush=True,
        )

    def _write(self) -> None:
        """A run that is killed while it writes leaves the file before."""
        unfinished = self.path.with_suffix(".part")
        unfinished.write_text(json.dumps(self.record, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, self.path)


def shown(line: Line) -> str:
    text = ", ".join(f"{key} {value}" for key, value in line.items() if key != "device")
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
