"""Runs random programs of PyTorch's functions, compiled and in eager, and says where they differ.

python -m benchmarks.random_functions --seeds 0:20000    goes on where it stopped
python -m benchmarks.random_functions --seeds 17 --print  the program of a seed
python -m benchmarks.random_functions --show              what differed

A row of the file is a seed. `kind` is "same"; "left out", where eager does not run the program or
gives other numbers each time; "PyTorch's: ...", where `aot_eager` differs as well; or what differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.random_functions.draw import drawn
from benchmarks.random_functions.process import rows
from benchmarks.random_functions.program import described

FINE = ("same", "left out", "PyTorch's")


def main() -> None:
    options = _options()
    start, _, end = options.seeds.partition(":")
    seeds = range(int(start), int(end or int(start) + 1))
    if options.print:
        print("\n\n".join(f"# seed {seed}\n{described(drawn(seed))}" for seed in seeds))
        return
    path: Path = options.json
    known = _read(path)
    if not options.show:
        done = {row["seed"] for row in known}
        commit = _commit()
        left = [seed for seed in seeds if seed not in done]
        with path.open("a") as file:
            for row in rows(left, options.chunk, options.seconds, options.shrink):
                file.write(json.dumps({"commit": commit, **row}) + "\n")
                file.flush()
                if not row["kind"].startswith(FINE):
                    print(f"seed {row['seed']}: {row['kind']}: {row['text'][:200]}", flush=True)
        known = _read(path)
    _show(known)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _show(known: list[dict[str, Any]]) -> None:
    for row in known:
        if not row["kind"].startswith(FINE):
            print(f"# seed {row['seed']}: {row['kind']}: {row['text']}\n{row.get('program')}\n")
    for (commit, kind), count in sorted(Counter((x["commit"], x["kind"]) for x in known).items()):
        print(f"{commit} {kind}: {count}")


def _commit() -> str:
    command = ("git", "describe", "--always", "--dirty", "--abbrev=8")
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add: Any = parser.add_argument
    add("--seeds", default="0:20000", help="from:to")
    add("--json", type=Path, default=Path("build/random.jsonl"), help="rows, one a line")
    add("--chunk", type=int, default=200, help="seeds a child process")
    add("--seconds", type=float, default=600.0, help="until something is taken to hang")
    add("--shrink", type=float, default=60.0, help="seconds to make a program shorter")
    add("--print", action="store_true", help="print programs, run nothing")
    add("--show", action="store_true", help="print what differed, run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
