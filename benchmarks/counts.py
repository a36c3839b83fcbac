"""Kernels and bytes on a GPU, Hemstitch's against Inductor's, without one: both compile the same
programs for fake tensors on an H200, and nothing is run.

python -m benchmarks.counts --inductor --json benchmarks/results/cuda-counts.json    both anew
python -m benchmarks.counts                Hemstitch's anew, Inductor's as recorded
python -m benchmarks.counts --table        the file's numbers into docs/user/kernel-counts.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.block import HALF, Block
from benchmarks.cases import CASES, Case, adamw
from benchmarks.counting import (
    MEGABYTE,
    Made,
    Program,
    about,
    learn,
    line,
    moved,
    ours,
    pretend,
    theirs,
    with_stand_in,
)
from benchmarks.products import PRODUCTS
from benchmarks.table import COUNTS, write

RESULTS = Path(__file__).parent / "results" / "cuda-counts.json"
START, END = "<!-- counts: made by benchmarks/counts.py -->", "<!-- end of counts -->"
ROWS = {  # so that large tensors have 16 to 64 million elements
    "scale + mask + softmax": 64,
    "residual + RMS norm + rotary": 128,
    "batch norm + ReLU, training": 256,
    "group norm + SiLU": 256,
    "pool + permute + layer norm": 128,
}
USUAL_ROWS = 16384
Known = Mapping[tuple[str, str], dict[str, Any]]  # of a program and direction


def _block() -> Made:
    return Block(768, 12, dropout=0.1), [torch.randn(8, 512, 768, dtype=HALF)]


def _embedding() -> Made:
    def embed(ids: Tensor, words: Tensor, places: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(F.embedding(ids, words) + places, (768,), weight, bias)

    ids = torch.zeros(32, 512, dtype=torch.int64)
    shapes = ((30_000, 768), (512, 768), (768,), (768,))
    return embed, [ids, *(torch.randn(shape) for shape in shapes)]


def _bias_gelu() -> Made:
    return lambda x, bias: F.gelu(x + bias), [torch.randn(8192, 4096), torch.randn(4096)]


def _product(case: Case) -> Made:
    return case.function, case.arguments(4096)


def _adamw() -> Made:
    shapes = [(768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,)] * 10
    lists = [[torch.rand(shape) for shape in shapes] for _ in range(4)]
    update = partial(adamw, foreach=True, capturable=True)
    return update, [*lists, [torch.ones(()) for _ in shapes]]


def _rms_quantise() -> Made:
    def quantise(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
        blocks = y.view(y.shape[0], -1, 128)
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        return torch.round(blocks / scale).to(torch.int8), scale

    return quantise, [torch.randn(8192, 4096), torch.randn(4096)]


def _column_softmax() -> Made:
    return lambda x: torch.softmax(x - x.mean(0), -1), [torch.randn(16384, 1024)]


def programs() -> list[Program]:
    found = []
    for case in CASES:
        if case.name.startswith("AdamW"):  # its step counters are on the processor
            continue
        rows = case.rows or ROWS.get(case.name, USUAL_ROWS)
        for backward in (False, True) if case.backward else (False,):

            def make(case: Any = case, rows: int = rows, backward: bool = backward) -> Made:
                arguments = case.arguments(rows)
                for place, argument in enumerate(arguments):
                    if backward and place not in case.constant:
                        learn(argument)
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


def _learned(made: Made) -> Made:
    learn(made[1])
    return made


def direction(program: Program) -> str:
    return "both" if program.backward else "forward"


def known_of_inductor() -> Known:
    lines = json.loads(RESULTS.read_text())["lines"]
    return {(each["program"], each["direction"]): each["inductor"] for each in lines}


def count(program: Program, known: Known) -> dict[str, Any]:
    """One line of the result: kernels, library calls and bytes of both."""
    recorded = known.get((program.name, direction(program)))
    return {
        "program": program.name,
        "direction": direction(program),
        "hemstitch": line(ours(program)),
        "inductor": recorded or line(theirs(program)),
    }


def measure(only: str, inductor: bool) -> dict[str, Any]:
    pretend()
    known = {} if inductor else known_of_inductor()
    lines = []
    for program in programs():
        if only in program.name:
            lines.append(count(program, known))
            print(row(lines[-1]), file=sys.stderr, flush=True)
    return {"about": about(), "lines": lines}


def row(counted: dict[str, Any]) -> str:
    passes = {"both": "forward + backward"}.get(counted["direction"], "forward")
    cells = [counted["program"], passes]
    for name in ("hemstitch", "inductor"):
        each = counted[name]
        cells += [f"{each['kernels']} + {each['library_calls']}", f"{moved(each) / MEGABYTE:.1f}"]
    return f"| {' | '.join(cells)} |"


def table(record: dict[str, Any]) -> list[str]:
    made = record["about"]
    return [
        "| program | passes | Hemstitch | MB | Inductor | MB |",
        "|---|---|---|---|---|---|",
        *map(row, record["lines"]),
        "",
        f"Kernels + library calls. {made['date']}, PyTorch {made['torch']}, Triton "
        f"{made['triton']}, for an H200.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.counts")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--inductor", action="store_true", help="count Inductor's anew")
    parser.add_argument("--table", action="store_true", help=f"{RESULTS.name} into {COUNTS.name}")
    arguments = parser.parse_args()
    if arguments.table:
        rows = table(json.loads(RESULTS.read_text()))
        write(COUNTS, rows, START, END)
        return
    with_stand_in("benchmarks.counts")
    record = measure(arguments.only, arguments.inductor)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
