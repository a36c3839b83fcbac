"""Launches and bytes of the fifty programs on a GPU that is not there, Hemstitch's against
Inductor's and against what they need.

python -m benchmarks.launches                    Hemstitch anew, Inductor as in the results
python -m benchmarks.launches --inductor --json benchmarks/results/launches.json    both anew
python -m benchmarks.launches --table            the file's numbers into docs/user/kernel-counts.md
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import counting
from benchmarks.counting import launches, moved
from benchmarks.launches import FAMILIES
from benchmarks.launches.program import Stitchable, floor
from benchmarks.table import COUNTS, write
from hemstitch.report.explain import Report

FOLDER = Path(__file__).resolve().parents[2]
RESULTS = FOLDER / "benchmarks" / "results" / "launches.json"
START, END = "<!-- launches: made by benchmarks/launches -->", "<!-- end of launches -->"
Line = dict[str, Any]


def known_of_inductor() -> dict[str, Line]:
    """As counted before, by program."""
    lines = json.loads(RESULTS.read_text())["lines"] if RESULTS.exists() else []
    return {line["program"]: line["inductor"] for line in lines}


def count(program: Stitchable, family: str, theirs: Line | None) -> Line:
    """One line of the result. `theirs`: Inductor's part if it is known, else it compiles too.
    `bytes_again`: those read again behind a barrier."""
    report = counting.ours(program)
    return {
        "program": program.name,
        "family": family,
        "direction": "both" if program.backward else "forward",
        "ideal": program.ideal,
        "floor": floor(program) if program.moves else None,
        "hemstitch": counting.line(report) | {"bytes_again": report.bytes_again},
        "inductor": theirs or counting.line(counting.theirs(program)),
        "reasons": reasons(report),
    }


def reasons(report: Report) -> list[str]:
    """The planner's, each once, and what it leaves to the library."""
    refused = (refusal.partition(": ")[2] for refusal in report.refusals)
    calls = Counter(call.removesuffix(".default") for call in report.library_calls)
    named = (f"{call} x {number}" if number > 1 else call for call, number in calls.items())
    return [*dict.fromkeys(refused), *(f"library: {name}" for name in named)]


def measure(only: str, inductor: bool) -> Line:
    counting.pretend()
    known = {} if inductor else known_of_inductor()
    lines = []
    for family, programs in FAMILIES.items():
        for program in programs:
            if only in program.name:
                lines.append(count(program, family, known.get(program.name)))
                print(row(lines[-1]), flush=True)
    print(total(lines))
    return {"about": counting.about(), "lines": lines}


def ratio(line: Line, *, again: bool) -> float:
    """Bytes over the floor. `again`: count those that are read again behind a barrier."""
    ours = line["hemstitch"]
    once = moved(ours) - (0 if again else ours["bytes_again"])
    return float(once / line["floor"])


def row(line: Line) -> str:
    ours, ideal = line["hemstitch"], line["ideal"]
    passes = {"both": "forward + backward"}.get(line["direction"], "forward")
    cells = [line["program"], passes, launches(line["inductor"]), launches(ours), ideal]
    has_floor = line["floor"] is not None
    cells += [f"{ratio(line, again=again):.2f}" if has_floor else "" for again in (False, True)]
    cells.append("; ".join(line["reasons"]) if launches(ours) > ideal else "")
    return f"| {' | '.join(map(str, cells))} |"


def total(lines: Sequence[Line]) -> str:
    theirs, ours = (sum(launches(line[name]) for line in lines) for name in counting.NAMES)
    ideal = sum(line["ideal"] for line in lines)
    return f"| together | | {theirs} | {ours} | {ideal} | | | |"


def table(record: Line) -> list[str]:
    made, lines = record["about"], record["lines"]
    return [
        "| program | passes | Inductor | Hemstitch | ideal | bytes / floor | with those again "
        "| why more than ideal |",
        "|---|---|---|---|---|---|---|---|",
        *map(row, lines),
        total(lines),
        "",
        f"{made['date']}, PyTorch {made['torch']}, Triton {made['triton']}, for an H200.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.launches")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--inductor", action="store_true", help="count Inductor's anew")
    parser.add_argument("--table", action="store_true", help=f"{RESULTS.name} into {COUNTS.name}")
    arguments = parser.parse_args()
    if arguments.table:
        rows = table(json.loads(RESULTS.read_text()))
        write(COUNTS, rows, START, END)
        return
    counting.with_stand_in("benchmarks.launches")
    record = measure(arguments.only, arguments.inductor)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
