"""The results of every case, forward and with gradients, against float64: a line for each shape and
type. Where one differs, it runs again beside the interpreter, which names the kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from benchmarks.calls import compiled, differentiable, placed
from benchmarks.cases import CASES, Arguments, Case, tensors
from benchmarks.gpu import device
from benchmarks.gpu.phase import Phase
from benchmarks.gpu.worker import Job, Line, told
from benchmarks.products import PRODUCTS
from benchmarks.timing import Function

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
MOST_TIMES_EAGER = 2.0
DRAWS, FEW_ELEMENTS = 4, 1 << 16  # of arguments; one where these have more elements
FEW, ODD, MANY = 3, 129, 512  # rows
FEW_TYPES = ("f32", "bf16")  # of what is emulated
BARRIERS = {  # rows and width
    "layer norm": (64, 1000),
    "cross entropy, label smoothing": (129, 33),
    "AdamW, 60 tensors of 9 shapes": (3, 7),
    "group norm + SiLU": (3, 3),
    "sums: rows, columns, all": (129, 1000),
    "softmax of long rows": (3, 8200),
    "rows, columns, elementwise": (129, 1000),
}
ALL = (*CASES, *PRODUCTS)


def jobs(kind: str, _: list[Line]) -> list[Job]:
    """Small shapes of all cases first: if time is short, what is left out is large."""
    if kind == device.INTERPRET:
        small = [_jobs(kind, c, *_shapes(c)[0], dtype) for dtype in FEW_TYPES for c in ALL]
        return [job for jobs_of_case in small for job in jobs_of_case] + with_barriers(kind)
    return [
        job
        for number in range(3)
        for dtype in DTYPES
        for case in ALL
        for job in _jobs(kind, case, *_shapes(case)[number], dtype)
    ]


def with_barriers(kind: str) -> list[Job]:
    """The cases whose programs meet already with few elements, gradients included."""
    return [
        _jobs(kind, case_named(name), rows, width, "f32")[-1]
        for name, (rows, width) in BARRIERS.items()
    ]


def _jobs(kind: str, case: Case, rows: int, width: int, dtype: str) -> list[Job]:
    where = {"device": kind, "case": case.name, "rows": rows, "width": width, "dtype": dtype}
    directions = ("forward", "both") if case.backward else ("forward",)
    return [{**where, "direction": direction} for direction in directions]


PHASES = (Phase(jobs, job_seconds=90.0, parallel=True),)


def _shapes(case: Case) -> list[tuple[int, int]]:
    """Rows and width: small and odd, odd and large, as it is measured."""
    if case.rows is not None:
        return [(FEW, case.odd[0]), (7, case.odd[-1]), (case.rows, case.width)]
    return [(FEW, case.odd[0]), (ODD, case.odd[-1]), (MANY, case.width)]


def run(job: Job) -> Iterator[Line]:
    torch.manual_seed(0)
    case = case_named(job["case"])
    exact = case.exact or case.function
    options = device.options(job["device"])
    try:
        call = compiled(exact, "hemstitch", options=options)
        drawn = [_draw(case, job) for _ in range(_draws(job))]
        errors = [_errors(case, call, exact, *sample) for sample in drawn]
        ours, eager, once, sizes = (
            list(map(_mean, zip(*sample, strict=True))) for sample in zip(*errors)
        )
        right = all(map(agrees, ours, eager, once, [size * len(drawn) for size in sizes]))
        line = {**job, "error": max(ours), "eager": max(eager), "right": right}
        if not right or case.exact is not None:
            line |= _beside_the_interpreter(case, job, *drawn[0])
        yield line
    finally:
        torch._dynamo.reset()


def _draws(job: Job) -> int:
    """The error of a few elements is a matter of luck."""
    is_large = job["rows"] * job["width"] > FEW_ELEMENTS
    return 1 if is_large or job["device"] == device.INTERPRET else DRAWS


def _draw(case: Case, job: Job) -> tuple[Arguments, list[Tensor]]:
    """Arguments, and gradients of the results where backward is asked for, too."""
    where = device.torch_device(job["device"])
    with torch.device(where):
        arguments = placed(case.arguments(job["rows"], job["width"]), where, DTYPES[job["dtype"]])
    if job["direction"] != "both":
        return arguments, []
    with torch.no_grad():
        shapes = tensors((case.exact or case.function)(*_copied(arguments, None)))
    return arguments, [torch.randn_like(result) for result in shapes]


def _errors(
    case: Case, call: Function, exact: Function, arguments: Arguments, gradients: list[Tensor]
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Result by result: Hemstitch's, eager's, what rounding it once may cost, as it may be that
    eager has it exactly, and its elements."""
    results = _results(case, call, arguments, gradients)
    eager = _results(case, exact, arguments, gradients)
    wide = [gradient.double() for gradient in gradients]
    reference = _results(case, exact, _copied(arguments, torch.float64), wide)
    ours = [
        difference(new, right) if (new.dtype, new.device) == (old.dtype, old.device) else math.inf
        for new, old, right in zip(results, eager, reference, strict=True)
    ]
    theirs = [difference(old, right) for old, right in zip(eager, reference, strict=True)]
    dtypes = [tensor.dtype if tensor.is_floating_point() else torch.float32 for tensor in eager]
    sizes = [float(tensor.numel()) for tensor in eager]
    return ours, theirs, [torch.finfo(dtype).eps for dtype in dtypes], sizes


def _mean(errors: Sequence[float]) -> float:
    """The root of the mean square."""
    return math.sqrt(math.fsum(error * error for error in errors) / len(errors))


def case_named(name: str) -> Case:
    return next(case for case in ALL if case.name == name)


def _results(
    case: Case, function: Function, arguments: Arguments, gradients: list[Tensor]
) -> list[Tensor]:
    """What it returns, gradients, and what became of its arguments."""
    copies = _copied(arguments, None)
    if not gradients:
        with torch.no_grad():
            return [*tensors(function(*copies)), *tensors(copies)]
    inputs = [tensor.requires_grad_() for tensor in differentiable(case, copies)]
    results = tensors(function(*copies))
    input_gradients = torch.autograd.grad(results, inputs, gradients)
    return [tensor.detach() for tensor in (*results, *input_gradients, *tensors(copies))]


def _copied(arguments: Arguments, dtype: torch.dtype | None) -> Arguments:
    def copy(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        value = value.detach().clone()
        return value.to(dtype) if dtype is not None and value.is_floating_point() else value

    copied: Arguments = tree_map(copy, arguments)
    return copied


def difference(result_tensor: Tensor, expected: Tensor) -> float:
    """Relative norm; infinite where one has a NaN and the other has none."""
    if result_tensor.shape != expected.shape:
        return float("inf")
    new, old = result_tensor.double(), expected.double()
    same = (new == old) | (new.isnan() & old.isnan())
    error = torch.where(same, 0.0, new - old).norm()
    size = torch.where(old.isfinite(), old, 0.0).norm().clamp_min(1e-30)
    result = float(error / size)
    return result if result == result else float("inf")


def agrees(ours: float, eager: float, once: float, count: float) -> bool:
    """`count`: elements whose errors are in the two means. Of few they differ by chance: how far
    two means of squares do so, three times over, is granted."""
    most = MOST_TIMES_EAGER * (1 + 3 / math.sqrt(max(1, count)))
    return ours <= max(most * eager, once)


def _beside_the_interpreter(
    case: Case, job: Job, arguments: Arguments, gradients: list[Tensor]
) -> dict[str, Any]:
    """With its random numbers, if it draws any: the same for both."""
    torch._dynamo.reset()
    options = device.options(job["device"], verify=True)
    try:
        call = compiled(case.function, "hemstitch", options=options)
        _results(case, call, arguments, gradients)
    except Exception as error:
        return {"right": False, "kernel": told(error)}
    return {}
