"""What stitching does to whole models: rows F1-16, F2-19 to F2-21 and AS-20 to AS-23. Counts and
bytes of plans, for a GPU that is not there; times are for benchmarks/gpu."""

from __future__ import annotations

from functools import cache
from statistics import geometric_mean, mean

import pytest
import torch
import torch.nn.functional as F

from benchmarks.cases import CASES
from benchmarks.models import WORKLOADS, Training
from benchmarks.models.small import SMALL
from hemstitch.ir.graph import toposort
from hemstitch.options import Options
from hemstitch.planning.plan import LibraryStep
from hemstitch.planning.trials import Trials
from hemstitch.runtime.aten_forms import aten_form
from hemstitch.stitching.group import is_member
from tests.papers.bounds import least_kernels, least_reads, least_writes
from tests.papers.harness import (
    CONSERVATIVE,
    GPU,
    both_targets,
    graphs_of,
    kernel_count,
    plan,
    planned,
    random,
)

# Matrices stay with the library: the papers count memory-bound kernels only.
OURS = Options(products=False)
SEARCHED = Options(planner="beam", products=False)
# Times the least: rows are read again where they do not fit, and recurrent cells pass memory.
MOST_READS = {"BERT": 1.2, "CRNN": 1.6}
MOST_WRITES = {"BERT": 1.01, "CRNN": 1.25}
MODELS = {"BERT": "bert", "Transformer": "t5", "DIEN": "dien", "ASR": "whisper", "CRNN": "crnn"}
# As in section 6 of FusionStitching 2020: who is trained, who is run.
RUNS = (
    *(("BERT", False), ("BERT", True), ("DIEN", False), ("DIEN", True)),
    *(("Transformer", True), ("ASR", False), ("CRNN", False)),
)
MOVES = ("copy", "clone", "_to_copy", "fill", "zero")  # what the papers count as memcpy and memset


@cache
def graphs(name, training):
    """Of a model with its loss at its tiny size."""
    torch.manual_seed(0)
    workload = WORKLOADS[MODELS[name]]
    model = Training(workload, "tiny", dropout=0.1).train(training)
    batch = workload.inputs("tiny")
    return graphs_of(model, batch, backward=training, grad=training)


@cache
def plans(name, training, options):
    return [planned(graph, GPU, options) for graph in graphs(name, training)]


def counts(name, training):
    ours, plain = (plans(name, training, each) for each in (OURS, CONSERVATIVE))
    return kernel_count(ours), kernel_count(plain)


def moving_calls(found):
    """Library calls that only move or fill memory."""
    steps = (step for each in found for step in each.plan.steps if isinstance(step, LibraryStep))
    return sum(any(word in aten_form(step.node.attr).name for word in MOVES) for step in steps)


@pytest.mark.needs_gpu("that none of them is slower")
@both_targets
def test_F1_16_small_models_have_half_the_kernels(machine, measured):
    ratios = {}
    for name, make in SMALL.items():
        torch.manual_seed(0)
        model, arguments = make()
        found = graphs_of(model, *arguments, backward=True)
        ours, plain = (
            kernel_count([planned(graph, machine, options) for graph in found])
            for options in (OURS, CONSERVATIVE)
        )
        ratios[name] = (ours, plain)
    share = geometric_mean(ours / plain for ours, plain in ratios.values())
    words = ", ".join(f"{name} {ours}/{plain}" for name, (ours, plain) in ratios.items())
    measured(f"{words}; geometric mean {share:.2f}")
    assert share <= 0.5


@pytest.mark.needs_gpu("times")
@both_targets
def test_F2_19_never_more_kernels_or_bytes_than_conservative(machine, measured):
    worst = 0.0
    for case in CASES:
        torch.manual_seed(0)
        for graph in graphs_of(case.function, *case.arguments(64), grad=False):
            ours, plain = (planned(graph, machine, each) for each in (OURS, CONSERVATIVE))
            assert len(ours.kernels) <= len(plain.kernels), case.name
            moved = [each.bytes_read + each.bytes_written for each in (ours, plain)]
            worst = max(worst, moved[0] / moved[1])
    measured(f"{len(CASES)} cases: never more kernels, bytes at most {worst:.2f} of conservative")
    assert worst <= 1.02


def test_F2_20_kernels_of_whole_models(measured):
    """Near the least that any plan has: the papers' 40 % is of a compiler that fuses less than our
    conservative planner (docs/design/testing.md)."""
    words, shares, ratios = [], [], []
    for name, training in RUNS:
        ours, plain = counts(name, training)
        searched = kernel_count(plans(name, training, SEARCHED))
        least = sum(map(least_kernels, graphs(name, training)))
        assert least <= searched <= ours < plain
        mode = "training" if training else "inference"
        words.append(f"{name} {mode} {plain} > {ours} > {searched} (beam) >= {least}")
        shares.append(ours / plain)
        ratios.append(searched / least)
    measured(
        f"conservative > ours >= least: {', '.join(words)}; "
        f"mean {mean(shares):.2f} of conservative, beam {mean(ratios):.2f} of least"
    )
    assert mean(shares) <= 0.6 and mean(ratios) <= 1.25


@cache
def moved(name, options):
    """Of a model's inference at its large size: bytes read and written, the least of both."""
    torch.manual_seed(0)
    workload = WORKLOADS[MODELS[name]]
    model = Training(workload, "large", dropout=0.0).eval()
    found = graphs_of(model, workload.inputs("large"), grad=False)
    each = [planned(graph, GPU, options) for graph in found]
    return (
        sum(one.bytes_read for one in each),
        sum(one.bytes_written for one in each),
        sum(map(least_reads, each)),
        sum(map(least_writes, each)),
    )


@pytest.mark.needs_gpu("times with CUDA graphs")
def test_F2_21_global_reads(measured):
    """Near what must be read, whoever plans: arguments, and what library calls leave."""
    for name, most in MOST_READS.items():
        (ours, _, least, _), (plain, *_) = (moved(name, each) for each in (OURS, CONSERVATIVE))
        measured(f"{name} {plain / least:.2f} conservative, {ours / least:.2f} ours, of the least")
        assert ours < plain and ours <= most * least


def test_AS_20_each_step_can_be_switched_off(measured):
    """Conservative kernels with our mapping; stitching within rows; all of it."""

    def function(x, weight):
        rows = torch.softmax(x * weight, -1)
        return rows - rows.mean(0), (x * weight).tanh()

    arguments = random(512, 256), random(256)
    options = {
        "mapping only": CONSERVATIVE,
        "without global": Options(global_stitching=False),
        "full": Options(),
    }
    found = {
        name: plan(function, *arguments, machine=GPU, options=each)
        for name, each in options.items()
    }
    kernels = [len(each.kernels) for each in found.values()]
    reads = [each.bytes_read for each in found.values()]
    assert kernels == sorted(kernels, reverse=True) and kernels[0] > kernels[1] > kernels[2]
    words = ", ".join(f"{n} {k} kernels, {r} bytes" for n, k, r in zip(found, kernels, reads))
    measured(words)


def test_AS_21_planning_grows_with_the_graph(measured, monkeypatch):
    """What takes the time is trying: trials for each node, also of a graph four times as long."""
    refusal, trials = Trials.refusal, []

    def counting(self, group):
        trials.append(group)
        return refusal(self, group)

    def blocks(x, count):
        for _ in range(count):
            x = F.layer_norm(torch.tanh(x * 1.5 + x.exp()), (64,)) @ torch.ones(64, 64)
        return x

    monkeypatch.setattr(Trials, "refusal", counting)
    found = []
    for count in (70, 280):
        trials.clear()
        (graph,) = graphs_of(lambda x, n=count: blocks(x, n), random(4, 64), grad=False)
        planned(graph, GPU, OURS)
        nodes = len(toposort(graph.roots))
        found.append((nodes, len(trials) / sum(map(is_member, toposort(graph.roots)))))
    (_, first), (nodes, second) = found
    measured(f"{second:.2f} trials a node for {nodes} nodes, {first:.2f} for a quarter of them")
    assert nodes >= 5000 and second <= 1.1 * first


@pytest.mark.needs_gpu("counters of DRAM transactions")
def test_AS_22_writes_of_kernels(measured):
    """Near what must be written: results, and what library calls read."""
    for name, most in MOST_WRITES.items():
        (_, ours, _, least), (_, plain, *_) = (moved(name, each) for each in (OURS, CONSERVATIVE))
        measured(f"{name} {plain / least:.2f} conservative, {ours / least:.2f} ours, of the least")
        assert ours < plain and ours <= most * least


def test_AS_23_kernels_and_copies(measured):
    """Memory-bound kernels, of a conservative planner and of the least; nothing is only moved."""
    shares = [ours / plain for ours, plain in (counts(*run) for run in RUNS)]
    ours, plain = (
        sum(moving_calls(plans(*run, options)) for run in RUNS) for options in (OURS, CONSERVATIVE)
    )
    words = f"{ours} calls that copy or fill, conservative {plain}"
    measured(f"memory-bound kernels -{1 - mean(shares):.0%} in the mean; {words}")
    assert mean(shares) <= 0.6 and ours == 0
