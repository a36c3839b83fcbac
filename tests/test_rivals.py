"""Whole models by other compilers: that each way does the same work, and that what is measured is
what it says. Rivals that are not installed are skipped."""

from __future__ import annotations

import importlib
import importlib.util
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.rivals import compilers, memory, ours, problem, substitutes, table, turns
from benchmarks.rivals.problem import Made
from benchmarks.rivals.turns import Measured, Setting
from benchmarks.rivals.ways import INFERENCE, TRAINING, Way
from benchmarks.timing import Timing

EXACT = 1e-4


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def skip_without(way: str) -> None:
    for package in INFERENCE[way].packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: requirements/rivals.txt")


def apart(name: str, training: bool, way: str) -> float:
    """From eager's results, at the tiny size."""
    ways = TRAINING if training else INFERENCE
    module = importlib.import_module(f"benchmarks.rivals.{ways[way].module}")
    exact = compilers.prepare(problem.made(name, "tiny", training, dropout=0.0))
    made = problem.made(name, "tiny", training, dropout=0.0)
    prepared = module.prepare(made, **ways[way].settings)
    prepared.step()  # the first one changes no later one
    results = prepared.results(prepared.step())
    return problem.distance(results, exact.results(exact.step()))


@pytest.mark.parametrize("training", (True, False))
def test_ours_does_what_eager_does(training: bool) -> None:
    assert apart("gcn", training, "hemstitch") < EXACT


def test_frozen_weights_give_what_eager_does() -> None:
    assert apart("bert-line", False, "frozen") < EXACT


@pytest.mark.parametrize(
    ("way", "training"),
    [("xla", True), ("xla", False), ("onnx runtime", False), ("openvino", False)],
)
def test_rivals_do_what_eager_does(way: str, training: bool) -> None:
    skip_without(way)
    assert apart("xml-cnn", training, way) < EXACT


def test_dropout_of_xla_differs_from_step_to_step() -> None:
    skip_without("xla")
    xla = importlib.import_module("benchmarks.rivals.xla")
    prepared = xla.prepare(problem.made("gcn", "tiny", True, dropout=0.5))
    one, other = (prepared.results(prepared.step())["loss"][0].item() for _ in range(2))
    assert one != other


class Layer(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(super().forward(x))


def one_layer() -> Made:
    return Made(Layer(8, 16).eval(), {"x": torch.randn(4, 8)}, training=False)


def test_inductor_is_listened_to() -> None:
    inductor = importlib.import_module("benchmarks.rivals.inductor")
    prepared = inductor.prepare(one_layer())
    counts = prepared.counts()
    assert (counts["kernels"], counts["library_calls"]) == (1, 1)
    assert counts["megabytes"] == pytest.approx(2 * 4 * 16 * 4 / 1e6)
    assert counts["library_megabytes"] == pytest.approx((4 * 8 + 8 * 16 + 16 + 4 * 16) * 4 / 1e6)


def test_our_kernels_are_counted_without_products_too() -> None:
    counts = ours.counts(one_layer())
    assert (counts["kernels_without_products"], counts["library_calls_without_products"]) == (1, 1)
    assert counts["megabytes_without_products"] == pytest.approx(2 * 4 * 16 * 4 / 1e6)
    assert counts["library_megabytes_without_products"] == pytest.approx(
        (4 * 8 + 8 * 16 + 16 + 4 * 16) * 4 / 1e6
    )


@pytest.mark.parametrize("steps", (7, 12))
def test_ctc_loss(steps: int) -> None:
    scores = torch.randn(steps, 3, 5, requires_grad=True)
    labels = torch.tensor([[1, 1, 2], [3, 4, 0], [2, 0, 0]])
    given = (labels, torch.full((3,), steps), torch.tensor([3, 2, 1]))
    losses = [loss(scores.log_softmax(-1), *given) for loss in (F.ctc_loss, substitutes.ctc_loss)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, scores) for loss in losses))


@pytest.mark.parametrize("length", (8, 11))
def test_adaptive_pooling(length: int) -> None:
    x = torch.randn(2, 3, length)
    expected = F.adaptive_max_pool1d(x, 3)
    with substitutes.substituted():
        assert torch.equal(F.adaptive_max_pool1d(x, 3), expected)
    assert F.adaptive_max_pool1d is not substitutes.adaptive_max_pool1d


def test_a_distance_is_the_largest_of_all_results() -> None:
    exact = {"loss": [torch.tensor(2.0)], "gradients": [torch.tensor([3.0]), torch.tensor([4.0])]}
    found = {"loss": [torch.tensor(2.0)], "gradients": [torch.tensor([3.0]), torch.tensor([5.0])]}
    assert problem.distance(found, exact) == pytest.approx(0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is Linux's")
def peaks() -> tuple[float, float]:
    """Of 64 MB, and after them, over what was there before."""
    before = memory.resident()
    high = memory.peak(lambda: torch.ones(16_000_000)) - before
    return high, memory.peak(lambda: None) - before


def test_the_peak_is_of_what_runs() -> None:
    """In a process of its own: where kernels have run, malloc keeps what is freed."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        high, low = pool.submit(peaks).result()
    assert 60 < high < 80 and low < 20


def test_ways_take_turns_in_processes_and_may_fail() -> None:
    """A way that needs packages runs in the Python that has them, here one that ends at once."""
    ways = {"eager": Way("compilers"), "other": Way("xla", packages=("jax",))}
    setting = Setting(training=True, size="tiny", threads=1, rounds=2, python="false")
    found = turns.measured("gcn", ways, setting)
    assert list(found.timings) == ["eager"] and len(found.timings["eager"].samples) == 2
    assert found.once["eager"]["distance"] == 0
    assert "the process died (1)" in found.failures["other"]


def test_what_is_not_installed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(turns.versions(sys.executable, ["torch", "no-such-package"])) == ["torch"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "versions", lambda *_: {"openvino": "1"})
        ways = table.ways_of(training=False, autotune=False, python="python")
    assert list(ways) == ["eager", "inductor", "openvino", "hemstitch", "frozen"]
    assert "without xla: jax, torchax not installed" in capsys.readouterr().out


def line_of_a_model() -> Measured:
    once = {"peak": 100.0, "held": 40.0, "first": 2.0, "distance": 0.0}
    counts = {"kernels": 8, "library_calls": 4, "megabytes": 10.0, "library_megabytes": 6.0}
    without = {f"{name}{ours.WITHOUT}": value / 2 for name, value in counts.items()}
    return Measured(
        "bert",
        {way: Timing((seconds,) * 2) for way, seconds in (("inductor", 0.2), ("hemstitch", 0.1))},
        {
            "inductor": once | counts,
            "hemstitch": once | {"peak": 50.0} | counts | without | {"library_megabytes": 2.0},
        },
        {"xla": "no lowering"},
    )


def test_the_table(tmp_path: Path) -> None:
    line = line_of_a_model()
    rows = list(table.rows(line))
    assert rows[1][:4] == ("bert", "hemstitch", "100.0", "0%")
    assert rows[1][-4:] == ("10.0 (5.0)", "2.0", "2.0", "")
    assert rows[2] == ("bert", "xla", "failed: no lowering")
    said = list(table.summary([line], list(TRAINING)))
    assert said[0] == "hemstitch: 2.00x as fast as inductor, 0.50 of its peak memory (1 models)"
    assert "megabytes, without matmuls: 0.50 of Inductor's" in said
    assert "megabytes of kernels and calls: 0.75 of Inductor's" in said
    assert said[-1].startswith("megabytes beyond those of Inductor's calls: 0.60 of what")
    both = replace(
        line,
        timings={**line.timings, "max-autotune": Timing((0.15, 0.15))},
        once={**line.once, "max-autotune": line.once["inductor"]},
    )
    better = "as fast as the better of Inductor's modes, at the least 1.50x (bert; 1 models)"
    assert f"hemstitch: 1.50x {better}" in table.summary([both], list(TRAINING))
    short = table.overview([both], ["inductor", "xla", "hemstitch", "no loss"])
    assert short[2] == "| bert | 200.0 | - | 100.0 | 0% | - | 2.00x | -, 100, 50 | 2.0, 2.0 |"
    assert short[-1] == "| hemstitch | inductor | 2.00x | 0.50 | 1 |"
    alone = replace(line, model="bert-line")
    assert list(table.summary([line, alone], list(TRAINING))) == said
    kept = tmp_path / "results.json"
    setting = Setting(training=True, size="tiny", threads=2, rounds=2)
    kept.write_text(json.dumps(table.record([line], setting)))
    assert f"torch {torch.__version__}" in table.conditions(kept)
    assert table.known(kept) == [line] and table.known(tmp_path / "none") == []


def test_versions_of_earlier_runs_stay(tmp_path: Path) -> None:
    """A run without rivals joins one with them."""
    kept, setting = (
        tmp_path / "results.json",
        Setting(training=True, size="tiny", threads=2, rounds=2),
    )
    kept.write_text(json.dumps(table.record([], setting, {"jax": "0.0.1"})))
    again = table.record([], setting, table.known_versions(kept))
    kept.write_text(json.dumps(again))
    assert "jax 0.0.1" in table.conditions(kept)
    assert table.known_versions(tmp_path / "none") == {}
