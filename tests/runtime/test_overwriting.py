"""Library calls that copy an operand to replace elements of the copy replace the operand's own,
where a kernel has made it and nobody reads it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import hemstitch.driver.compiler
from hemstitch.driver.call_list import assemble
from hemstitch.runtime.assembly import Assembly
from tests.compiled import watched

ROWS = torch.tensor([3, 0, 3, 6])
PLACES = torch.randint(0, 7, (4, 5), generator=torch.Generator().manual_seed(0))
SOURCE = torch.randn(4, 5)
ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "scatter_reduce": lambda x: x.exp().scatter_reduce(0, PLACES, SOURCE, "prod").sin(),
    "put": lambda x: x.exp().put(ROWS, SOURCE[:, 0]).sin(),
    "masked_scatter": lambda x: x.exp().masked_scatter(x > 0, x[0].expand(7, 5)),
    "index_reduce": lambda x: x.exp().index_reduce(0, ROWS, SOURCE, "amax"),
    "as_strided_scatter_from": lambda x: x.exp().as_strided_scatter(SOURCE, (4, 5), (6, 1), 2),
}


def twice(x: Tensor) -> tuple[Tensor, ...]:
    """The second of two may have it."""
    y = x.exp()
    return tuple(y.index_reduce(0, ROWS, SOURCE, kind) for kind in ("amax", "amin"))


def read_afterwards(x: Tensor) -> Tensor:
    y = x.exp()
    z = y.index_reduce(0, ROWS, SOURCE, "prod")
    return y * z


def returned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y, y.index_reduce(0, ROWS, SOURCE, "prod")


def source_as_well(x: Tensor) -> Tensor:
    y = x.exp()
    return y.index_reduce(0, torch.arange(7), y, "prod")


def argument(x: Tensor) -> Tensor:
    return x.index_reduce(0, ROWS, SOURCE, "prod")


def expanded(x: Tensor) -> Tensor:
    return x[0].exp().expand(7, 5).index_reduce(0, ROWS, SOURCE, "prod")


def made_by_the_library(x: Tensor) -> Tensor:
    """It may be in memory that others look into."""
    return x.sort(0).values.index_reduce(0, ROWS, SOURCE, "prod")


def replacing(
    function: Callable[..., object], x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The calls in its graphs that write where they read; its results are eager's."""
    before = x.clone()
    names = overwriting(function, lambda: x, monkeypatch)
    assert torch.equal(x, before)
    return names


def overwriting(
    function: Callable[..., object], given: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The same, and what it leaves in its argument is what eager does."""
    assemblies: list[Assembly] = []

    def assembled(*arguments: object) -> Assembly:
        assemblies.append(assemble(*arguments))  # type: ignore[arg-type]
        return assemblies[-1]

    monkeypatch.setattr(hemstitch.driver.compiler, "assemble", assembled)
    torch._dynamo.reset()
    options = {"strict": True, "check": True, "cache": False}
    compiled = torch.compile(function, backend="hemstitch", options=options)
    for _ in range(2):
        ours, eager = given(), given()
        torch.testing.assert_close(compiled(ours), function(eager))
        torch.testing.assert_close(ours, eager)
    fixed = [value for assembly in assemblies for value in assembly.fixed.values()]
    overloads = [value for value in fixed if isinstance(value, torch._ops.OpOverload)]
    names = [overload.overloadpacket.__name__ for overload in overloads]
    return [name for name in names if name.endswith("_")]


@pytest.mark.parametrize("name", ALONE)
def test_nobody_else_reads_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert replacing(ALONE[name], torch.randn(7, 5), monkeypatch) == [f"{name}_"]


@pytest.mark.parametrize(
    ("function", "count"),
    [
        *((twice, 1), (read_afterwards, 0), (returned, 0), (source_as_well, 0), (argument, 0)),
        (made_by_the_library, 0),
    ],
)
def test_who_else_reads_it(
    function: Callable[..., object], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(replacing(function, torch.randn(7, 5), monkeypatch)) == count


def test_one_whose_elements_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    replacing(expanded, torch.randn(7, 5), monkeypatch)


CACHES: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.ones(3, 9, 5).transpose(0, 1),
    "channels last": lambda: torch.ones(5, 3, 9).permute(2, 1, 0),
    "with gaps": lambda: torch.ones(9, 4, 12)[:, 1:, ::2][..., :5],
}
WRITES: dict[str, Callable[[Tensor], object]] = {
    "index_copy_": lambda x: x.index_copy_(0, ROWS[1:], SOURCE[:3, None].expand(3, 3, 5)),
    "index_put_": lambda x: x.__setitem__(ROWS[1:], SOURCE[:3, None].expand(3, 3, 5)),
    "index_add_": lambda x: x.index_add_(0, ROWS, SOURCE[:, None].expand(4, 3, 5)),
    "scatter_": lambda x: x.scatter_(0, PLACES[:1, None].expand(1, 3, 5), x[:1] * 2),
    "scatter_add_": lambda x: x.scatter_add_(0, PLACES[:, None].expand(4, 3, 5), x[:4] * 2),
}


@pytest.mark.parametrize("layout", CACHES)
def test_arguments_however_they_lie(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As caches of keys and values lie, transposed. They are not copied, but where what is written
    is read from them."""
    for name, write in WRITES.items():
        reads_them = name.startswith("scatter")
        names = overwriting(partial(_written, write), CACHES[layout], monkeypatch)
        assert names == ([] if reads_them else [name]), name


def _written(write: Callable[[Tensor], object], x: Tensor) -> Tensor:
    write(x)
    return x * 2


def test_gradients() -> None:
    """Zeros, and sums by index on them."""
    x = torch.randn(30, 40, requires_grad=True)
    places = torch.randint(0, 40, (30, 20))

    def program(x: Tensor) -> Tensor:
        return x.gather(1, places).square().sum() + x.take(places).sin().sum()

    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    ours, eager = (torch.autograd.grad(f(x), x) for f in (compiled, program))
    torch.testing.assert_close(ours, eager)


def test_results_of_unsafe_indices_are_not_copied() -> None:
    """They are no views, unlike those of other operations that are called unsafe."""

    def program(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        return torch.ops.aten._unsafe_masked_index_put_accumulate(x, mask, [ROWS], values)

    x, mask, values = torch.randn(7, 5), torch.tensor([1, 0, 1, 1]).bool(), torch.randn(4, 5)
    mask = mask[:, None].expand(4, 5)
    compiled, report = watched(program)
    kept = x.clone()
    torch.testing.assert_close(compiled(x, mask, values), program(x, mask, values))
    assert torch.equal(x, kept)
    assert not report.kernels
