"""FusionStitching 2018 and 2019: row F1-15, the performance library."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path

import pytest
import torch

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.printer import show
from hemstitch.machine.probes import MatmulProbe, OperationProbe, Probe
from hemstitch.measure import performance_library as performance
from hemstitch.measure.performance_library import PerformanceLibrary, key_of
from hemstitch.measure.timing import _fastest, measure
from hemstitch.toolchain.jit import host_target
from tests.effort import IS_WHOLE
from tests.papers.harness import CPU, Planned, plan, random

PROBE = OperationProbe(Op.EXP, DType.F32, DType.F32, rows=2, length=1024, lanes=8)
OTHER = OperationProbe(
    Op.LOG, DType.F16, DType.F64, rows=4, length=512, lanes=16, step=2, across=False
)
# Plans a softmax with what the folder lacks measured, and says how often that was.
PROCESS = """
import sys
from pathlib import Path
from tests.papers.test_performance_library import measurements

print(measurements(Path(sys.argv[1])))
"""


def measurements(place: Path) -> int:
    """How often planning a softmax measures."""
    asked: list[OperationProbe] = []
    softmax_with(PerformanceLibrary(place, lambda probe: (asked.append(probe), measure(probe))[1]))
    return len(asked)


def never(probe: Probe) -> Mapping[Probe, float]:
    raise AssertionError(f"{probe} is measured again")


def softmax_with(measured: Mapping[Probe, float]) -> Planned:
    machine = replace(CPU, threads=1, measured=measured)
    return plan(lambda x: torch.softmax(x, -1), torch.zeros(64, 1000), machine=machine)


def in_new_process(place: Path) -> int:
    """How often it measures."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROCESS, str(place)]
    paths = os.pathsep.join([str(root), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(run.stdout)


def test_F1_15_a_second_process_measures_nothing(tmp_path, measured):
    first = measurements(tmp_path)
    assert first > 0
    if IS_WHOLE:  # it takes long to start
        assert in_new_process(tmp_path) == 0
    known = PerformanceLibrary(tmp_path, never)  # as another process would have it
    softmax_with(known)
    assert len(known) == first
    measured(f"{first} measurements for a softmax, 0 in the next process")


@pytest.mark.parametrize("name", [field.name for field in fields(OperationProbe)])
def test_F1_15_the_key_has_all_that_matters(name):
    """The operation, its types, its shape, and how that is mapped to lanes and read."""
    assert getattr(PROBE, name) != getattr(OTHER, name)
    assert key_of(PROBE) != key_of(replace(PROBE, **{name: getattr(OTHER, name)}))


@pytest.mark.parametrize("name", ["processor", "version"])
def test_F1_15_the_key_has_processor_and_versions(name, monkeypatch):
    usual = key_of(PROBE)
    monkeypatch.setattr(performance, name, lambda *_: "another one")
    assert key_of(PROBE) != usual


def test_F1_15_only_a_miss_is_measured(tmp_path):
    found = PerformanceLibrary(tmp_path, lambda probe: {probe: 1e-6})
    assert not list(tmp_path.iterdir())
    assert found[PROBE] == found[PROBE] == 1e-6 and len(list(tmp_path.iterdir())) == 1
    assert PerformanceLibrary(tmp_path, never)[PROBE] == 1e-6


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"seconds": "1"}', '{"seconds": -1.0}', '{"seconds": NaN}']
)
def test_F1_15_a_record_that_is_not_whole_is_measured_again(tmp_path, text):
    PerformanceLibrary(tmp_path, lambda probe: {probe: 1e-6})[PROBE]
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert PerformanceLibrary(tmp_path, lambda probe: {probe: 2e-6})[PROBE] == 2e-6
    assert json.loads(file.read_text())["seconds"] == 2e-6


def test_F1_15_processes_that_measure_the_same_at_once(tmp_path):
    def while_another_does(probe: Probe) -> Mapping[Probe, float]:
        assert PerformanceLibrary(tmp_path, lambda probe: {probe: 3e-6})[probe] == 3e-6
        return {probe: 4e-6}

    assert PerformanceLibrary(tmp_path, while_another_does)[PROBE] == 4e-6
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["seconds"] in (3e-6, 4e-6)


def test_F1_15_what_cannot_be_measured_or_kept_does_no_harm(tmp_path):
    refused = PerformanceLibrary(tmp_path, never)
    assert refused.get(PROBE) is None and len(refused) == 0
    nowhere = tmp_path / "file"
    nowhere.write_text("not a folder")
    assert PerformanceLibrary(nowhere, lambda probe: {probe: 1e-6})[PROBE] == 1e-6
    assert show(softmax_with(refused).kernel) == show(softmax_with({}).kernel)


def test_F1_15_what_is_compared_takes_turns():
    asked: list[str] = []
    times = _fastest(lambda: asked.append("one"), lambda: asked.append("other"))
    turns = [name for name, _ in groupby(asked)]
    assert len(times) == 2 and len(turns) > 2 and turns == ["one", "other"] * (len(turns) // 2)


def test_F1_15_both_ways_of_a_product_are_measured_together(tmp_path):
    """Whichever is asked for, and with a record of each: at another time something else may run."""
    kernel = MatmulProbe("kernel", DType.F32, 64, 64, 64, threads=1, lanes=host_target().lanes)
    library = replace(kernel, by="library")
    found = measure(kernel)
    assert found.keys() == measure(library).keys() == {library, kernel}
    assert all(0 < seconds < 1 for seconds in found.values())
    first = PerformanceLibrary(tmp_path, lambda probe: found)
    assert first[kernel] == found[kernel]
    assert PerformanceLibrary(tmp_path, never)[library] == found[library]


def test_F1_15_by_option(tmp_path, monkeypatch):
    """While PyTorch compiles, among its fake tensors."""
    monkeypatch.setenv("HOME", str(tmp_path))
    x = random(64, 1000)
    for is_tuned in (False, True):
        performance.library.cache_clear()
        torch._dynamo.reset()
        options = {"tune": is_tuned, "strict": True}
        compiled = torch.compile(centred, backend="hemstitch", options=options)
        assert torch.allclose(compiled(x), centred(x), atol=1e-3)
        records = [json.loads(path.read_text()) for path in tmp_path.rglob("*.json")]
        assert bool(records) is is_tuned
    assert all(0 < record["seconds"] < 1 for record in records)
    assert any("FLOOR" in record["key"] for record in records)
    performance.library.cache_clear()


def by_vectors(dear: Op, times: float) -> Callable[[OperationProbe], Mapping[Probe, float]]:
    """A clock of the test's: every vector takes as long, but for one operation."""

    def seconds(probe: OperationProbe) -> Mapping[Probe, float]:
        each = 1e-9 * (times if probe.op is dear else 1)
        return {probe: 1e-7 + each * probe.rows * math.ceil(probe.length / probe.lanes)}

    return seconds


def centred(x: torch.Tensor) -> torch.Tensor:
    y = torch.floor(x)
    return y - y.sum(1, keepdim=True)


def test_F1_15_a_dear_operation_changes_the_plan(tmp_path, measured):
    """One kernel rounds every element twice, as that is nominally cheaper than to keep the row."""

    def planned(times: float) -> int:
        place = tmp_path / str(times)
        for answers in (by_vectors(Op.FLOOR, times), never):
            machine = replace(CPU, measured=PerformanceLibrary(place, answers))
            count = len(plan(centred, random(512, 1024), machine=machine).kernels)
        return count

    assert (planned(1), planned(1000)) == (1, 2)
    measured("floor measured at 1000 times a negation: computed once by 2 kernels, not twice by 1")
