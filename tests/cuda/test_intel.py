"""How far a GPU of Intel's goes without one: options, machine model, plan, target, description."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hemstitch.capture.device_target import KINDS, target_of
from hemstitch.driver.compiler import machine_for
from hemstitch.machine.record import Execution
from hemstitch.options import Options
from hemstitch.pipeline import GPU, PIPELINES
from hemstitch.runtime.gpu.device import device_of
from hemstitch.toolchain.triton_cross import gpu_target

INDEX = 5


def test_a_graph_on_it_is_compiled_for_it() -> None:
    assert "xpu" in KINDS
    assert target_of(torch.device("xpu", 0), Options()) == "xpu"
    assert PIPELINES["xpu"] is GPU
    assert machine_for("xpu", None).execution is Execution.SIMT


def test_its_target_is_triton_s() -> None:
    target = gpu_target("pvc")
    assert (target.backend, target.arch, target.warp_size) == ("xpu", "pvc", 32)


def test_it_is_described_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="Max 1550", gpu_subslice_count=128)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: properties)
    names: Any = ("_xpu_getCurrentRawStream", "_xpu_getDevice", "_xpu_exchangeDevice")
    for name in names:
        monkeypatch.setattr(torch._C, name, int, raising=False)
    device = device_of("xpu", INDEX)
    assert (device.index, device.processors, device.architecture) == (INDEX, 128, None)
    assert not device.may_relax_registers
