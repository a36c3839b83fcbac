"""Every operator of PyTorch's OpInfo alone, eager against Hemstitch, forward and with gradients.

python -m benchmarks.operators --threads 1 --json build/operators.json
python -m benchmarks.operators --json build/operators.json --show

Samples of OpInfo are tiny: the largest of each operator is repeated along its first axis until its
tensors have a wanted number of elements together. Operators for which that makes no sense (the
first axis means something else, or eager refuses) are left out and counted. What is known is not
timed again. Times of functions take turns, so that a slow moment of the machine comes to both.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.machine import describe
from benchmarks.timing import Timing, geometric_mean, paired

ELEMENTS = (4_096, 262_144, 4_194_304)  # in L1, about L2, beyond the caches
ROUNDS = 11
SAMPLE_SECONDS = 2e-3
ENOUGH = 0.9  # of eager's speed
Program = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression for names")
    parser.add_argument("--elements", default=",".join(map(str, ELEMENTS)))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--show", action="store_true", help="measure nothing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    known: dict[str, Any] = {"machine": {**describe(), "threads": options.threads}, "rows": {}}
    if options.json.exists():
        known = json.loads(options.json.read_text())
    if not options.show:
        sizes = [int(size) for size in options.elements.split(",")]
        for name, row in _measured(options.only, sizes, known["rows"]):
            known["rows"][name] = row
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(known, indent=1))
    _show(known)


def _measured(
    only: str, sizes: list[int], known: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for info in op_db:
        if torch.float32 not in info.dtypes or not re.search(only, info.formatted_name):
            continue
        for size in sizes:
            name = f"{info.formatted_name} {size}"
            if name not in known:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    yield name, _row(info, size)


def _row(info: Any, size: int) -> dict[str, Any]:
    """Seconds by pass, or why there are none."""
    torch._dynamo.reset()
    try:
        program, tensors = _enlarged(info, size)
        eager = program(tensors)
    except Exception as error:  # of eager: the operator is left out
        return {"left out": f"{type(error).__name__}: {error}"[:200]}
    compiled = torch.compile(program, backend="hemstitch", options={"cache": False})
    row: dict[str, Any] = {"forward": _times({"eager": program, "ours": compiled}, tensors)}
    results = [r for r in eager if r.is_floating_point()]
    if info.supports_autograd and results:
        leaves = [t.requires_grad_() if t.is_floating_point() else t for t in tensors]
        try:
            ways = {"eager": _step(program), "ours": _step(compiled)}
            row["step"] = _times(ways, leaves)
        except RuntimeError as error:  # nothing has a gradient
            row["no step"] = f"{error}"[:200]
    return row


def _enlarged(info: Any, size: int) -> tuple[Program, list[torch.Tensor]]:
    """The operator on its largest sample, with the first axis of all tensors repeated."""
    samples = list(info.sample_inputs("cpu", torch.float32))
    sample = max(samples, key=lambda s: max(t.numel() for t in _tensors(s)) if _tensors(s) else 0)
    tensors = _tensors(sample)
    count = sum(tensor.numel() for tensor in tensors)
    if not count:
        raise ValueError("samples are empty")
    times = max(1, size // count)
    parts = sample.input, sample.args, sample.kwargs
    large = [t.detach().repeat(times, *(1,) * (t.dim() - 1)) if t.dim() else t for t in tensors]

    def program(given: list[torch.Tensor]) -> list[torch.Tensor]:
        left = iter(given)
        first, args, keywords = tree_map_only(torch.Tensor, lambda _: next(left), parts)
        results = tree_leaves(info.op(first, *args, **keywords))
        return [result for result in results if isinstance(result, torch.Tensor)]

    return program, large


def _tensors(sample: Any) -> list[torch.Tensor]:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _step(program: Program) -> Program:
    def step(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        results = [r for r in program(tensors) if r.requires_grad]
        leaves = [t for t in tensors if t.requires_grad]
        seeds = [torch.ones_like(result) for result in results]
        gradients = torch.autograd.grad(results, leaves, seeds, allow_unused=True)
        return [gradient for gradient in gradients if gradient is not None]

    return step


def _times(ways: dict[str, Program], tensors: list[torch.Tensor]) -> dict[str, float]:
    timings: dict[str, Timing] = paired(ways, [(tensors,)], ROUNDS, sample_seconds=SAMPLE_SECONDS)
    eager, ours = timings["eager"], timings["ours"]
    return {
        "eager": eager.median,
        "ours": ours.median,
        "ratio": ours.times_faster_than(eager),
        "spread": ours.spread,
    }


def _show(known: dict[str, Any]) -> None:
    print({key: value for key, value in known["machine"].items() if key != "system"})
    rows = known["rows"]
    for which in ("forward", "step"):
        for size in sorted({int(name.split()[1]) for name in rows}):
            of_size = {
                n: r[which] for n, r in rows.items() if which in r and n.endswith(f" {size}")
            }
            if not of_size:
                continue
            mean = geometric_mean(row["ratio"] for row in of_size.values())
            slow = {n: r for n, r in of_size.items() if r["ratio"] < ENOUGH}
            print(f"\n{which}, {size} elements: {len(of_size)} operators, {mean:.2f}x eager by the")
            print(f"geometric mean, {len(slow)} below {ENOUGH}x")
            for name, row in sorted(slow.items(), key=lambda item: item[1]["ratio"]):
                eager, ours = (f"{row[way] * 1e6:.0f}" for way in ("eager", "ours"))
                print(f"  {name.split()[0]:48} {row['ratio']:5.2f}x  {eager} and {ours} us")
    print(f"\nleft out: {sum('left out' in row for row in rows.values())} of {len(rows)}")


if __name__ == "__main__":
    main()
