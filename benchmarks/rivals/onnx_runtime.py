"""ONNX Runtime, with its defaults: the model exported to ONNX, weights packed once."""

from __future__ import annotations

from typing import Any

import onnxruntime
import torch

from benchmarks.rivals.problem import Made, Prepared
from benchmarks.rivals.substitutes import substituted


def exported(workload: Made) -> bytes:
    with torch.no_grad(), substituted():
        program: Any = torch.onnx.export(workload.model, kwargs=workload.arguments, verbose=False)
    return program.model_proto.SerializeToString()  # type: ignore[no-any-return]


def prepare(workload: Made) -> Prepared:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(exported(workload), options, ["CPUExecutionProvider"])
    inputs = {port.name: workload.arguments[port.name].numpy() for port in session.get_inputs()}
    return Prepared(
        lambda: session.run(None, inputs),
        lambda outputs: {"output": [torch.from_numpy(outputs[0])]},
    )
