"""Every function of libdevice has a meaning or says that it has none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton.language as tl
from triton.language.extra import libdevice as stub
from triton.language.extra.cuda import libdevice as cuda

from hemstitch.errors import UnsupportedError
from testing.emulator import emulate, libdevice
from testing.emulator.tensors import tensor
from tests.emulator import kernels

KNOWN = {
    *libdevice.FUNCTIONS,
    *libdevice.IN_OWN_TYPE,
    *libdevice.PREDICATES,
    *libdevice.FUSED,
}


class Semantic:
    def to_tensor(self, value: object) -> object:
        return value


def test_every_name_is_one_of_libdevice() -> None:
    assert all(hasattr(stub, name) and hasattr(cuda, name) for name in KNOWN)


@pytest.mark.parametrize("name", sorted(KNOWN))
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_function_keeps_shape_and_type(name: str, kind: type[np.generic]) -> None:
    if name in libdevice.FUSED and kind is np.float64:
        pytest.skip("f64 is refused")
    dtype = tl.float32 if kind is np.float32 else tl.float64
    block = tensor(np.full((4, 2), 0.25, kind), dtype)
    call = dict(libdevice.replacements(Semantic()))[name]
    result = call(*[block] * len(libdevice.parameters(name)))
    assert list(result.type.shape) == [4, 2] and result.handle.data.shape == (4, 2)
    assert result.dtype == (tl.int1 if name in libdevice.PREDICATES else dtype)


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("cbrt", 27.0, 3.0),
        ("exp10", 2.0, 100.0),
        ("round", 2.5, 3.0),
        ("round", -2.5, -3.0),
        ("rint", 2.5, 2.0),
        ("sinpi", 0.5, 1.0),
        ("cospi", 1.0, -1.0),
        ("normcdf", 0.0, 0.5),
        ("normcdfinv", 0.5, 0.0),
        ("erfcx", 0.0, 1.0),
        ("lgamma", 5.0, math.log(24.0)),
        ("saturatef", 7.0, 1.0),
        ("saturatef", math.nan, 0.0),
        ("j0", 0.0, 1.0),
        ("cyl_bessel_i0", 0.0, 1.0),
        ("rcp_rn", 4.0, 0.25),
        ("rsqrt", 4.0, 0.5),
        ("rcbrt", 8.0, 0.5),
        ("acosh", 1.0, 0.0),
        ("atanh", 0.0, 0.0),
    ],
)
def test_values(name: str, x: float, expected: float) -> None:
    found = libdevice.FUNCTIONS[name](np.array([x]))
    assert found[0] == pytest.approx(expected, abs=1e-12)


def run(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape)
    emulate(kernels.library, 1, {"x": x, "y": y, "out": out, "NAME": name, "BLOCK": x.numel()})
    return out


def test_in_a_kernel() -> None:
    x, y = torch.rand(64) + 0.5, torch.randn(64)
    assert torch.equal(run("tanh", x, y), x.double().tanh().float())
    assert torch.equal(run("pow", x, y), x.double().pow(y.double()).float())
    exact = (x.double() * y.double() + 1.0).float()
    torch.testing.assert_close(run("fma", x, y), exact, rtol=1e-7, atol=0)
    x[::2] = math.nan
    assert torch.equal(run("isnan", x, y), x.isnan().float())


def test_a_function_without_a_meaning_raises() -> None:
    with pytest.raises(UnsupportedError, match=r"libdevice\.yn in the emulator"):
        run("yn", torch.ones(4), torch.ones(4))


def test_a_type_that_libdevice_lacks_raises() -> None:
    with pytest.raises(UnsupportedError, match=r"libdevice\.tanh of fp16"):
        run("half", torch.ones(4), torch.ones(4))
