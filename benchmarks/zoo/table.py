"""docs/user/models.md from the results of `benchmarks.zoo`: a row for each family, then a line for
each model that is not right or falls back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.table import USER

PAGE = USER / "models.md"
PHASES = ("inference", "training")
RIGHT = ("right", "wrong as aot_eager")  # the second is PyTorch's own
UNTRIED = ("not run", "not traced")  # by eager PyTorch, or by aot_eager
COLUMNS = ("models", "built", "tried", "right", "wrong", "raised", "fell back", "ended")
HEAD = """\
# Models of public libraries

Made by `python -m benchmarks.zoo --write` from what `python -m benchmarks.zoo` tried. Each model is
tiny, has random weights, and runs in a process of its own with limits of time and memory: once for
an answer, once for a training step.

| column | meaning |
|---|---|
| models, built | models that the library offers; those that could be made tiny |
| tried | answers and steps that eager PyTorch repeats exactly and `aot_eager` can trace |
| right | results and gradients within the bound below, or wrong in the same way with `aot_eager` |
| wrong, raised | results or gradients beyond the bound; an exception |
| fell back | a warning H007 or H008 |
| ended | the process did not come to its end |

The bound: an element may be four times as far from float64 as eager's worst element, or as far as
rounding explains. Some models amplify rounding (a ReLU near zero, a batch norm over two values).
For these one of five runs must hold the bound, with parameters and inputs moved by at most a unit
in the last place.
"""

Row = Mapping[str, Any]


def line(key: str, row: Row) -> str:
    return f"{key:50} {row['seconds']:7.1f} s  {outcome(row)}"


def outcome(row: Row) -> str:
    if not row.get("built", True):
        return f"not built: {row['why'][:100]}"
    words = [f"{name} {_said(row[name])}" for name in PHASES if name in row]
    return ", ".join([*words, *([f"ended {row['ended']}"] if "ended" in row else [])])


def write(record: Mapping[str, Any], known: Mapping[str, int]) -> None:
    """`known`: how many models of each package there are to try."""
    rows: Mapping[str, Row] = record["rows"]
    families: dict[str, list[Row]] = defaultdict(list)
    for row in rows.values():
        families[f"{row['package']}: {row['family']}"].append(row)
    lines = [f"| family | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    lines += [_table_line(name, families[name]) for name in sorted(families)]
    lines += [_table_line("all", [*rows.values()]), "", _conditions(record)]
    lines += ["", _coverage(rows, known)]
    lines += ["", "## Not right, or fell back", "", *_others(rows)]
    PAGE.write_text(f"{HEAD}\n" + "\n".join(lines) + "\n")


def _said(phase: Row) -> str:
    parts = [phase["state"], phase.get("why") or "", *dict.fromkeys(phase.get("fallbacks") or [])]
    return " ".join(part.replace("\n", " ")[:200] for part in parts if part)


def _table_line(name: str, rows: Sequence[Row]) -> str:
    phases = [row[phase] for row in rows for phase in PHASES if phase in row]
    tried = [phase for phase in phases if phase["state"] not in UNTRIED]
    counts = (
        len(rows),
        sum(row.get("built", False) for row in rows),
        len(tried),
        sum(phase["state"] in RIGHT for phase in tried),
        sum(phase["state"] == "wrong" for phase in tried),
        sum(phase["state"] == "raised" for phase in tried),
        sum(bool(phase.get("fallbacks")) for phase in tried),
        sum("ended" in row for row in rows),
    )
    return f"| {name} | {' | '.join(map(str, counts))} |"


def _conditions(record: Mapping[str, Any]) -> str:
    about = record["about"]
    commits = ", ".join(sorted({row["commit"] for row in record["rows"].values()}))
    names = ("torch", "transformers", "timm", "torchvision", "diffusers", "torch_geometric")
    versions = ", ".join(f"{name} {about[name]}" for name in names)
    when = f"{about['date'][:10]}, commits {commits}"
    return f"{when}, {about['processor']} ({about['vectors']}): {versions}."


def _coverage(rows: Mapping[str, Row], known: Mapping[str, int]) -> str:
    parts = []
    for package, count in known.items():
        of_package = [row for row in rows.values() if row["package"] == package]
        phases = [sum(phase in row for row in of_package) for phase in PHASES]
        parts.append(f"{package} {len(of_package)} of {count} ({phases[0]}, {phases[1]})")
    return f"Tried, and of those for an answer and for a step: {'; '.join(parts)}."


def _others(rows: Mapping[str, Row]) -> Iterator[str]:
    for key in sorted(rows):
        row = rows[key]
        phases = [row[phase] for phase in PHASES if phase in row]
        tried = [phase for phase in phases if phase["state"] not in UNTRIED]
        is_clean = all(p["state"] == "right" and not p.get("fallbacks") for p in tried)
        if "ended" in row or not is_clean:
            yield f"- `{key}`: {outcome(row)}"
