"""The unroll factor of lane loops: long dependence chains need a larger one."""

from __future__ import annotations

import pytest

from hemstitch.ir.dims import Dim, symbol
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import Let
from hemstitch.targets.cpu.interleave_factor import unroll_factor

F32 = DType.F32


def chain(length: int, name: str = "x") -> tuple[Let, ...]:
    """Each sigmoid of the one before."""
    return tuple(
        Let(f"{name}{k + 1}", Op.SIGMOID, (f"{name}{k}",), F32, F32) for k in range(length)
    )


@pytest.mark.parametrize(
    ("body", "factor"),
    [
        (chain(1), 4),  # the processor looks further ahead than this body
        (chain(8), 8),
        (chain(8) + chain(8, "y"), 4),  # half of it need not wait for the other
        (chain(65), 8),
        (chain(40) + chain(40, "y"), 2),  # fills the registers with what does not wait
    ],
)
def test_long_chains_are_unrolled_further(body: tuple[Let, ...], factor: int) -> None:
    assert unroll_factor(Axis("i", 1024), body, 16) == factor
    assert unroll_factor(Axis("i", symbol("n")), body, 16) == factor


@pytest.mark.parametrize(("extent", "factor"), [(128, 8), (127, 4), (40, 2), (16, 1), (3, 1)])
def test_no_more_than_an_axis_has(extent: Dim, factor: int) -> None:
    assert unroll_factor(Axis("i", extent), chain(8), 16) == factor
