"""PyTorch's own samples of every operation through the backend, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

from tests.opinfo.cases import CASES, FORWARD, KINDS
from tests.opinfo.conftest import Counts
from tests.opinfo.harness import Verdict

LEAST_AGREEING = 0.995
LEAST_GENERATED = 0.6
ELEMENTWISE_AND_REDUCTIONS = (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "number", [pytest.param(number, id=str(case)) for number, case in enumerate(CASES)]
)
def test_samples_agree(number: int, verdict_on: Callable[[int], Verdict], counts: Counts) -> None:
    case, verdict = CASES[number], verdict_on(number)
    counts.add(case.kind.name, verdict.samples - len(verdict.wrong), verdict.samples)
    counts.add("seen by the backend", verdict.samples - verdict.left, verdict.samples)
    if case.kind is FORWARD and isinstance(case.op, ELEMENTWISE_AND_REDUCTIONS) and verdict.samples:
        counts.add("generated", verdict.is_generated, 1)
    assert not verdict.wrong, "\n".join(verdict.wrong)


def test_share_that_agrees(counts: Counts) -> None:
    shares = {kind.name: counts.share(kind.name) for kind in KINDS}
    assert all(share is None or share >= LEAST_AGREEING for share in shares.values()), shares


def test_share_that_is_generated(counts: Counts) -> None:
    """Of the elementwise operations and reductions, all samples of which must be kernels only."""
    share = counts.share("generated")
    assert share is None or share >= LEAST_GENERATED
