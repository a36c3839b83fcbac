"""OpenVINO, for latency, in f32 as all others: it would take bf16 where the processor has it."""

from __future__ import annotations

from typing import Any

import openvino
import torch

from benchmarks.rivals.problem import Made, Prepared


def converted(workload: Made) -> Any:
    """From the exported program, or where OpenVINO lacks one of its operators, as it is traced."""
    with torch.no_grad():
        try:
            program = torch.export.export(workload.model, (), kwargs=workload.arguments)
            return openvino.convert_model(program)
        except openvino.frontend.OpConversionFailure:
            return openvino.convert_model(workload.model, example_input=workload.arguments)


def prepare(workload: Made) -> Prepared:
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(converted(workload), "CPU", settings)
    inputs = {port: workload.arguments[port.get_any_name()].numpy() for port in compiled.inputs}
    return Prepared(
        lambda: compiled(inputs),
        lambda outputs: {"output": [torch.from_numpy(outputs[0])]},
    )
