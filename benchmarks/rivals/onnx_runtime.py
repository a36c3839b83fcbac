"""ONNX Runtime, with its defaults: the model exported to ONNX, weights packed once."""

from __future__ import annotations

from typing import Any

import onnxruntime
import torch

from benchmarks.rivals.problem import Made, Prepared
from benchmarks.rivals.substitutes import substituted


def exported(made: Made) -> bytes:
    with torch.no_grad(), substituted():
        program: Any = torch.onnx.export(made.model, kwargs=made.arguments, verbose=False)
    return program.model_proto.SerializeToString()  # type: ignore[no-any-return]


def prepare(made: Made) -> Prepared:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(exported(made), options, ["CPUExecutionProvider"])
    given = {each.name: made.arguments[each.name].numpy() for each in session.get_inputs()}
    return Prepared(
        lambda: session.run(None, given),
        lambda found: {"output": [torch.from_numpy(found[0])]},
    )
