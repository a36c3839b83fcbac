"""Results have eager's strides. Those that look into memory of arguments or of other results are in
the same memory as in eager, and nothing is copied for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hemstitch.errors import GraphWarning
from hemstitch.report.explain import explain
from tests.effort import some

Program = Callable[..., Any]
FIRST = 3  # of the rows that some programs give back


def _halves(x: Tensor, first: int) -> Any:
    return x.split(x.shape[0] // 2)


def _columns(x: Tensor, first: int) -> Any:
    return x.unbind(1)


def _rest(x: Tensor, first: int) -> Any:
    return x[first:], x.sum()


def _last_column(x: Tensor, first: int) -> Any:
    return x[:, x.shape[1] - 1 :]


def _repeated(x: Tensor, first: int) -> Any:
    return x[first].expand(3, x.shape[1]), x.t()[1:]


def _windows(x: Tensor, first: int) -> Any:
    return x.unfold(0, 2, 1)[first:], x.diagonal(1), x[None].squeeze(0)[2:]


def _halves_of_a_result(x: Tensor, first: int) -> Any:
    return (x * 2).split(x.shape[0] // 2)


def _parts_of_a_result(x: Tensor, first: int) -> Any:
    y = x.t() * 2
    return y[first:], y[:first]


def _repeated_result(x: Tensor, first: int) -> Any:
    y = (x * 2).expand(4, *x.shape)
    return y[:, first:], y


def _written(x: Tensor, first: int) -> Any:
    x.add_(1)
    return x, x[:2]


def _copied_into(x: Tensor, first: int) -> Any:
    """What is written to `x` too is no view of it."""
    y = x + 1
    x.copy_(y)
    return y[first:], y


def _written_and_given_back(x: Tensor, first: int) -> Any:
    return x.sigmoid_(), x.cos()


def _view_of_what_is_written(x: Tensor, first: int) -> Any:
    x.mul_(2)
    return x[first:], x.sin()


def _written_by_a_view(x: Tensor, first: int) -> Any:
    rows = x.flatten(0)
    rows[first] = 1
    return rows, x.cos()


WRITTEN = (_written_and_given_back, _view_of_what_is_written, _written_by_a_view)
VIEWS = (_halves, _columns, _last_column, _repeated, _windows)
OTHERS = (_rest, _halves_of_a_result, _parts_of_a_result, _repeated_result)
LAYOUTS: dict[str, tuple[tuple[int, int], int]] = {  # strides, offset
    "dense": ((8, 1), 0),
    "within": ((8, 1), 32),
    "transposed": ((1, 8), 0),
    "gaps": ((20, 1), 43),
}


def _made(memory: Tensor, layout: str) -> Tensor:
    strides, offset = LAYOUTS[layout]
    return memory.clone().as_strided((8, 8), strides, offset)


def _tensors(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else [*results]


def _places(results: Sequence[Tensor], argument: Tensor) -> list[object]:
    """Where each result begins, from its argument or from the first result on."""
    return [
        (each.stride(), each.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr())
        for each in results
        for whole in (argument, results[0])
    ]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEMSTITCH_STRICT", "1")
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [*VIEWS, *OTHERS], ids=lambda each: each.__name__)
def test_the_same_memory_as_in_eager(program: Program, dynamic: bool) -> None:
    memory = torch.randn(256)
    compiled = torch.compile(program, backend="hemstitch", dynamic=dynamic)
    for layout in LAYOUTS:
        expected, found = (_made(memory, layout) for _ in range(2))
        results = _tensors(program(expected, FIRST)), _tensors(compiled(found, FIRST))
        torch.testing.assert_close(results[1], results[0])
        assert _places(results[1], found) == _places(results[0], expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [*VIEWS, *OTHERS], ids=lambda each: each.__name__)
def test_gradients_through_them(program: Program, dynamic: bool) -> None:
    expected, found = (_made(torch.arange(256.0), "gaps").requires_grad_() for _ in range(2))
    compiled = torch.compile(program, backend="hemstitch", dynamic=dynamic)
    results = _tensors(program(expected, FIRST)), _tensors(compiled(found, FIRST))
    torch.testing.assert_close(results[1], results[0])
    assert _places(results[1], found) == _places(results[0], expected)
    for of_it in results:
        sum((each.square().sum() for each in of_it), torch.zeros(())).backward()
    assert expected.grad is not None
    torch.testing.assert_close(found.grad, expected.grad)


def _equal_values(x: Tensor) -> list[Tensor]:
    """Views of tensors that turn out to be one, which in eager are several."""
    y, z = x.exp(), x.sin()
    return [
        *(y, torch.maximum(y, y).diagonal(), y.clone().unfold(0, 2, 1), (y * 1).t()),
        *(z.diagonal(), z, (-z).abs().diagonal(), (-z).abs().t(), (-z).abs()),
    ]


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["known sizes", "symbolic sizes"])
def test_equal_values_are_apart(dynamic: bool, gradients: bool) -> None:
    """So that a write to one of them leaves the others as they are."""
    x = torch.randn(5, 5, requires_grad=gradients)
    compiled = torch.compile(_equal_values, backend="hemstitch", dynamic=dynamic)
    count = len(_equal_values(x))
    for place in range(count):
        results, expected = compiled(x), _equal_values(x)
        for of_it in (results, expected):
            of_it[place].data.mul_(3)
        for ours, eager in zip(results, expected, strict=True):
            torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [_written, _copied_into], ids=lambda each: each.__name__)
def test_arguments_that_are_written_to(program: Program, dynamic: bool) -> None:
    expected, found = (_made(torch.arange(256.0), "dense") for _ in range(2))
    compiled = torch.compile(program, backend="hemstitch", dynamic=dynamic)
    results = _tensors(program(expected, FIRST)), _tensors(compiled(found, FIRST))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(found, expected)
    assert _places(results[1], found) == _places(results[0], expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", WRITTEN, ids=lambda each: each.__name__)
def test_arguments_that_training_writes_to(program: Program, dynamic: bool) -> None:
    """In one of these the call writes to a copy, where an argument has gaps."""
    compiled = torch.compile(program, backend="hemstitch", dynamic=dynamic)
    for layout in ("dense", "within", "transposed"):
        outcomes = []
        for function in (program, compiled):
            leaf = torch.linspace(-1, 1, 256, requires_grad=True)
            x = (leaf * 1).as_strided((8, 8), *LAYOUTS[layout])
            results = _tensors(function(x, FIRST))
            total = sum((y.square().sum() for y in (*results, x)), torch.zeros(()))
            gradients = torch.autograd.grad(total, leaf)
            outcomes.append(([*results, x, *gradients], _places(results, x)))
        torch.testing.assert_close(outcomes[1][0], outcomes[0][0])
        assert outcomes[1][1] == outcomes[0][1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_call_has_written_is_viewed_from_where_it_knows(layout: str) -> None:
    """Laid out as the argument is, though it was computed without gaps."""

    def program(x: Tensor, first: int) -> Any:
        x.mul_(2)
        return x[first:], x.sum(), x[1:].split(x.shape[0] // 2)

    compiled = torch.compile(program, backend="hemstitch", dynamic=True)
    for first in (2, 3, 5):
        expected, found = (_made(torch.arange(256.0), layout) for _ in range(2))
        torch.testing.assert_close(compiled(found, first), program(expected, first))
        torch.testing.assert_close(found, expected)


def test_equal_results_are_apart() -> None:
    def program(x: Tensor) -> Any:
        return (x + 1).expand(2, *x.shape), x + 1, x + 1

    results = torch.compile(program, backend="hemstitch")(torch.randn(8, 8))
    assert [each.stride() for each in results] == [(0, 8, 1), (8, 1), (8, 1)]
    assert len({each.data_ptr() for each in results}) == 3


def test_what_is_repeated_is_in_memory_once() -> None:
    """Also where nothing else keeps it in that order."""

    def program(x: Tensor) -> Any:
        y = x.exp().t()
        return y.roll(1, 0), y.narrow(1, 0, 1).expand(8, 4)

    x = torch.randn(8, 8).t()
    found = torch.compile(program, backend="hemstitch")(x)
    torch.testing.assert_close(found, program(x))
    assert [each.stride() for each in found] == [(8, 1), (8, 0)]
    assert found[1].untyped_storage().nbytes() < 4 * 64


def test_a_sum_of_one_element_is_no_view() -> None:
    def program(x: Tensor) -> Any:
        return x.sum(1), x.diagonal().sum(1), x.sum(1).expand(5, 3)

    x = torch.randn(5, 1, 1)
    found = torch.compile(program, backend="hemstitch")(x)
    torch.testing.assert_close(found, program(x))
    x.zero_()
    assert all(each.all() for each in found)


def test_an_expanded_gradient_is_not_copied() -> None:
    x, gradient = torch.randn(8, 6, requires_grad=True), torch.randn(8)
    for run in (_row_sums, torch.compile(_row_sums, backend="hemstitch")):
        [found] = torch.autograd.grad(run(x), x, gradient)
        assert (found.stride(), found.data_ptr()) == ((1, 0), gradient.data_ptr())
        assert torch.equal(found, gradient[:, None].expand(8, 6))


def _row_sums(x: Tensor) -> Tensor:
    return x.sum(1)


def _parts(x: Tensor, first: int) -> list[Tensor]:
    """Each a view of a value of its own."""
    return [
        (x + 1)[first:],
        (x.t() + 2)[first:],
        (x - 1)[..., ::2],
        x.tanh()[:, 0],
        x.exp().split(3, 1)[-1],
        x.cumsum(1).flip(1)[first:, 1],
        x.abs().diagonal(1),
        x.square()[None, :, 1:].squeeze(0).detach(),
        (x @ x)[:, first:],
        (x > 0)[:, 2:5],
        x.bfloat16()[::3, ::2],
    ]


def _several_times(x: Tensor, first: int) -> list[Tensor]:
    """With elements under several indices."""
    return [
        (x + 1).unfold(1, 3, 1),
        (x + 2).t().unfold(0, 2, 1)[first:],
        (x + 3).unfold(0, 3, 2).unfold(1, 2, 1),
        (x - 1)[:, None].expand(8, 3, 8).unfold(2, 3, 2),
        (x - 2)[:, None, 1:].expand(8, 3, 7),
        x.tanh()[first].expand(4, 8).t(),
        x.sum(0).unfold(0, 2, 1),
        x.exp().as_strided((3, 3), (4, 2), 1),
    ]


@pytest.mark.parametrize("dynamic", [False, True], ids=["known sizes", "symbolic sizes"])
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", [_parts, _several_times], ids=lambda each: each.__name__)
def test_strides_are_eagers(program: Any, gradients: bool, dynamic: bool) -> None:
    compiled = torch.compile(program, backend="hemstitch", dynamic=dynamic)
    for layout in some(["transposed", "gaps"], ["dense", "within"]):
        expected, found = (
            _made(torch.linspace(-2, 2, 256).sin(), layout).requires_grad_(gradients)
            for _ in range(2)
        )
        results = program(expected, FIRST), compiled(found, FIRST)
        torch.testing.assert_close(results[1], results[0])
        assert [y.stride() for y in results[1]] == [y.stride() for y in results[0]]
        if gradients:
            for of_it in results:
                sum((y.square().sum() for y in of_it if y.grad_fn), torch.zeros(())).backward()
            torch.testing.assert_close(found.grad, expected.grad)


def test_gaps_take_no_time_and_no_fusion_away() -> None:
    def program(x: Tensor) -> Tensor:
        return (x.exp() * 2)[:, 1:, ::2]

    x = torch.randn(16, 33, 64)
    report = explain(program, x)
    [kernel] = report.kernels
    assert kernel.bytes_written == 4 * program(x).numel()


GRADIENTS: dict[str, tuple[Callable[..., Any], tuple[bool, ...]]] = {  # and which are views
    "parts": (lambda x, y: torch.cat([x, y], 1), (True, True)),
    "stacked": (lambda x, y: torch.stack([x, y.mT]), (True, True)),
    "seen otherwise": (lambda x, y: (x.mT.reshape(-1) * 1, y.sin()), (False, False)),
    "one of them": (lambda x, y: x.view(-1) + y.sin().view(-1), (True, False)),
    "the very gradient": (lambda x, y: x + y.view(4, 3), (True, False)),
    "both all of it": (lambda x, y: x.view(-1) + y.view(-1), (False, False)),
    "overlapping": (lambda x, y: F.pad(x, (0, 0, 0, 2)) + F.pad(y, (0, 0, 2, 0)), (False, False)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_views_where_no_two_share_an_element(name: str) -> None:
    """Autograd adds to views as they are; where two gradients share elements, it adds twice."""
    program, views = GRADIENTS[name]
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    if name == "stacked":
        y = torch.randn(3, 4, requires_grad=True)
    if name == "the very gradient":
        y = torch.randn(12, requires_grad=True)
    results = program(x, y)
    results = results if isinstance(results, tuple) else (results,)
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    seeds = [torch.randn(z.shape) for z in results]
    expected = torch.autograd.grad(results, (x, y), seeds)
    for _ in range(2):
        again = compiled(x, y)
        again = again if isinstance(again, tuple) else (again,)
        gradients = torch.autograd.grad(again, (x, y), seeds)
        torch.testing.assert_close(gradients, expected)
        memory = seeds[0].untyped_storage().data_ptr()
        shown = tuple(g.untyped_storage().data_ptr() == memory for g in gradients)
        assert shown == views
        for gradient, eager, is_view in zip(gradients, expected, views):
            assert not is_view or gradient.stride() == eager.stride()


def test_gradients_are_added_up_where_autograd_keeps_them() -> None:
    """In eager each is added to the other, too."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y]).view(-1) + torch.cat([y, x]).view(-1)

    x, y = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    compiled = torch.compile(program, backend="hemstitch")
    for _ in range(3):
        compiled(x, y).backward(torch.ones(12))
    assert torch.equal(x.grad, torch.full((2, 3), 6.0)) and torch.equal(x.grad, y.grad)


def _with_gaps(x: Tensor) -> tuple[Tensor, ...]:
    asked = torch.empty_strided((4, 3), (8, 2)).copy_(x * 2)
    again = torch.empty_strided((4, 3), (1, 6)).copy_(x)
    return asked, torch.select_scatter(again, x[0] * 2, 0, 1)


def test_gaps_that_the_program_asks_for() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    found = torch.compile(_with_gaps, backend="hemstitch")(x)
    expected = _with_gaps(x)
    torch.testing.assert_close(found, expected)
    assert [y.stride() for y in found] == [y.stride() for y in expected]


def test_backward_reads_what_was_there_before_the_argument_changed() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.tanh()
        x.mul_(0.5)
        return y * x.sin()

    gradients = []
    for run in (program, torch.compile(program, backend="hemstitch")):
        weight = torch.linspace(-2, 2, 12).view(3, 4).requires_grad_()
        x = weight * 1
        (run(x).sum() + x.square().sum()).backward()
        gradients.append(weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def _part_read_after_a_write(x: Tensor) -> Tensor:
    y = x[0]
    y[0] *= True
    return torch.nn.functional.mse_loss(y, y * 2, reduction="none")


def _copy_read_through_a_view(x: Tensor) -> Tensor:
    x[..., :1] += 1e-3
    return torch.nn.functional.pad(x, (-1, 0)).sign_().cummin(-2)[0]


def _written_as_it_is(x: Tensor) -> Tensor:
    x.t().mul_(1)
    return x.sin() * x.view(-1)[1:].cos().sum()


def _written_in_part(x: Tensor) -> Tensor:
    y = x.tanh()
    x[:, 0].clamp_(0.25)
    return y * x[0].exp()


@pytest.mark.parametrize("dynamic", [False, True], ids=["known sizes", "symbolic sizes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_is_kept_in_an_argument_that_the_call_writes_to(
    dtype: torch.dtype, dynamic: bool
) -> None:
    """Autograd would say that it was written to."""
    programs = (
        (_part_read_after_a_write, 3),
        (_copy_read_through_a_view, 1),
        (_written_as_it_is, 3),
        (_written_in_part, 3),
    )
    for program, columns in programs:
        torch._dynamo.reset()
        outcomes = []
        for run in (program, torch.compile(program, backend="hemstitch", dynamic=dynamic)):
            values = torch.linspace(-2, 2, 4 * columns, dtype=dtype)
            weight = values.view(4, columns).requires_grad_()
            x = weight * 1
            y = run(x)
            (y.sum() + x.square().sum()).backward()
            outcomes.append((y, x, weight.grad))
        torch.testing.assert_close(outcomes[1], outcomes[0])


def test_nothing_is_kept_in_a_part_of_memory_that_the_call_writes_to() -> None:
    """Of symbolic sizes; its strides are read as well."""

    def program(x: Tensor) -> Tensor:
        x[None][0].add_(1)
        return x.acosh().exp()

    gradients = []
    for run in (program, torch.compile(program, backend="hemstitch", dynamic=True)):
        memory = torch.linspace(1, 2, 127).requires_grad_()
        part = memory.clone().as_strided((4, 5, 3, 2), (30, 6, 2, 1), 0)
        gradients += torch.autograd.grad(run(part).sum(), memory)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("dynamic", [False, True], ids=["known sizes", "symbolic sizes"])
def test_nothing_is_kept_beside_an_argument_that_the_call_writes_to(dynamic: bool) -> None:
    """Autograd counts writes to all of the memory, in which other arguments lie."""

    def program(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        y.mul_(2)
        return (x.exp() * x).sin(), y.sin(), z.view(3, 2), z[1:].exp().tanh()

    gradients = []
    for run in (program, torch.compile(program, backend="hemstitch", dynamic=dynamic)):
        weight = torch.linspace(-2, 2, 40).requires_grad_()
        memory = weight * 1
        results = run(memory[:5], memory[6:11], memory[20:26])
        gradients += torch.autograd.grad([y.square().sum() for y in results], weight)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_nothing_is_kept_in_a_library_calls_view_of_an_argument_that_the_call_writes_to() -> None:
    """Arguments that overlap are views of one, by `as_strided`."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        x.median()
        return y.square_()

    compiled = torch.compile(program, backend="hemstitch")
    gradients = []
    for run in (program, compiled, compiled):
        weight = torch.arange(1.0, 32.0).requires_grad_()
        memory = weight.clone()
        parts = ((2, 1, 4), (4, 1, 1), 16), ((4, 1, 2), (1, 1, 4), 16)
        y = run(*(memory.as_strided(*part) for part in parts))
        gradients += torch.autograd.grad(y.sum(), weight)
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


@pytest.mark.parametrize("program", VIEWS, ids=lambda each: each.__name__)
def test_nothing_is_copied(program: Program) -> None:
    with torch.no_grad():
        assert not explain(program, torch.randn(64, 64), FIRST).kernels


def test_a_view_of_another_type_from_an_unknown_place_runs_as_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(x: Tensor, first: int) -> Tensor:
        return torch.view_as_real(x)[first:]

    monkeypatch.setenv("HEMSTITCH_STRICT", "0")
    x = torch.randn(8, 4, dtype=torch.complex64)
    with pytest.warns(GraphWarning, match="laid out as only the call knows"):
        found = torch.compile(program, backend="hemstitch", dynamic=True)(x, FIRST)
    torch.testing.assert_close(found, program(x, FIRST))


def _kept_with_gaps(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.nn.functional.pad(x.tanh(), (0, 0, 1, 0))[:, :-1]
    return y, torch.bmm(y, y.transpose(1, 2))


def _kept_as_a_view(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.nn.functional.pixel_shuffle(x[None], 2).flatten(2).transpose(1, 2)
    return y, y[..., :1]


def _kept_in_order(x: Tensor) -> tuple[Tensor, ...]:
    y = x.transpose(0, 2).tanh()[..., :3]
    return y, y.exp()


@pytest.mark.parametrize("dynamic", [False, True], ids=["known sizes", "symbolic sizes"])
@pytest.mark.parametrize(
    "program", [_kept_with_gaps, _kept_as_a_view, _kept_in_order], ids=lambda each: each.__name__
)
def test_what_is_given_back_and_kept_for_backward(program: Program, dynamic: bool) -> None:
    """Backward reads it as it was traced, whatever the caller's is like."""
    torch._dynamo.reset()
    outcomes = []
    for run in (program, torch.compile(program, backend="hemstitch", dynamic=dynamic)):
        x = torch.linspace(-2, 2, 8 * 6 * 4).view(8, 6, 4).sin().requires_grad_()
        results = run(x)
        losses = [(y * torch.linspace(-1, 1, y.shape[-1])).square().sum() for y in results]
        torch.stack(losses).sum().backward()
        outcomes.append((results, x.grad))
    torch.testing.assert_close(outcomes[1], outcomes[0])
    expected, found = ([_order(y) for y in results] for results, _ in outcomes)
    assert found == expected


def _order(y: Tensor) -> list[int]:
    return sorted(range(y.dim()), key=y.stride)
