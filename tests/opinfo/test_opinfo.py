"""PyTorch's own samples of every operation through the backend, against eager PyTorch.

HEMSTITCH_OPINFO=all runs every sample; otherwise a few operations of each kind run one each.
HEMSTITCH_TEST_BACKEND names another backend to test in Hemstitch's place.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    UnaryUfuncInfo,
)

from tests.opinfo import harness
from tests.opinfo.exceptions import NOT_COMPARED, RANDOM

EVERYTHING = os.environ.get("HEMSTITCH_OPINFO") == "all"
LEAST_GENERATED = 0.6
# (name, type, with gradients, one operation in so many where not everything runs)
KINDS = (
    ("forward f32", torch.float32, False, 2),
    ("backward f32", torch.float32, True, 3),
    ("forward i64", torch.int64, False, 4),
    ("forward bool", torch.bool, False, 4),
)


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def is_covered(op: OpInfo, dtype: torch.dtype, backward: bool) -> bool:
    if op.name in NOT_COMPARED or (backward and not op.supports_autograd):
        return False
    known = op.supported_backward_dtypes if backward else op.supported_dtypes
    return dtype in known("cpu")


CASES = [
    pytest.param(op, index, *kind[:3], id=f"{kind[0]} {name_of(op)}".replace(" ", "-"))
    for kind in KINDS
    for index, op in enumerate(op_db)
    if is_covered(op, kind[1], kind[2]) and (EVERYTHING or index % kind[3] == 0)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "index", "kind", "dtype", "backward"), CASES)
def test_samples_agree(
    op: OpInfo, index: int, kind: str, dtype: torch.dtype, backward: bool, counts: Counter[str]
) -> None:
    calls = list(harness.samples(op, dtype, backward))
    chosen = calls if EVERYTHING or not calls else [calls[index % len(calls)]]
    chosen = [call for call in chosen if harness.is_run_by_eager(call, backward)]
    wrong = harness.differences(chosen, backward, random=op.name in RANDOM)
    counts[f"{kind}:all"] += len(chosen)
    counts[f"{kind}:good"] += len(chosen) - len(wrong)
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(harness.BACKEND != "hemstitch", reason="only Hemstitch explains itself")
@pytest.mark.filterwarnings("ignore")
def test_elementwise_operations_and_reductions_are_generated(counts: Counter[str]) -> None:
    kinds = (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)
    ops = [op for op in op_db if isinstance(op, kinds) and is_covered(op, torch.float32, False)]
    ops = ops if EVERYTHING else ops[::8]
    library = []
    for op in ops:
        call = next(harness.samples(op, torch.float32, backward=False))
        if not harness.is_generated(call):
            library.append(name_of(op))
    counts["generated:good"] += len(ops) - len(library)
    counts["generated:all"] += len(ops)
    assert 1 - len(library) / len(ops) >= LEAST_GENERATED, library
