"""The stub driver, built once a session; every test starts with nothing seen."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session")
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    if importlib.util.find_spec("triton") is None or shutil.which("gcc") is None:
        pytest.skip("needs Triton and gcc")
    if torch.cuda.is_available():
        pytest.skip("the stub would stand in the way of a real driver")
    from tests.cuda import stub  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("driver")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        driver = stub.Driver(stub.build_library(folder))
        with stub.active(driver, folder):
            yield driver


@pytest.fixture
def driver(_installed: object) -> object:
    from tests.cuda import stub  # noqa: PLC0415

    assert isinstance(_installed, stub.Driver)
    _installed.current, _installed.stream, _installed.capturing = 0, 7, False
    _installed.set_registers(32)
    _installed.set_spilled_bytes(0)
    _installed.library.cuCtxSetCurrent(1)
    _installed.forget()
    return _installed
