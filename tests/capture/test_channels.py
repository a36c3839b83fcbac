"""Convolutions by channels: the library is given and gives images that lie so, and no program
notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hemstitch
from hemstitch.errors import GraphWarning
from hemstitch.ir.calls import Convolution, ConvolutionBackward, StructuredCall
from hemstitch.ir.types import contiguous_strides
from hemstitch.planning.plan import LibraryStep
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of
from tests.effort import IS_WHOLE

Model = Callable[[Tensor, Tensor, Tensor], object]
BATCH, SIDE = 2, 9
MACHINE = replace(generic_cpu(threads=2, lanes=16), matrix_units={})  # all are the library's


def chain(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    hidden = F.relu(F.conv2d(x, first, padding=1))
    return F.conv2d(hidden, second, padding=1).sigmoid()


PROGRAMS: dict[str, Model] = {
    "chain": chain,
    "residual": lambda x, w, v: F.conv2d(F.conv2d(x, w) + F.conv2d(x.exp(), w), v),
    "convolution is the result": lambda x, w, v: F.conv2d(x, w),
    "strides and groups": lambda x, w, v: F.conv2d(
        F.conv2d(x, w, stride=2), v[:, :3], groups=2, padding=2, dilation=2
    ),
    "transposed": lambda x, w, v: F.conv_transpose2d(F.conv2d(x, w), v, stride=2),
    "library behind": lambda x, w, v: F.adaptive_max_pool2d(F.conv2d(x, w), 3),
    "library between": lambda x, w, v: F.conv2d(F.max_pool2d(F.conv2d(x, w), 2), v).sum((2, 3)),
    "flattened": lambda x, w, v: F.conv2d(x, w).flatten(1).softmax(-1),
    "reshaped": lambda x, w, v: F.conv2d(F.conv2d(x, w).reshape(BATCH, 6, 49, 1), v[..., :1, :1]),
    "viewed": lambda x, w, v: F.conv2d(x, w).view(BATCH, 6, 49).permute(2, 0, 1).exp(),
    "memory": lambda x, w, v: F.conv2d(x, w).as_strided((3, 5), (7, 2), 1) * 2,
    "weight norm": lambda x, w, v: F.conv2d(
        x, torch._weight_norm(w, w.square().sum((1, 2, 3), keepdim=True) + 1, 0)
    ),
    "sorted": lambda x, w, v: F.conv2d(x, w).tanh().sort(1).values,
    "norm": lambda x, w, v: F.conv2d(
        F.relu(F.batch_norm(F.conv2d(x, w), None, None, training=True)), v
    ),
}


def arguments(dtype: torch.dtype = torch.float32, batch: int = BATCH) -> list[Tensor]:
    shapes = (batch, 4, SIDE, SIDE), (6, 4, 3, 3), (6, 6, 3, 3)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def results(program: Model, given: list[Tensor]) -> list[Tensor]:
    result = program(*given)
    assert isinstance(result, Tensor)
    result.double().square().sum().backward()
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in given]
    return [result, *gradients]


def distance(found: list[Tensor], exact: list[Tensor]) -> float:
    pairs = zip(found, exact, strict=True)
    return max(
        float((a.detach().double() - b.detach()).norm() / (b.norm() + 1e-9)) for a, b in pairs
    )


def lie(
    of: Callable[[StructuredCall], object], model: Model, backward: bool = False
) -> list[object]:
    """`of` each convolution in the plans of a program."""
    plans = plans_of(model, arguments(), MACHINE, backward)
    steps = [step for _, plan in plans for step in plan.steps if isinstance(step, LibraryStep)]
    calls = [step.node.attr for step in steps if isinstance(step.node.attr, StructuredCall)]
    kinds = Convolution, ConvolutionBackward
    return [of(call) for call in calls if isinstance(call.operation, kinds)]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_strides_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    program, given = PROGRAMS[name], arguments(dtype)
    copies = [
        [each.detach().to(t).requires_grad_() for each in given] for t in (dtype, torch.double)
    ]
    eager, exact = (results(program, each) for each in copies)
    found = results(torch.compile(program, backend="hemstitch", fullgraph=True), given)
    assert distance(found, exact) <= 2 * distance(eager, exact) + 1e-6
    assert [each.stride() for each in found] == [each.stride() for each in eager]
    if dtype is torch.bfloat16 and not IS_WHOLE:
        return
    with torch.no_grad():
        again = torch.compile(program, backend="hemstitch", fullgraph=True)(*given)
    torch.testing.assert_close(again, found[0])
    assert again.stride() == found[0].stride()


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_cannot_be_compiled_runs_as_it_was_traced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views that PyTorch traced may not see what lies by channels now."""

    def refuse(*_: object) -> None:
        raise RuntimeError("no plan today")

    monkeypatch.setattr("hemstitch.pipeline.planned", refuse)
    torch._dynamo.reset()
    program, given = PROGRAMS[name], arguments()
    expected = results(program, given)
    for each in given:
        each.grad = None
    with pytest.warns(GraphWarning, match="no plan today"):
        found = results(torch.compile(program, backend="hemstitch", fullgraph=True), given)
    assert distance(found, [each.double() for each in expected]) <= 1e-5
    assert [each.stride() for each in found] == [each.stride() for each in expected]


def test_no_convolution_reads_or_gives_rows() -> None:
    def by_rows(call: StructuredCall) -> bool:
        is_backward = isinstance(call.operation, ConvolutionBackward)
        images = list(call.operand_strides[: 2 if is_backward else 1])
        images += [
            strides for type_, strides in filter(None, call.results) if type_.shape[0] == BATCH
        ]
        return any(strides[1] != 1 for strides in images if strides is not None)

    found = lie(by_rows, chain, backward=True)
    assert found == [False] * 4


def test_one_copy_of_an_image_that_several_read() -> None:
    """What is given lies by rows: one kernel lays it anew, for forward and for backward."""

    def inception(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return F.conv2d(x, first, padding=1) + F.conv2d(x, first[..., 1:2, 1:2])

    (_, forward), _ = plans_of(inception, arguments(), MACHINE, backward=True)
    image = contiguous_strides((BATCH, 4, SIDE, SIDE))
    readers = [
        step
        for step in forward.kernels
        if any(tensor.is_argument and tensor.strides == image for tensor in step.stitched.tensors)
    ]
    assert len(readers) == 1


def test_no_image_is_copied_between_convolutions() -> None:
    forward, backward = plans_of(chain, arguments(), MACHINE, backward=True)
    # The image by channels, ReLU, sigmoid; both of their gradients, the image's by rows.
    assert [len(plan.kernels) for _, plan in (forward, backward)] == [3, 3]


def test_double_precision_is_left_alone() -> None:
    """The library has no kernels by channels for it."""

    def in_double(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return chain(x.double(), first.double(), second.double())

    rows = [contiguous_strides((BATCH, channels, SIDE, SIDE)) for channels in (4, 6)]
    assert lie(lambda call: call.operand_strides[0], in_double) == rows


@pytest.mark.parametrize("is_training", [False, True])
def test_batches_of_any_size(is_training: bool) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("hemstitch")
    compiled = torch.compile(chain, backend=counter, dynamic=True)
    for batch in (2, 3, 5):
        given = arguments(batch=batch)
        with torch.set_grad_enabled(is_training):
            found, expected = compiled(*given), chain(*given)
            torch.testing.assert_close(found, expected)
        if is_training:
            pairs = (torch.autograd.grad(each.sum(), given) for each in (found, expected))
            torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-4)
    assert counter.frame_count <= 2


def test_an_image_that_is_mutated() -> None:
    torch._dynamo.reset()

    def program(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        result = F.conv2d(x, w)
        x.mul_(2)
        return F.conv2d(result + F.conv2d(x, w), v)

    given = [each.detach() for each in arguments()]
    copies = [each.clone() for each in given]
    torch.testing.assert_close(
        torch.compile(program, backend="hemstitch")(*given), program(*copies)
    )
    torch.testing.assert_close(given, copies)


def test_a_users_rewrite_sees_convolutions_as_they_were_traced() -> None:
    torch._dynamo.reset()
    aten = torch.ops.aten

    def pattern(x: Tensor) -> Tensor:
        return aten.relu.default(x)

    def replacement(x: Tensor) -> Tensor:
        return aten.clamp.default(x, 0.0, 6.0)

    options = {"rewrites": [(pattern, replacement)]}
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3))
    x = 10 * torch.randn(BATCH, 4, SIDE, SIDE)
    expected = model[2](model[0](x).clamp(0, 6))
    found = torch.compile(model, backend="hemstitch", options=options)(x)
    torch.testing.assert_close(found, expected)


def convolved(x: Tensor, weight: Tensor, groups: int = 1) -> Tensor:
    return F.gelu(F.conv1d(F.gelu(F.conv1d(x, weight, padding=1, groups=groups)), weight[:, :, :1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_lie_by_channels_where_they_may_be_multiplied(
    dtype: torch.dtype, kernels_multiply: None
) -> None:
    given = [torch.randn(2, 6, 31, dtype=dtype), torch.randn(6, 6, 3, dtype=dtype)]
    with torch.no_grad():
        report = hemstitch.explain(convolved, *given)
        function = torch.compile(convolved, backend="hemstitch", options={"strict": True})
        found, eager, exact = function(*given), convolved(*given), convolved(*map(doubled, given))
    assert not report.library_calls
    assert found.stride() == eager.stride()
    assert (found - exact).norm() <= 2 * (eager - exact).norm() + 1e-5


def doubled(x: Tensor) -> Tensor:
    return x.double()


def test_rows_stay_as_they_are_for_the_library() -> None:
    """In groups, and where kernels are not to multiply."""
    x, weight = torch.randn(2, 6, 31), torch.randn(6, 3, 3)
    grouped = partial(F.conv1d, groups=2)
    plain = partial(F.conv1d, weight=torch.randn(6, 6, 3))
    with torch.no_grad():
        one = hemstitch.explain(grouped, x, weight)
        other = hemstitch.explain(plain, x, options={"products": False})
    for report in (one, other):
        assert report.library_calls == ["aten.convolution.default"] and not report.kernels


def test_rows_stay_for_a_planner_that_multiplies_nothing() -> None:
    plain = partial(F.conv1d, weight=torch.randn(6, 6, 3))
    with torch.no_grad():
        report = hemstitch.explain(
            plain, torch.randn(2, 6, 31), options={"planner": "conservative"}
        )
    assert report.library_calls == ["aten.convolution.default"] and not report.kernels


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize(
    ("convolve", "shape"),
    [
        (partial(F.conv2d, groups=4), (4, 1, 3, 3)),
        (F.conv2d, (6, 4, 1, 1)),
        (partial(F.conv_transpose2d, stride=2), (4, 2, 2, 2)),
    ],
)
def test_what_multiplies_little_is_not_copied_for_itself(
    convolve: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], is_training: bool
) -> None:
    given = [arguments()[0], torch.randn(shape, requires_grad=True)]
    plans = plans_of(convolve, given, MACHINE, is_training)
    assert not any(plan.kernels for _, plan in plans)
    more = plans_of(lambda x, w: convolve(x, w).exp(), given, MACHINE, is_training)
    assert all(plan.kernels for _, plan in more)


@pytest.mark.parametrize(
    "channels, step, rank, threads", [(3, 2, 2, 1), (6, 3, 2, 2), (4, 2, 1, 2), (5, 2, 3, 2)]
)
def test_gradients_of_weights_that_skip_pixels(
    channels: int, step: int, rank: int, threads: int
) -> None:
    """oneDNN 3.12 writes past its memory where they are 1 x 1 and the image lies by channels: an
    eager step would end the process, or be wrong, so that eager's image is not by channels."""
    side = {1: 4096, 2: 64, 3: 16}[rank]
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]

    def program(x: Tensor, narrow: Tensor, wide: Tensor) -> Tensor:
        return convolve(convolve(x.exp(), narrow, stride=step).tanh(), wide).sin()

    shapes = (
        (2, channels, *[side] * rank),
        (48, channels, *[1] * rank),
        (8, 48, *[1] * rank),
    )
    inputs = [torch.randn(shape).requires_grad_() for shape in shapes]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        result = torch.compile(program, backend="hemstitch", fullgraph=True)(*inputs)
        gradients = torch.autograd.grad(result.sum(), inputs)
    finally:
        torch.set_num_threads(before)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    for ours, true in zip(gradients, torch.autograd.grad(program(*wide).sum(), wide)):
        torch.testing.assert_close(
            ours.double(), true, rtol=1e-4, atol=1e-4 * float(true.abs().max())
        )
