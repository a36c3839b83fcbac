"""Who multiplies: the choice follows the rates, whatever processor the test runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from hemstitch.ir.types import DType
from hemstitch.machine.matmul_rates import MatmulTimings
from hemstitch.machine.probes import Probe, RateProbe
from hemstitch.measure import timing as measure
from hemstitch.measure.matmul_units import MeasuredUnits
from hemstitch.measure.performance_library import CachedTimes
from hemstitch.options import Options
from hemstitch.planning.plan import LibraryStep, Plan
from hemstitch.planning.planner import make_plan
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

NOMINAL = generic_cpu(2, 16)
TYPES = {torch.float32: DType.F32, torch.float16: DType.F16, torch.bfloat16: DType.BF16}


@dataclass(frozen=True)
class Host:
    """A clock as another processor has it. `library`, `kernel`: seconds for an element of a right
    operand, once and for each row; `beyond`: times as long a kernel takes for one beyond L2."""

    library: tuple[float, float] = (1e-10, 1e-11)
    kernel: tuple[float, float] = (1e-10, 1e-11)
    beyond: float = 1.0

    def __call__(self, probe: RateProbe) -> float:
        elements = probe.steps * probe.columns
        once, row = self.library if probe.by == "library" else self.kernel
        times = self.beyond if probe.by == "kernel" and elements > 1 << 20 else 1.0
        return 3e-6 + times * elements * (once + probe.rows * row)


def units(clock: Callable[[RateProbe], float | None]) -> MeasuredUnits:
    def find(probe: Probe) -> float | None:
        assert isinstance(probe, RateProbe)
        return clock(probe)

    return MeasuredUnits(NOMINAL.matrix_units, NOMINAL.threads, NOMINAL.lanes, CachedTimes(find))


def plan(clock: Callable[[RateProbe], float], dtype: torch.dtype, *sizes: int) -> Plan:
    """Of GELU after a layer."""
    rows, steps, columns = sizes
    x, w, b = torch.zeros(rows, steps), torch.zeros(columns, steps), torch.zeros(columns)
    arguments = [tensor.to(dtype) for tensor in (x, w, b)]
    ((graph, _),) = plans_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), arguments, NOMINAL)
    return make_plan(graph, replace(NOMINAL, matrix_units=units(clock)), Options())


def multiplies_in_a_kernel(*arguments) -> bool:
    return not any(isinstance(step, LibraryStep) for step in plan(*arguments).steps)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [4, 50, 128, 202, 1024])
def test_the_faster_one_multiplies(dtype, rows):
    fast, slow = (1e-10, 1e-11), (3e-10, 3e-11)
    sizes = (rows, 256, 1024)
    assert multiplies_in_a_kernel(Host(library=slow, kernel=fast), dtype, *sizes)
    assert not multiplies_in_a_kernel(Host(library=fast, kernel=slow), dtype, *sizes)


def test_few_rows_are_not_multiplied_as_many_are():
    """As on a Zen 5: a kernel packs in each call."""
    host = Host(library=(1e-10, 3e-11), kernel=(2e-9, 2e-11))
    kernels = [multiplies_in_a_kernel(host, torch.bfloat16, rows, 512, 768) for rows in (64, 1024)]
    assert kernels == [False, True]


def test_large_operands_are_not_multiplied_as_small_ones_are():
    """As on a Zen 3: what was packed lies beyond L2."""
    host = Host(kernel=(1e-10, 8e-12), beyond=2.0)
    sizes = (512, 512, 512), (512, 1536, 1536)
    assert [multiplies_in_a_kernel(host, torch.float32, *each) for each in sizes] == [True, False]


def test_the_last_tile_of_columns_takes_as_long_as_any():
    """33 columns take as long as 64."""
    host = Host(library=(1e-10, 1.4e-11))
    by_kernel = [multiplies_in_a_kernel(host, torch.float32, 512, 512, n) for n in (64, 33)]
    assert by_kernel == [True, False]


def test_each_type_has_its_own_rates():
    def clock(probe: RateProbe) -> float:
        is_slow = (probe.by == "library") == (probe.dtype is DType.F16)
        return 1e-6 + probe.operations * (3e-11 if is_slow else 1e-11)

    by_kernel = {dtype: multiplies_in_a_kernel(clock, dtype, 512, 256, 768) for dtype in TYPES}
    assert by_kernel == {torch.float32: False, torch.float16: True, torch.bfloat16: False}


def test_a_plan_says_why_the_library_multiplies():
    ((label, refusal),) = plan(Host(kernel=(1e-10, 5e-11)), torch.float32, 512, 256, 768).refusals
    assert label == "matmul of [768], [512, 256], [256, 768]"
    assert refusal.check == "matmul"
    assert "us by the library" in refusal.why and "us in a kernel" in refusal.why


@pytest.mark.parametrize("sizes", [(40, 512, 512), (1000, 512, 512), (1000, 1536, 1024)])
def test_rates_are_those_of_the_clock(sizes):
    """For numbers of rows that were not measured."""
    host = Host(library=(3e-10, 1e-11), kernel=(2e-10, 2e-11), beyond=1.5)
    rates, (rows, steps, columns) = units(host)[DType.F32].rates(DType.F32), sizes
    elements, pace = steps * columns, rates.packed.at(steps * columns)
    probe = RateProbe("kernel", DType.F32, *sizes, threads=2, lanes=16)
    assert elements * (pace.operand + rows * pace.row) == pytest.approx(host(probe), rel=0.02)
    theirs = rates.call + rates.library_seconds(1, elements, rows)
    assert theirs == pytest.approx(host(replace(probe, by="library")), rel=0.02)


def test_what_is_settled_is_not_measured_further():
    asked: list[RateProbe] = []

    def clock(probe: RateProbe) -> float:
        asked.append(probe)
        return Host(library=(1e-10, 1e-10))(probe)

    assert units(clock)[DType.BF16].share > 2.5
    near, far = MatmulTimings(DType.BF16, NOMINAL.threads, NOMINAL.lanes, {}).probes
    assert {*asked} == {*near} and not {*asked}.intersection(far)


def test_only_what_is_multiplied_is_measured():
    def clock(probe: RateProbe) -> float:
        raise AssertionError(f"{probe} is measured")

    x = torch.zeros(64, 256)
    ((graph, _),) = plans_of(lambda x: F.gelu(x).sort().values + x.cumsum(0), [x], NOMINAL)
    machine = replace(NOMINAL, matrix_units=units(clock))
    assert make_plan(graph, machine, Options()).kernels


def test_a_busy_processor_is_measured_by_the_clock_of_one_thread():
    """Whose rates each of them then has; and without that as well, nominal units are left."""
    host = Host(library=(1e-10, 3e-11))
    alone = units(lambda probe: host(probe) if probe.threads == 1 else None)[DType.F32]
    both = units(host)[DType.F32]
    assert alone.measured == both.measured.times_as_fast(2.0)
    assert alone.operations_per_second == pytest.approx(2 * both.operations_per_second)
    assert units(lambda probe: None)[DType.F32] == NOMINAL.matrix_units[DType.F32]


@pytest.mark.parametrize("size", ["small", "large"])
def test_this_processor_has_rates(size, monkeypatch):
    """By its own clock, and each of a few at once."""
    probes = dict(zip(("small", "large"), MatmulTimings(DType.F32, 1, 8, {}).probes))[size]
    small = [replace(p, steps=min(p.steps, 48), columns=min(p.columns, 32)) for p in probes]
    times = measure._rates(small)
    assert times.keys() == {*small} and all(0 < seconds < 1 for seconds in times.values())


def test_what_others_disturb_is_no_measurement(monkeypatch):
    monkeypatch.setattr(measure, "_undisturbed_seconds", lambda run: float("inf"))
    near, _ = MatmulTimings(DType.F32, 2, 8, {}).probes
    with pytest.raises(measure._Disturbed):
        measure._rates(near[:1])


def test_measured_together(monkeypatch):
    def times(probes: list[RateProbe]) -> Mapping[Probe, float]:
        return dict.fromkeys(probes, 1.0)

    monkeypatch.setattr(measure, "_rates", times)
    for probes in MatmulTimings(DType.F16, 4, 8, {}).probes:
        assert all(measure.measure(probe).keys() == {*probes} for probe in probes)
