"""The table of operators beside eager. Takes what `benchmarks/operators.py` measured; prints it, or
writes `docs/operators.md`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.timing import geometric_mean

ENOUGH = 0.9  # of eager's speed
PASSES = {"forward": "forward", "step": "forward and backward"}
DOCUMENT = Path(__file__).parents[1] / "docs" / "operators.md"
MICROSECOND = 1e-6
RESOLUTION = 10 * MICROSECOND  # calls of one program differ by as much from process to process
WAYS, ONE = ("eager", "called", "ours"), "one operation"
Rows = dict[str, dict[str, Any]]
Times = Mapping[str, float]


def show(known: dict[str, Any]) -> None:
    print(text(known))


def write(known: dict[str, Any]) -> None:
    DOCUMENT.write_text(text(known) + "\n", encoding="utf-8")


def is_slow(row: dict[str, Any]) -> bool:
    return any(max(ratios(row[key])) < ENOUGH for key in PASSES if key in row)


def text(known: dict[str, Any]) -> str:
    rows = known["rows"]
    sizes = sorted({int(name.split()[1]) for name in rows})
    pairs = [(key, size) for key in PASSES for size in sizes if _of(rows, key, size)]
    summary = [_summary(rows, key, size) for key, size in pairs]
    slow = [line for key, size in pairs for line in _slow(rows, key, size)]
    return "\n".join((_introduction(known), "", *HEAD, *summary, "", *SLOW_HEAD, *slow))


HEAD = (
    "| pass | elements | operators | geometric mean | beside a call | below 0.9x | beside a call |",
    "|---|---|---|---|---|---|---|",
)
SLOW_HEAD = (
    "| operator | pass | shapes | eager, us | called | ours | call | ratio | beside a call | why |",
    "|---|---|---|---|---|---|---|---|---|---|",
)
VIEWS = (
    *("t", "T", "H", "mT", "mH", "adjoint", "ravel", "flatten", "unflatten", "reshape"),
    "reshape_as",
    *("view", "view_as", "view_as_complex", "select", "squeeze", "squeeze_multiple"),
    *("unsqueeze", "transpose", "swapaxes", "permute", "movedim", "unfold", "narrow", "diagonal"),
    *("expand_as", "linalg_diagonal", "as_strided", "split", "split_list_args"),
    *("split_with_sizes", "chunk", "hsplit", "vsplit", "dsplit"),
    *("tensor_split", "positive", "conj", "conj_physical", "real", "resolve_conj"),
    *("resolve_neg", "contiguous", "as_strided_partial_views"),
    *("meshgrid_list_of_tensors", "meshgrid_variadic_tensors"),
)
# The first expression that the name matches.
REASONS = {
    rf"^({'|'.join(VIEWS)})$": "views: each is made in Python, with gradients by AOTAutograd",
    "^unsafe_(split|chunk)$": "eager's parts are in one memory, of which autograd is not told",
    "fft|complex|cfloat|cdouble|polar|stft": "complex numbers and their copies are the library's",
    "^(new_)?empty": "eager leaves in it what was there, here are zeros",
    "unpool|vander|multilabel_margin|diagonal_scatter|diag_embed|interpolate|upsample": (
        "lanes run along rows of a few elements"
    ),
    "^(long|double)$": "becomes channels-last; eager stores line after line, here they lie apart",
    "cross_entropy_chunked": "addmm_ has become addmm, which copies what it adds to",
    "unbind": "a kernel for each part, that writes one short piece in each of many pages",
    "unfold_copy": "what is cut off behind the last window is cut off by a copy",
    "log_ndtr": "erfcx is the library's, of all elements; eager asks for it only below 1",
    "ormqr": "a product for each column: a plan would take longer than its 60 s",
    "addmv": "the matrix's gradient is written last: the next call finds no matrix in caches",
    "^cumprod$": "its gradient is a function of the library, which looks for zeros first",
    "^slice_scatter$": "eager's gradient is memcpy and zeros; here a row loads under a condition",
    "pinv_singular": "a kernel multiplies three long rows, which the library does faster",
    "index_fill": "the library's schema is read at each call, as it has several overloads",
    "as_strided_scatter|trace|diag$": "views along diagonals are calls of the library",
    "tensorsolve": "two calls of the library from Python, which eager makes from C++ in one",
    "^sgn$": "eager's gradient is a tensor of zeros without memory",
    "pool": "kernels of the library that are made for this operator alone",
}


INTRODUCTION = """\
# Operators beside eager

Made by `python -m benchmarks.operators --json build/operators.json --write`,
{date}: {processor}, {vectors}, one thread, PyTorch {torch}, llvmlite {llvmlite}, {cores} cores with
a load of {load}.

Each operator of OpInfo that takes f32 is called alone. Its largest sample is repeated until its
tensors have about the stated number of elements together. Times are the processor time of the
thread, the least of several samples that take turns in one process.

`called` is `torch.compile(backend="eager")`: Dynamo's guards, and eager's operations. Every backend
takes that much longer than eager, 20 to 60 us. `call` is what our call takes beyond those guards
and one of eager's operations where next to nothing is computed: with as many arguments and results,
of one element each, as many of them views, something saved for backward if the operator does so,
and as many elements written to in between, so that caches are as full. It takes turns with the row.
"Beside a call" is (`called` + `call`) / ours.
Listed is what is below 0.9x in both ratios, by more than 10 us: all else below 0.9x is the call.

{timed} of {names} operators were timed: {sizes}.
Samples of the others could not be enlarged, or eager takes too long. Failed: {failed}."""


def _introduction(known: dict[str, Any]) -> str:
    rows = known["rows"]
    timed = [name for name, row in rows.items() if "forward" in row]
    sizes = Counter(int(name.split()[1]) for name in timed)
    failed = sorted(name for name, row in rows.items() if "failed" in row)
    return INTRODUCTION.format(
        **{**known["machine"], "date": known["machine"]["date"][:10]},
        timed=len({name.split()[0] for name in timed}),
        names=len({name.split()[0] for name in rows}),
        sizes=", ".join(f"{sizes[size]} with {size:,} elements" for size in sorted(sizes)),
        failed=", ".join(failed) or "none",
    )


def _of(rows: Rows, key: str, size: int) -> Rows:
    return {n: r for n, r in rows.items() if key in r and n.endswith(f" {size}")}


def _call(times: Times) -> float:
    """Seconds that our call takes beyond guards and an operation, whatever it computes."""
    guards = times["called alone"] - times["eager alone"]
    return max(0.0, times["ours alone"] - guards - times[ONE])


def ratios(times: Times) -> tuple[float, float]:
    """Of eager's speed, and of that of its operations beside our call."""
    ours = times["ours"]
    call = times["called"] + _call(times)
    return times["eager"] / ours, (ours if abs(ours - call) < RESOLUTION else call) / ours


def _summary(rows: Rows, key: str, size: int) -> str:
    pairs = [ratios(row[key]) for row in _of(rows, key, size).values()]
    sides = [*zip(*pairs)]
    slow = [sum(ratio < ENOUGH for ratio in side) for side in (sides[0], [*map(max, pairs)])]
    means = [f"{geometric_mean(side):.2f}x" for side in sides]
    cells = (PASSES[key], f"{size:,}", len(pairs), *means, *slow)
    return f"| {' | '.join(map(str, cells))} |"


def _slow(rows: Rows, key: str, size: int) -> list[str]:
    lines = []
    for name, row in _of(rows, key, size).items():
        ratio, beside = ratios(row[key])
        if max(ratio, beside) < ENOUGH:
            operator = name.split()[0]
            shapes = ", ".join("x".join(map(str, shape)) or "1" for shape in row["shapes"])
            times = (*(row[key][way] for way in WAYS), _call(row[key]))
            numbers = *(f"{t / MICROSECOND:.0f}" for t in times), f"{ratio:.2f}", f"{beside:.2f}"
            cells = (operator, PASSES[key], shapes, *numbers, _reason(operator))
            lines.append((beside, f"| {' | '.join(cells)} |"))
    return [line for _, line in sorted(lines)]


def _reason(operator: str) -> str:
    reasons = (reason for pattern, reason in REASONS.items() if re.search(pattern, operator))
    return next(reasons, "not known yet")
