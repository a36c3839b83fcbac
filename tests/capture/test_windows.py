"""Convolutions of images of one channel, and of patches, as products of what windows hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.capture.helpers import convolutions, results
from tests.effort import IS_WHOLE

Program = Callable[..., Tensor]
IMAGES, HEIGHT, WIDTH, CHANNELS = 2, 9, 6, 16


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias, padding=1).relu()


def strided(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, None, stride=(2, 1), padding=(0, 2)) + bias[:, None, None]


def pooled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.max_pool2d(F.conv2d(x, weight, bias, padding=1).relu(), 2).flatten(1)


def sorted_(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Behind it is a call of the library, which looks at how images lie."""
    return F.conv2d(x, weight, bias).sort(3).values * 2


def patches(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Of three channels, as a vision transformer sees an image."""
    image = torch.cat([x, x.cos(), x.exp()], 1)
    return F.conv2d(image, weight.repeat(1, 3, 1, 1), bias, stride=3).flatten(2).transpose(1, 2)


PROGRAMS = [plain, strided, pooled, sorted_, patches]


def with_a_gradient_of_images(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x * bias.sum(), weight, bias)


def of_two_channels(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(torch.cat([x, x.exp()], 1), weight.repeat(1, 2, 1, 1), bias)


def dilated(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias, dilation=2)


def transposed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv_transpose2d(x, weight.transpose(0, 1), bias)


def with_a_rest(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(torch.cat([x, x.cos()], 1)[:, :, 1:], weight.repeat(1, 2, 1, 1), bias, stride=3)


UNLIKE = [with_a_gradient_of_images, of_two_channels, dilated, transposed, with_a_rest]


def given(*, channels: int = CHANNELS, window: tuple[int, int] = (3, 3)) -> list[Tensor]:
    weight, bias = torch.randn(channels, 1, *window), torch.randn(channels)
    images = torch.randn(IMAGES, 1, HEIGHT, WIDTH)
    return [images, weight.requires_grad_(), bias.requires_grad_()]


@pytest.mark.parametrize("program", [*PROGRAMS, *UNLIKE])
@pytest.mark.parametrize("lies", [torch.contiguous_format, torch.channels_last])
def test_results_and_gradients(program: Program, lies: torch.memory_format) -> None:
    torch._dynamo.reset()
    arguments = given()
    arguments[0] = arguments[0].expand(-1, 2, -1, -1).contiguous(memory_format=lies)[:, :1]
    doubles = [each.detach().double().requires_grad_(each.requires_grad) for each in arguments]
    exact, eager = results(program, doubles), results(program, arguments)
    found = results(torch.compile(program, backend="hemstitch", fullgraph=True), arguments)
    assert len(found) == len(exact)
    for mine, true in zip(found, exact, strict=True):
        assert float((mine.double() - true).norm() / true.norm()) < 1e-5
    assert found[0].stride() == eager[0].stride()
    if lies is torch.contiguous_format and not IS_WHOLE:
        return
    with torch.no_grad():
        again = torch.compile(program, backend="hemstitch", fullgraph=True)(*arguments)
    torch.testing.assert_close(again, found[0], rtol=1e-4, atol=1e-4)
    assert again.stride() == eager[0].stride()


@pytest.mark.parametrize("program", PROGRAMS)
def test_such_convolutions_vanish(program: Program) -> None:
    assert convolutions(program, given()) == 0


@pytest.mark.parametrize("program", UNLIKE)
def test_others_stay(program: Program) -> None:
    assert convolutions(program, given()) == 2


@pytest.mark.parametrize("sizes", [{"channels": 8}, {"window": (5, 5)}])
def test_few_channels_and_large_windows_stay(sizes: dict[str, int]) -> None:
    assert convolutions(plain, given(**sizes)) == 2


@pytest.mark.parametrize("is_frozen", [(1,), (2,)])
def test_some_have_no_gradient(is_frozen: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    arguments = given()
    for place in is_frozen:
        arguments[place].requires_grad_(requires_grad=False)
    expected = results(plain, arguments)
    found = results(torch.compile(plain, backend="hemstitch", fullgraph=True), arguments)
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-5


def test_sizes_may_change() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(plain, backend="hemstitch", dynamic=True)
    for height in (HEIGHT, 4, 21):
        _, *others = given()
        arguments = [torch.randn(IMAGES, 1, height, WIDTH), *others]
        for mine, theirs in zip(
            results(compiled, arguments), results(plain, arguments), strict=True
        ):
            assert float((mine - theirs).norm() / theirs.norm()) < 1e-5
