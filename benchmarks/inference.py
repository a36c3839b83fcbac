"""Whole models: answers to a batch by eager PyTorch, Inductor, XLA, ONNX Runtime, OpenVINO and
Hemstitch. Takes the models of `benchmarks.models`, prints a table as `benchmarks.training` does.

python -m benchmarks.inference [--only bert,vit] [--autotune] [--rivals PYTHON] [--json FILE]
python -m benchmarks.inference --json FILE --table      its numbers into docs/user

Weights are what the model's are, f32; ONNX Runtime, OpenVINO and Inductor's max-autotune pack them
once, before anything is timed.
"""

from __future__ import annotations

from benchmarks.rivals import table

if __name__ == "__main__":
    table.main("inference", __doc__)
