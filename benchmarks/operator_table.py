"""The table of operators beside eager. Takes what `benchmarks/operators.py` measured; prints it, or
writes `docs/user/operators.md`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchmarks.table import USER
from benchmarks.timing import geometric_mean

ENOUGH = 0.9  # of eager's speed
PASSES = {"forward": "forward", "step": "forward and backward"}
DOCUMENT = USER / "operators.md"
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
    rf"^({'|'.join(VIEWS)})$": "Python and AOTAutograd make each view",
    "^unsafe_(split|chunk)$": (
        "eager returns parts of one buffer, unknown to autograd; here each part is a copy"
    ),
    "fft|complex|cfloat|cdouble|polar|stft": (
        "operations on complex numbers are library calls, with copies"
    ),
    "^(new_)?empty": "eager leaves the memory uninitialised, here it is zero",
    "unpool|vander|multilabel_margin|diagonal_scatter|diag_embed|interpolate|upsample": (
        "the innermost axis is too short for the SIMD width"
    ),
    "^(long|double)$": "conversion to channels-last: stores are strided, eager's are contiguous",
    "cross_entropy_chunked": "`addmm_` is traced as `addmm`, which copies its first operand",
    "unbind": "one kernel for each part, with short stores to many pages",
    "unfold_copy": "a copy removes the elements after the last window",
    "log_ndtr": "`erfcx` is a library call on all elements; eager calls it only below 1",
    "ormqr": "a matmul for each column: planning would exceed its limit of 60 s",
    "addmv": "the matrix's gradient is written last and evicts the matrix from the caches",
    "^cumprod$": "its gradient is a library call that searches for zeros first",
    "^slice_scatter$": "eager's gradient is a memcpy and a fill, here loads are conditional",
    "pinv_singular": "a kernel multiplies three long rows, for which the library is faster",
    "index_fill": "the library call resolves its overload at each call",
    "as_strided_scatter|trace|diag$": "views along diagonals are library calls",
    "tensorsolve": "two library calls from Python, where eager makes one from C++",
    "^sgn$": "eager's gradient is a zero tensor without memory",
    "pool": "the library has kernels for this operator alone",
}


INTRODUCTION = """\
# Operators beside eager

Made by `python -m benchmarks.operators --json build/operators.json --write`,
{date}: {processor}, {vectors}, one thread, PyTorch {torch}, llvmlite {llvmlite}, {cores} cores with
a load of {load}.

Each operator of PyTorch's OpInfo that takes f32 is called alone. Its largest sample is repeated
until its tensors together have about the stated number of elements. Times are the processor time of
the thread, the least of several samples. All columns of a row take turns in one process.

| column | meaning |
|---|---|
| eager | the operator in eager PyTorch |
| called | `torch.compile(backend="eager")`: Dynamo's guards, then eager's operators |
| ours | Hemstitch |
| call | what Hemstitch's call takes beyond the guards and one of eager's operators |
| ratio | eager / ours |
| beside a call | (called + call) / ours |

`call` is measured with an operator that computes next to nothing. It has as many arguments and
results, as many views among them, and the same caches. Every compiler has the overhead of `called`.
The second table lists rows below 0.9x in both ratios, by more than 10 us. All others below 0.9x
are explained by the overhead of a call.

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
