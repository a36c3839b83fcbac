"""Plans models of public libraries and counts which stages and rules found work, and what a
program costs without them: see docs/compiler/coverage.md, which it writes.

python -m benchmarks.coverage --json build/coverage.json            goes on where it stopped
python -m benchmarks.coverage --json build/coverage.json --write    the table alone
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor, as_completed
from hashlib import sha256
from pathlib import Path

from benchmarks.coverage.row import THREADS, covered
from benchmarks.coverage.table import write
from benchmarks.machine import describe, version_of
from benchmarks.zoo.process import Limits, preload, row
from benchmarks.zoo.row import PHASES, How, library

PACKAGES = ("transformers", "timm", "torchvision", "torch_geometric")


def main() -> None:
    options = _options()
    path: Path = options.json
    record = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    if options.write:
        write(record)
        return
    preload()
    record["about"] = describe() | {name: version_of(name) for name in PACKAGES}
    rows, limits = record["rows"], Limits(options.seconds, options.memory)
    how = How("hemstitch", THREADS, PHASES)
    with ThreadPoolExecutor(options.jobs) as pool:
        trials = {}
        for package in PACKAGES:
            for name in _sample(package, options.models):
                if f"{package}/{name}" not in rows:
                    trial = pool.submit(row, covered, package, name, how, limits)
                    trials[trial] = f"{package}/{name}"
        for trial in as_completed(trials):
            rows[trials[trial]] = trial.result()
            path.write_text(json.dumps(record, indent=1) + "\n")
            print(trials[trial], rows[trials[trial]]["seconds"], flush=True)


def _sample(package: str, count: int) -> list[str]:
    """In an order of no meaning."""
    return sorted(library(package).names(), key=lambda name: sha256(name.encode()).digest())[:count]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--models", type=int, default=30, help="of each library")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=600, help="of processor time, for each")
    parser.add_argument("--memory", type=int, default=40, help="GiB of addresses, for each")
    parser.add_argument("--write", action="store_true", help="docs/compiler/coverage.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
