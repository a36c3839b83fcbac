"""EVT's models in training: row EV-37. A hundred steps, beside eager."""

from __future__ import annotations

import copy

import pytest
import torch

from benchmarks.models import MORE_WORKLOADS, WORKLOADS, Training

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


@pytest.mark.needs_gpu("speed beside max-autotune")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_EV_37_a_hundred_steps_within_eagers_noise(name, dtype, monkeypatch, measured):
    """Noise: what weights that differ by rounding do to eager's own curve."""
    monkeypatch.setenv("HEMSTITCH_STRICT", "1")
    torch.manual_seed(0)
    workload = MODELS[name]
    model, batch = Training(workload, "tiny").train(), workload.inputs("tiny")
    eager = losses(model, batch, dtype)
    noise = max(distance(losses(model, batch, dtype, nudge=NUDGE), eager) for _ in range(2))
    floor = 1e-5 if dtype is torch.float32 else 2e-3
    ours = distance(losses(model, batch, dtype, "hemstitch"), eager)
    assert eager[-1] < eager[0]
    assert ours <= TIMES * noise + floor
    measured(f"{ours:.0e}, eager's noise {noise:.0e}")
