"""What may and may not be replaced in the kernel that reads it."""

from __future__ import annotations

import pytest

from hemstitch.ir.types import DType
from hemstitch.kernel_ir.hazard import hazard
from hemstitch.kernel_ir.index import Axis, at
from hemstitch.kernel_ir.nodes import Buffer, Kernel, Load, Loop, Nest, Phase, Role, Store

X = Buffer("x", DType.F32, Role.OUTPUT, 32)
Y = Buffer("y", DType.F32, Role.OUTPUT, 32)
ROWS, LANES, MORE = Axis("i", 4), Axis("j", 8), Axis("k", 3)
PLACE = at(ROWS).scaled(8) + at(LANES)
LOAD, STORE = Load("v", X, PLACE), Store(X, PLACE, "v")


def lanes(*body):
    return Loop(LANES, body, lanes=True)


def nest(*body, rows=(ROWS,)):
    return Nest(rows, (), body, (), 8, "")


def kernel(*phases):
    return Kernel("k", (X, Y), tuple(Phase(nests) for nests in phases))


SAFE = {
    "the same element in one loop": kernel((nest(lanes(LOAD, STORE)),)),
    "an earlier loop of the row": kernel((nest(lanes(LOAD), lanes(LOAD, STORE)),)),
    "an earlier phase": kernel((nest(lanes(LOAD)),), (nest(lanes(STORE)),)),
    "only written": kernel((nest(lanes(STORE)),)),
    "another element in an earlier phase": kernel(
        (nest(lanes(Load("v", X, at(LANES)))),), (nest(lanes(STORE)),)
    ),
}
UNSAFE = {
    "a later loop of the row": kernel((nest(lanes(LOAD, STORE), lanes(LOAD)),)),
    "after it in one loop": kernel((nest(lanes(STORE, LOAD)),)),
    "a later phase": kernel((nest(lanes(STORE)),), (nest(lanes(LOAD)),)),
    "another nest of the phase": kernel((nest(lanes(LOAD)), nest(lanes(STORE)))),
    "the next element": kernel((nest(lanes(Load("v", X, PLACE.shifted(1)), STORE)),)),
    "transposed": kernel((nest(lanes(Load("v", X, at(ROWS) + at(LANES).scaled(4)), STORE)),)),
    "one element for a row": kernel((nest(Load("v", X, at(ROWS).scaled(8)), lanes(STORE)),)),
    "written again and again": kernel((nest(Loop(MORE, (lanes(LOAD, STORE),), lanes=False)),)),
    "rows that write the same": kernel((nest(lanes(LOAD, STORE), rows=(ROWS, MORE)),)),
}


@pytest.mark.parametrize("safe", SAFE.values(), ids=SAFE)
def test_safe(safe):
    assert hazard(safe, safe.buffers) is None


@pytest.mark.parametrize("unsafe", UNSAFE.values(), ids=UNSAFE)
def test_unsafe(unsafe):
    assert hazard(unsafe, unsafe.buffers) == "x is read where another row may have replaced it"
