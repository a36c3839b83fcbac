"""Two processes of a job, started as users do: by torchrun, on gloo. One test, since processes take
long to start and workers of pytest would each start theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("two_ranks.py")
MOST_SECONDS = 300
TOLERANCE = 1e-6  # of a gradient's norm, in f32; eager's own distance from one process is 2.5e-7


def found_by_ranks(folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(SCRIPT), str(folder)]
    paths = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    job = subprocess.Popen(command, env=environment, text=True, **pipe)
    try:
        text, _ = job.communicate(timeout=MOST_SECONDS)
    finally:
        job.terminate()  # and with it the ranks
    assert job.returncode == 0, text
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks_are_as_one_process(tmp_path):
    ranks = found_by_ranks(tmp_path)
    for rank, found in enumerate(ranks):
        for way, error in found["errors"].items():
            assert error <= TOLERANCE, f"gradients of rank {rank}, {way}"
        for way, collectives in found["collectives"].items():
            assert collectives["compiled"] == collectives["eager"], f"rank {rank}, {way}"
            assert collectives["error"] <= TOLERANCE, f"results of rank {rank}, {way}"
        assert all(found["late"].values()), f"rank {rank} did not wait: {found['late']}"
    assert_planned_alike(*ranks)


def assert_planned_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Though each would have planned with other figures."""
    assert one["matmul_units"]["own"] > 1 > other["matmul_units"]["own"]
    assert one["matmul_units"]["taken"] == other["matmul_units"]["own"], "rank 1 was first"
    assert one["plans"]
    for number, (plan, its) in enumerate(zip(one["plans"], other["plans"], strict=True)):
        assert plan == its, f"graph {number}"
