"""Kernels and bytes on a GPU, Hemstitch's against Inductor's, without one: both compile the same
programs for fake tensors on an H200, and nothing is run.

python -m benchmarks.counts --json benchmarks/results/cuda-counts.json
python -m benchmarks.counts --table        the file's numbers into docs/performance.md
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.optim.adamw import adamw as adamw_update
from torch.utils._pytree import tree_leaves

from benchmarks import stand_in
from benchmarks.cases import CASES, Case
from benchmarks.inductor_kernels import generated
from benchmarks.machine import version_of
from benchmarks.products import PRODUCTS
from benchmarks.table import insert
from hemstitch.explain import explain

RESULTS = Path(__file__).parent / "results" / "cuda-counts.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
START, END = "<!-- counts: made by benchmarks/counts.py -->", "<!-- end of counts -->"
ROWS = {  # so that large tensors have 16 to 64 million elements
    "scale + mask + softmax": 64,
    "residual + RMS norm + rotary": 128,
    "batch norm + ReLU, training": 256,
    "group norm + SiLU": 256,
    "pool + permute + layer norm": 128,
}
USUAL_ROWS = 16384
MEGABYTE = 1e6
HALF = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Program:
    """`make` gives the function and its arguments; called where tensors are fake."""

    name: str
    make: Callable[[], tuple[Callable[..., Any], Sequence[Any]]]
    backward: bool = False


class Block(nn.Module):
    """A transformer's, with the normalisations before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = (nn.LayerNorm(width, dtype=HALF) for _ in range(2))
        self.mixed = nn.Linear(width, 3 * width, dtype=HALF)
        self.out = nn.Linear(width, width, dtype=HALF)
        self.up = nn.Linear(width, 4 * width, dtype=HALF)
        self.down = nn.Linear(4 * width, width, dtype=HALF)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.mixed(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        # What attention becomes on a GPU; which kernel, PyTorch can only ask a real one.
        mixed = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)[0]
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), 0.1)


def _block() -> tuple[Callable[..., Any], Sequence[Any]]:
    return Block(768, 12), [torch.randn(8, 512, 768, dtype=HALF)]


def _embedding() -> tuple[Callable[..., Any], Sequence[Any]]:
    def embed(ids: Tensor, words: Tensor, places: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(F.embedding(ids, words) + places, (768,), weight, bias)

    ids = torch.zeros(32, 512, dtype=torch.int64)
    shapes = ((30_000, 768), (512, 768), (768,), (768,))
    return embed, [ids, *(torch.randn(shape) for shape in shapes)]


def _bias_gelu() -> tuple[Callable[..., Any], Sequence[Any]]:
    return lambda x, bias: F.gelu(x + bias), [torch.randn(8192, 4096), torch.randn(4096)]


def _product(case: Case) -> tuple[Callable[..., Any], Sequence[Any]]:
    return case.function, case.arguments(4096)


def _adamw() -> tuple[Callable[..., Any], Sequence[Any]]:
    def update(
        parameters: list[Tensor],
        gradients: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
        steps: list[Tensor],
    ) -> None:
        adamw_update(
            *(parameters, gradients, first, second, [], steps),
            foreach=True,
            capturable=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=1e-3,
            weight_decay=0.01,
            eps=1e-8,
            maximize=False,
        )

    shapes = [(768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,)] * 10
    lists = [[torch.rand(shape) for shape in shapes] for _ in range(4)]
    return update, [*lists, [torch.ones(()) for _ in shapes]]


def _rms_quantise() -> tuple[Callable[..., Any], Sequence[Any]]:
    def quantise(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
        blocks = y.view(y.shape[0], -1, 128)
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        return torch.round(blocks / scale).to(torch.int8), scale

    return quantise, [torch.randn(8192, 4096), torch.randn(4096)]


def _column_softmax() -> tuple[Callable[..., Any], Sequence[Any]]:
    return lambda x: torch.softmax(x - x.mean(0), -1), [torch.randn(16384, 1024)]


def programs() -> list[Program]:
    found = []
    for case in CASES:
        if case.name.startswith("AdamW"):  # its step counters are on the processor
            continue
        rows = case.rows or ROWS.get(case.name, USUAL_ROWS)
        for backward in (False, True) if case.backward else (False,):

            def make(
                case: Any = case, rows: int = rows, backward: bool = backward
            ) -> tuple[Callable[..., Any], Sequence[Any]]:
                arguments = case.arguments(rows)
                for place, argument in enumerate(arguments):
                    if backward and place not in case.constant:
                        _learn(argument)
                return case.function, arguments

            found.append(Program(case.name, make, backward))
    for case in PRODUCTS:
        found.append(Program(case.name, partial(_product, case)))
    return [
        *found,
        Program("AdamW, foreach, 60 tensors", _adamw),
        Program("transformer block", _block),
        Program("transformer block", lambda: _learned(_block()), True),
        Program("embedding + layer norm", _embedding),
        Program("embedding + layer norm", lambda: _learned(_embedding()), True),
        Program("bias + GELU", _bias_gelu),
        Program("bias + GELU", lambda: _learned(_bias_gelu()), True),
        Program("RMS norm + quantise blocks", _rms_quantise),
        Program("centre columns + softmax", _column_softmax),
    ]


def _learn(value: object) -> None:
    for tensor in tree_leaves(value):
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            tensor.requires_grad_()


def _learned(
    made: tuple[Callable[..., Any], Sequence[Any]],
) -> tuple[Callable[..., Any], Sequence[Any]]:
    _learn(made[1])
    return made


def count(program: Program) -> dict[str, Any]:
    """One line of the result: kernels, library calls and bytes of both."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(program.backward):
        with torch.device("cuda"):
            function, arguments = program.make()
        theirs = generated(function, arguments)
        ours = explain(function, *arguments, backward=program.backward, options={"strict": True})
    return {
        "program": program.name,
        "direction": "both" if program.backward else "forward",
        "hemstitch": _line(ours.kernel_count, ours.library_calls, ours),
        "inductor": _line(len(theirs.kernels), theirs.library_calls, theirs),
    }


def _line(kernels: int, calls: list[str], moved: Any) -> dict[str, Any]:
    return {
        "kernels": kernels,
        "library_calls": len(calls),
        "calls": sorted(set(calls)),
        "bytes_read": moved.bytes_read,
        "bytes_written": moved.bytes_written,
    }


def measure(only: str = "") -> dict[str, Any]:
    stand_in.pretend()
    warnings.simplefilter("ignore")
    lines = []
    for program in programs():
        if only in program.name:
            lines.append(count(program))
            print(row(lines[-1]), file=sys.stderr, flush=True)
    return {"about": _about(), "lines": lines}


def _about() -> dict[str, str]:
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    names = ("hemstitch", "torch", "triton")
    return {"date": today, "device": f"{stand_in.PROPERTIES.name}, not there"} | {
        name: version_of(name) for name in names
    }


def row(line: dict[str, Any]) -> str:
    cells = [line["program"], {"both": "forward + backward"}.get(line["direction"], "forward")]
    for name in ("hemstitch", "inductor"):
        each = line[name]
        moved = (each["bytes_read"] + each["bytes_written"]) / MEGABYTE
        cells += [f"{each['kernels']} + {each['library_calls']}", f"{moved:.1f}"]
    return f"| {' | '.join(cells)} |"


def table(record: dict[str, Any]) -> list[str]:
    about = record["about"]
    return [
        "| program | passes | Hemstitch | MB | Inductor | MB |",
        "|---|---|---|---|---|---|",
        *map(row, record["lines"]),
        "",
        f"Kernels + library calls. {about['date']}, PyTorch {about['torch']}, Triton "
        f"{about['triton']}, for an H200.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.counts")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--table", action="store_true", help=f"{RESULTS.name} into {PAGE.name}")
    arguments = parser.parse_args()
    if arguments.table:
        rows = table(json.loads(RESULTS.read_text()))
        text = insert(PAGE.read_text(encoding="utf-8"), rows, START, END)
        PAGE.write_text(text, encoding="utf-8")
        return
    environment = stand_in.preload()
    if environment is None:
        sys.exit("needs a PyTorch built without CUDA, and a C++ compiler: g++ or clang++")
    if environment.get("LD_PRELOAD") != os.environ.get("LD_PRELOAD"):
        command = [sys.executable, "-m", "benchmarks.counts", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment).returncode)
    record = measure(arguments.only)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
