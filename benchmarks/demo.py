"""Trains two encoder layers of BERT-base through eager, Inductor and Hemstitch from equal weights.

make demo        prints losses, times, kernels and bytes, and writes build/demo.html
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import torch
from torch import Tensor, nn

from benchmarks import machine
from benchmarks.models.hugging_face import bert_encoder
from benchmarks.timing import Timing
from hemstitch.report.explain import explain

LAYERS, BATCH, SEQUENCE, HIDDEN = 2, 8, 128, 768
DROPOUT, STEPS, LEARNING_RATE = 0.1, 20, 1e-3
PAGE = Path(__file__).with_name("demo.html.jinja")

# Without dropout the runs differ only by rounding; with it also by which elements are dropped.
LOSS_TOLERANCE, DROPOUT_TOLERANCE = 1e-3, 5e-2


@dataclass(frozen=True, slots=True)
class Report:
    """What the compiler says about one training step; None where it has nothing to say."""

    kernels: int
    library_calls: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class Run:
    backend: str
    losses: tuple[float, ...]
    exact_losses: tuple[float, ...]  # of a second run, without dropout
    first_seconds: float  # the first step, with all compilation in it
    step: Timing
    report: Report | None


class Problem:
    """Equal weights, inputs and targets for every backend."""

    def __init__(
        self,
        device: str = "cpu",
        *,
        layers: int = LAYERS,
        batch: int = BATCH,
        sequence: int = SEQUENCE,
        hidden: int = HIDDEN,
    ) -> None:
        torch.manual_seed(0)
        self.models = {rate: bert_encoder(layers, rate, hidden).train() for rate in (0.0, DROPOUT)}
        self.models[0.0].load_state_dict(self.models[DROPOUT].state_dict())
        self.models = {rate: model.to(device) for rate, model in self.models.items()}
        self.inputs = torch.randn(batch, sequence, hidden).to(device)
        self.target = torch.randn(batch, sequence, hidden).to(device)

    def trainer(self, dropout: float, backend: str, **more: Any) -> Trainer:
        """`more` goes to the trainer, and from there to `torch.compile`."""
        model = copy.deepcopy(self.models[dropout])
        return Trainer(model, self.inputs, self.target, backend, **more)


class Trainer:
    """One model in training; `step` is forward, loss, backward and the AdamW update. `autocast`:
    the type of matrix products, if not that of the weights."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        target: Tensor,
        backend: str,
        *,
        autocast: torch.dtype | None = None,
        **more: Any,
    ) -> None:
        self.inputs, self.target = inputs, target
        self.model, self.autocast = model, autocast
        self.forward: Callable[[Tensor, Tensor], Tensor] = self._loss
        if backend != "eager":
            self.forward = torch.compile(self._loss, backend=backend, **more)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=True)

    def _loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.model(hidden_states=inputs), target)

    def step(self) -> float:
        kind, lower = self.inputs.device.type, self.autocast
        with torch.autocast(kind, lower, enabled=lower is not None):
            loss = self.forward(self.inputs, self.target)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def explained(problem: Problem, backend: str) -> Report | None:
    if backend != "hemstitch":
        return None
    trainer = problem.trainer(DROPOUT, "eager")
    report = explain(trainer.forward, problem.inputs, problem.target, backward=True)
    return Report(
        report.kernel_count, len(report.library_calls), report.bytes_read, report.bytes_written
    )


def timed_step(trainer: Trainer) -> tuple[float, float]:
    start = time.perf_counter()
    loss = trainer.step()
    return time.perf_counter() - start, loss


def load_dynamo() -> None:
    """So that the first compiler in the list does not pay for importing what all share."""
    torch.compile(torch.sin, backend="eager")(torch.ones(2))


def run_all(problem: Problem, backends: list[str]) -> list[Run]:
    """The steps of all backends take turns, so that a slow moment of the machine hits each."""
    trainers = {name: problem.trainer(DROPOUT, name) for name in backends}
    exact = {name: problem.trainer(0.0, name) for name in backends}
    first: dict[str, float] = {}
    losses: dict[str, list[float]] = {name: [] for name in backends}
    seconds: dict[str, list[float]] = {name: [] for name in backends}
    for name, trainer in trainers.items():
        torch.manual_seed(1)
        first[name], loss = timed_step(trainer)
        losses[name].append(loss)
        print(f"{name}: first step {first[name]:.2f} s", flush=True)
    for _ in range(STEPS - 1):
        for name, trainer in trainers.items():
            taken, loss = timed_step(trainer)
            losses[name].append(loss)
            seconds[name].append(taken)
    exact_losses = {name: [trainer.step() for _ in range(STEPS)] for name, trainer in exact.items()}
    return [
        Run(
            name,
            tuple(losses[name]),
            tuple(exact_losses[name]),
            first[name],
            Timing(tuple(seconds[name])),
            explained(problem, name),
        )
        for name in backends
    ]


def difference(losses: tuple[float, ...], reference: tuple[float, ...]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(losses, reference))


def rows(runs: list[Run]) -> list[dict[str, str]]:
    """The table, a dictionary from heading to text for each backend."""
    eager = runs[0]
    return [
        {
            "backend": run.backend,
            "first loss": f"{run.losses[0]:.4f}",
            "last loss": f"{run.losses[-1]:.4f}",
            "differs": f"{difference(run.losses, eager.losses):.1e}",
            "no dropout": f"{difference(run.exact_losses, eager.exact_losses):.1e}",
            "first step": f"{run.first_seconds:.2f} s",
            "step": f"{run.step.median * 1e3:.1f} ms",
            "spread": f"{run.step.spread:.0%}",
            "speed": f"{run.step.times_faster_than(eager.step):.2f}x",
            "kernels": f"{run.report.kernels}" if run.report else "-",
            "library calls": f"{run.report.library_calls}" if run.report else "-",
            "kernels read": f"{run.report.bytes_read / 1e6:.1f} MB" if run.report else "-",
            "kernels write": f"{run.report.bytes_written / 1e6:.1f} MB" if run.report else "-",
        }
        for run in runs
    ]


def table(lines: list[dict[str, str]]) -> str:
    columns = [[heading, *(line[heading] for line in lines)] for heading in lines[0]]
    widths = [max(map(len, column)) for column in columns]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths)) for row in zip(*columns)
    )


def disagreements(runs: list[Run]) -> list[str]:
    eager = runs[0]
    messages = []
    for run in runs[1:]:
        if not difference(run.exact_losses, eager.exact_losses) <= LOSS_TOLERANCE:
            messages.append(f"{run.backend}: losses without dropout differ from eager's")
        if not difference(run.losses, eager.losses) <= DROPOUT_TOLERANCE:
            messages.append(f"{run.backend}: losses with dropout differ from eager's")
    return messages


def write_page(path: Path, runs: list[Run], lines: list[dict[str, str]]) -> None:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(PAGE.read_text(encoding="utf-8"))
    top = max(loss for run in runs for loss in run.losses)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = page.render(
        runs=runs, lines=lines, top=top, steps=STEPS, about=about(), machine=machine.describe()
    )
    path.write_text(text, encoding="utf-8")


def about() -> str:
    return (
        f"{LAYERS} encoder layers of BERT-base, batch {BATCH}, sequence {SEQUENCE}, dropout "
        f"{DROPOUT}, {STEPS} steps of AdamW, {torch.get_num_threads()} threads"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.demo", description=about())
    parser.add_argument("--backend", default="hemstitch", help="the one shown beside Inductor")
    parser.add_argument("--page", type=Path, default=Path("build/demo.html"), metavar="FILE")
    arguments = parser.parse_args()
    backends = list(dict.fromkeys(["eager", "inductor", arguments.backend]))
    print(about())
    with tempfile.TemporaryDirectory() as empty_cache:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": empty_cache, "HEMSTITCH_CACHE": "0"}
        load_dynamo()
        runs = run_all(Problem(), backends)
    lines = rows(runs)
    write_page(arguments.page, runs, lines)
    print("", table(lines), "", f"written: {arguments.page}", sep="\n")
    messages = disagreements(runs)
    print("\n".join(messages) or "the losses agree")
    return bool(messages)


if __name__ == "__main__":
    raise SystemExit(main())
