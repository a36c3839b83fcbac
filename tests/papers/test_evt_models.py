"""EVT's models in training: a hundred steps beside eager (row EV-37), and what is saved between the
passes of 24 layers of BERT (rows EV-14, EV-15)."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import BertConfig, BertForMaskedLM

import hemstitch
from benchmarks.models import MORE_WORKLOADS, WORKLOADS, Training
from hemstitch.joint import partition

MODELS = {**WORKLOADS, **MORE_WORKLOADS}
STEPS, RATE = 100, 3e-4
NUDGE = 1e-6  # relative: a change of the weights that rounding could have made
TIMES = 4.0  # so much more than a nudge's effect is still noise


def losses(model, batch, dtype, backend="eager", nudge=0.0):
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + nudge * torch.randn_like(parameter))
    torch._dynamo.reset()
    step = torch.compile(model, backend=backend) if backend != "eager" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss, _ = step(batch)
        loss.backward()
        optimizer.step()
        found.append(loss.detach().float())
    return torch.stack(found)


def distance(curve, other):
    """The root mean square of the difference, relative to the first loss."""
    return float((curve - other).square().mean().sqrt() / other[0])


def assert_within_noise(model, batch, dtype, measured):
    """Noise: what weights that differ by rounding do to eager's own curve."""
    eager = losses(model, batch, dtype)
    noise = max(distance(losses(model, batch, dtype, nudge=NUDGE), eager) for _ in range(2))
    floor = 1e-5 if dtype is torch.float32 else 2e-3
    ours = distance(losses(model, batch, dtype, "hemstitch"), eager)
    assert eager[-1] < eager[0]
    assert ours <= TIMES * noise + floor
    measured(f"{ours:.0e}, eager's noise {noise:.0e}")


@pytest.mark.needs_gpu("speed beside max-autotune")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_EV_37_a_hundred_steps_within_eagers_noise(name, dtype, monkeypatch, measured):
    monkeypatch.setenv("HEMSTITCH_STRICT", "1")
    torch.manual_seed(0)
    workload = MODELS[name]
    model, batch = Training(workload, "tiny").train(), workload.inputs("tiny")
    assert_within_noise(model, batch, dtype, measured)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_EV_37_all_layers_of_a_resnet_50(dtype, monkeypatch, measured):
    """On four small images."""
    monkeypatch.setenv("HEMSTITCH_STRICT", "1")
    torch.manual_seed(0)
    workload = MODELS["resnet-50"]
    model, batch = Training(workload, "large").train(), workload.inputs("large")
    few = {"pixel_values": batch["pixel_values"][:4, :, :64, :64], "labels": batch["labels"][:4]}
    assert_within_noise(model, few, dtype, measured)


def test_EV_15_the_partition_of_24_layers_is_proven_to_be_the_best(monkeypatch, measured):
    """One part of 74,000 columns, since a residual stream goes through all layers."""
    decisions, seconds, really = [], [], partition.decide

    def decide(problem, options):
        start = time.perf_counter()
        decisions.append(really(problem, options))
        seconds.append(time.perf_counter() - start)
        return decisions[-1]

    monkeypatch.setattr(partition, "decide", decide)
    config = BertConfig(hidden_size=1024, num_attention_heads=16, intermediate_size=4096)
    config.num_hidden_layers, config._attn_implementation = 24, "eager"
    for planner in ("ilp", "ilp", "auto"):
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = BertForMaskedLM(config).train()
            words = torch.randint(0, 30000, (8, 128))
            batch = {"input_ids": words, "labels": words}
            hemstitch.explain(model, **batch, backward=True, options={"planner": planner})
    exact, again, _ = decisions
    assert exact.is_optimal and exact == again
    assert seconds[0] < 300 and seconds[2] < 20
    measured(f"{seconds[0]:.0f} s, the heuristic {seconds[2]:.0f} s")
