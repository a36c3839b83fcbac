"""PyTorch's own samples of every operation through the backend, against eager PyTorch.

HEMSTITCH_OPINFO=all runs every sample; otherwise a few operations of each kind run one each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

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
from tests.opinfo.conftest import Counts
from tests.opinfo.exceptions import DIFFERENT, NOT_COMPARED, RANDOM

EVERYTHING = os.environ.get("HEMSTITCH_OPINFO") == "all"
LEAST_AGREEING = 0.995
LEAST_GENERATED = 0.6
ELEMENTWISE_AND_REDUCTIONS = (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)


@dataclass(frozen=True, slots=True)
class Kind:
    """`every`: one operation in so many runs where not everything does."""

    name: str
    dtype: torch.dtype
    backward: bool
    every: int

    def covers(self, op: OpInfo) -> bool:
        if op.name in NOT_COMPARED or (self.backward and not op.supports_autograd):
            return False
        known = op.supported_backward_dtypes if self.backward else op.supported_dtypes
        return self.dtype in known("cpu")


FORWARD = Kind("forward f32", torch.float32, False, 4)
KINDS = (
    FORWARD,
    Kind("backward f32", torch.float32, True, 5),
    Kind("forward i64", torch.int64, False, 7),
    Kind("forward bool", torch.bool, False, 7),
)


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


CASES = [
    pytest.param(kind, op, index, id=f"{kind.name} {name_of(op)}".replace(" ", "-"))
    for kind in KINDS
    for index, op in enumerate(op_db)
    if kind.covers(op) and (EVERYTHING or index % kind.every == 0)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "op", "index"), CASES)
def test_samples_agree(kind: Kind, op: OpInfo, index: int, counts: Counts) -> None:
    calls = list(harness.samples(op, kind.dtype, kind.backward))
    chosen = calls if EVERYTHING or not calls else [calls[index % len(calls)]]
    verdict = harness.judge(chosen, kind.backward, random=op.name in RANDOM)
    counts.add(kind.name, verdict.samples - len(verdict.wrong), verdict.samples)
    if kind is FORWARD and isinstance(op, ELEMENTWISE_AND_REDUCTIONS) and verdict.samples:
        counts.add("generated", verdict.is_generated, 1)
    if (kind.name, name_of(op)) in DIFFERENT:
        pytest.xfail(DIFFERENT[kind.name, name_of(op)])
    assert not verdict.wrong, "\n".join(verdict.wrong)


def test_share_that_agrees(counts: Counts) -> None:
    shares = {kind.name: counts.share(kind.name) for kind in KINDS}
    assert all(share is None or share >= LEAST_AGREEING for share in shares.values()), shares


def test_share_that_is_generated(counts: Counts) -> None:
    """Of the elementwise operations and reductions, all samples of which must be kernels only."""
    share = counts.share("generated")
    assert share is None or share >= LEAST_GENERATED
