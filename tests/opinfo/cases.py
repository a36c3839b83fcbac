"""The cases of this folder: an operation of PyTorch's database with one type, forward or backward.

HEMSTITCH_TESTS=all: every operation with every sample; otherwise a few operations, a sample each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from tests.effort import IS_WHOLE
from tests.opinfo import harness
from tests.opinfo.exceptions import NOT_COMPARED, RANDOM


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


@dataclass(frozen=True, slots=True)
class Case:
    """`index`: the operation's place in the database."""

    kind: Kind
    op: OpInfo
    index: int

    @property
    def name(self) -> str:
        variant = self.op.variant_test_name
        return f"{self.op.name}.{variant}" if variant else self.op.name

    def __str__(self) -> str:
        return f"{self.kind.name} {self.name}".replace(" ", "-")


FORWARD = Kind("forward f32", torch.float32, False, 7)
KINDS = (
    FORWARD,
    Kind("backward f32", torch.float32, True, 9),
    Kind("forward i64", torch.int64, False, 13),
    Kind("forward bool", torch.bool, False, 13),
)
CASES = tuple(
    Case(kind, op, index)
    for kind in KINDS
    for index, op in enumerate(op_db)
    if kind.covers(op) and (IS_WHOLE or index % kind.every == 0)
)


def judge(number: int) -> harness.Verdict:
    """On case `number`."""
    case = CASES[number]
    calls = list(harness.samples(case.op, case.kind.dtype, case.kind.backward))
    chosen = calls if IS_WHOLE or not calls else [calls[case.index % len(calls)]]
    return harness.judge(chosen, case.kind.backward, random=case.op.name in RANDOM)
