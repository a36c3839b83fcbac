"""Whole models: a training step (forward, loss, backward) by eager PyTorch, Inductor, XLA and
Hemstitch. Takes the models of `benchmarks.models`, prints a table.

python -m benchmarks.training [--only bert,vit] [--autotune] [--autocast] [--rivals PYTHON]
                              [--json FILE]
python -m benchmarks.training --json FILE --table      its numbers into docs/user

Each way has a process of its own, and all take turns: `ms` is the median of nine rounds, `eager /`
that of the ratios round by round. XLA runs in the Python that `--rivals` names, where
`requirements/rivals.txt` is installed (docs/user/performance.md). `peak MB`: the most that is
resident in a step, over what it was before the model was made (benchmarks/rivals/process.py).
`kernels + calls` and `MB moved`: what the kernels read and write by each compiler's own count, in
brackets with all products of matrices left to the library, where Inductor leaves them.
"""

from __future__ import annotations

from benchmarks.rivals import table

if __name__ == "__main__":
    table.main("training", __doc__)
