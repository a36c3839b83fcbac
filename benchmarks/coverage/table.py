"""docs/compiler/coverage.md from the results of `benchmarks.coverage`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.coverage.row import rules
from benchmarks.zoo.row import PHASES
from hemstitch import pipeline
from hemstitch.pipeline import KERNEL, Stage

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compiler" / "coverage.md"
HEAD = """\
# What each stage and rule is for

Made by `python -m benchmarks.coverage --write` from what `python -m benchmarks.coverage` counted.
Models of public libraries, tiny and with random weights, are planned for a processor with two
threads: for an answer, and for a step of training. Nothing is timed.

- *answers*, *steps*: of how many of them the stage changes something.
- *launches*, *bytes*, *operations*: what the program costs more without the stage, in all its
  kernels and library calls: the median, and the largest, of the models in which it changes
  something. Operations are those of the kernel IR, each as often as it runs, and of library calls
  what PyTorch's counter of flops says. *needed*: something does not compile without the stage. A
  dash: it only changes the order of what is done.
"""

Row = Mapping[str, Any]


def write(record: Mapping[str, Any]) -> None:
    rows = [row for row in record["rows"].values() if row.get("built") and "ended" not in row]
    lines = ["", _conditions(record, rows), ""]
    for title, stages in (
        ("Before autograd, and on the graphs that it gives", _traced()),
        ("On the graph IR, and on plans", _planned()),
        ("On kernels, for processors", pipeline.CPU_LOWERING),
    ):
        head = "| stage | answers | steps | launches | bytes | operations |"
        lines += [f"## {title}", "", head, "|---|---|---|---|---|---|"]
        lines += [_line(stage, rows) for stage in stages if stage.gives is not pipeline.TEXT]
        lines.append("")
    lines += ["## Rules of the graph IR", "", "| rule | answers | steps |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {_count(f'rule {name}', rows, 'inference')} | "
        f"{_count(f'rule {name}', rows, 'training')} |"
        for name in rules()
    ]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


def _traced() -> Sequence[Stage]:
    return (*pipeline.BEFORE_AUTOGRAD, *pipeline.AFTER_AUTOGRAD)


def _planned() -> Sequence[Stage]:
    return pipeline.stages_to(pipeline.CPU, pipeline.GRAPH, pipeline.PROGRAM)


def _conditions(record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    about = record["about"]
    versions = ", ".join(f"{name} {about[name]}" for name in ("torch", *_packages(rows)))
    answers, steps = (sum("fired" in row.get(phase, {}) for row in rows) for phase in PHASES)
    models = ", ".join(
        f"{sum(row['package'] == package for row in rows)} of {package}"
        for package in _packages(rows)
    )
    counts = f"{len(rows)} models ({models}), {answers} answers, {steps} steps"
    return f"{about['date'][:10]}: {counts}; {versions}."


def _packages(rows: Sequence[Row]) -> list[str]:
    return sorted({row["package"] for row in rows})


def _line(stage: Stage, rows: Sequence[Row]) -> str:
    counts = [str(_count(stage.name, rows, phase, stage.gives is KERNEL)) for phase in PHASES]
    return f"| {stage.name} | {' | '.join([*counts, *_gains(stage.name, rows)])} |"


def _count(name: str, rows: Sequence[Row], phase: str, is_of_kernels: bool = False) -> int:
    of = "kernel_stages" if is_of_kernels else "fired"
    return sum(name in row.get(phase, {}).get(of, {}) for row in rows)


def _gains(name: str, rows: Sequence[Row]) -> Iterator[str]:
    known = [
        (row[phase]["gains"][name], row[phase]["cost"])
        for row in rows
        for phase in PHASES
        if name in row.get(phase, {}).get("gains", {})
    ]
    if any(name in row.get(phase, {}).get("needed", ()) for row in rows for phase in PHASES):
        yield from ("needed",) * 3
        return
    for place in range(3):
        shares = [gain[place] / cost[place] for gain, cost in known if cost[place]]
        yield f"{median(shares):+.1%}, {max(shares):+.0%}" if any(shares) else "-"
