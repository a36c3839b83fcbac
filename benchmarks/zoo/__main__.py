"""Tries models of public libraries and says which are right: docs/user/models.md, which it writes.

python -m benchmarks.zoo --json build/zoo.json            all; goes on where it stopped
python -m benchmarks.zoo --json build/zoo.json --only 'transformers/llama'
python -m benchmarks.zoo --json build/zoo.json --write    the table alone
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, version_of
from benchmarks.zoo.process import Limits, preload, row
from benchmarks.zoo.row import LIBRARIES, PHASES, How, judged, library
from benchmarks.zoo.table import line, write


def main() -> None:
    options = _options()
    path: Path = options.json
    record = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    if options.write:
        write(record, {package: len(library(package).names()) for package in LIBRARIES})
    else:
        preload()
        _try_all(options, record)


def _try_all(options: argparse.Namespace, record: dict[str, Any]) -> None:
    """Several models at once. What an earlier run knows is not tried again."""
    record["about"] = describe() | {name: version_of(name) for name in LIBRARIES}
    record["backend"], commit = options.backend, {"commit": _commit()}
    rows, limits = record["rows"], Limits(options.seconds, options.memory)
    with ThreadPoolExecutor(options.jobs) as pool:
        trials: dict[Future[dict[str, Any]], tuple[str, dict[str, Any]]] = {}
        for package, name, family in _chosen(options):
            key = f"{package}/{name}"
            before = {} if options.again else rows.get(key, {})
            phases = tuple(phase for phase in options.phase or PHASES if phase not in before)
            if not phases or "ended" in before or not before.get("built", True):
                continue
            how = How(options.backend, options.threads, phases)
            trials[pool.submit(row, judged, package, name, how, limits)] = (
                key,
                {"family": family, **before},
            )
        try:
            for trial in as_completed(trials):
                key, before = trials[trial]
                rows[key] = before | trial.result() | commit
                options.json.write_text(json.dumps(record, indent=1) + "\n")
                print(line(key, rows[key]), flush=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def _chosen(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """In an order of no meaning, so that a run that is cut short has some of every family."""
    chosen = [
        (package, name, family)
        for package in options.package or LIBRARIES
        for name, family in library(package).names().items()
        if re.search(options.only, f"{package}/{name}")
    ]
    return sorted(chosen, key=lambda row: hashlib.sha256("/".join(row[:2]).encode()).digest())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add: Any = parser.add_argument
    add("--json", type=Path, required=True, help="results; models that it has are not tried again")
    add("--only", default="", help="a regular expression that package/name must match")
    add("--package", action="append", choices=[*LIBRARIES], help="these packages alone")
    add("--phase", action="append", choices=PHASES, help="this alone, rather than both")
    add("--again", action="store_true", help="try models that the results have already")
    add("--backend", default="hemstitch")
    add("--threads", type=int, default=1)
    add("--jobs", type=int, default=os.cpu_count() or 1, help="models at once")
    add("--seconds", type=int, default=300, help="of processor time, a model")
    add("--memory", type=int, default=24, help="GiB of addresses, a model")
    add("--write", action="store_true", help="write docs/user/models.md, try nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
