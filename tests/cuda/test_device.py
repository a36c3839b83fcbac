"""What is asked of torch's own builds for GPUs, without a GPU."""

from __future__ import annotations

import pytest
import torch

from hemstitch.runtime.recycling import empty_strided_on


@pytest.mark.skipif(torch.version.cuda is None, reason="torch is built for processors only")
def test_a_build_for_gpus_has_the_names_that_launches_use():
    for name in (
        *("_cuda_getCurrentRawStream", "_cuda_getDevice", "_cuda_exchangeDevice"),
        "_cuda_isCurrentStreamCapturing",
    ):
        assert callable(getattr(torch._C, name))


def test_what_makes_tensors():
    shape, strides = (3, 4), (1, 3)
    for place in ("cpu", "meta"):
        made = empty_strided_on(torch.device(place))(shape, strides, torch.int32)
        assert (made.device.type, made.shape, made.stride()) == (place, shape, strides)
    on_gpu = empty_strided_on(torch.device("cuda"))
    assert on_gpu.__name__ == "_empty_strided_cuda"
