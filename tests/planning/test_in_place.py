"""Library calls that replace elements of an argument of the program where it lies, as the caches of
keys and values are filled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hemstitch.planning.plan import LibraryStep
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

OPTIONS = {"strict": True, "check": True}
PLACES = torch.tensor([3, 5])
Program = Callable[..., object]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def given() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 8, 4), torch.randn(2, 3, 2, 4)


def replaced(function: Program, *arguments: Tensor) -> int:
    """How many library calls write to an argument."""
    plans = [plan for _, plan in plans_of(function, arguments, generic_cpu(2, 8))]
    steps = [step for plan in plans for step in plan.steps if isinstance(step, LibraryStep)]
    results = [tensor for step in steps for tensor in step.results if tensor is not None]
    return sum(tensor.is_argument for tensor in results)


def copied(cache: Tensor, values: Tensor) -> Tensor:
    cache.index_copy_(2, PLACES, torch.tanh(values))
    return cache.sum((1, 3)) * 2


def put(cache: Tensor, values: Tensor) -> Tensor:
    cache[:, :, PLACES] = values + 1
    return torch.relu(cache)


def put_and_returned(cache: Tensor, values: Tensor) -> Tensor:
    cache[:, :, PLACES] = values
    return cache


def masked(cache: Tensor, values: Tensor) -> Tensor:
    cache.masked_scatter_(cache[:1] > 0.3, values.repeat(1, 4, 4, 1))
    return cache * 2


def twice(cache: Tensor, values: Tensor) -> Tensor:
    cache.index_copy_(2, PLACES, values)
    cache.index_copy_(2, PLACES - 1, values * 2)
    return cache.exp()


def read_before(cache: Tensor, values: Tensor) -> Tensor:
    old = cache.sum()
    cache.index_copy_(2, PLACES, values)
    return cache + old


def kept(cache: Tensor, values: Tensor) -> Tensor:
    """A new tensor, and the argument as it was."""
    return torch.relu(cache.index_copy(2, PLACES, values))


PROGRAMS: dict[str, tuple[Program, int]] = {
    "copied": (copied, 1),
    "put": (put, 1),
    "put and returned": (put_and_returned, 1),
    "read before": (read_before, 0),
    "read by the call": (masked, 0),
    "twice": (twice, 0),  # what the last call replaces is no argument
    "kept": (kept, 0),
}


def assert_same(program: Program, cache: Tensor, values: Tensor, dynamic: bool = False) -> None:
    theirs = cache.clone(memory_format=torch.preserve_format)
    function = torch.compile(program, backend="hemstitch", options=OPTIONS, dynamic=dynamic)
    for _ in range(2):
        version = cache._version
        found, expected = function(cache, values), program(theirs, values)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(cache, theirs)
        assert (cache._version > version) is (program is not kept)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_who_is_written_to(name: str, dynamic: bool) -> None:
    program, count = PROGRAMS[name]
    assert replaced(program, *given()) == count
    assert_same(program, *given(), dynamic=dynamic)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_cache_that_lies_otherwise(name: str) -> None:
    cache, values = given()
    assert_same(PROGRAMS[name][0], cache.transpose(1, 2).contiguous().transpose(1, 2), values)
    wide = torch.randn(2, 3, 8, 7)
    assert_same(PROGRAMS[name][0], wide[..., 1:5], values)


def test_a_part_of_a_cache() -> None:
    def program(cache: Tensor, values: Tensor) -> Tensor:
        cache[0].index_copy_(1, PLACES, values[0])
        return cache.cos()

    assert_same(program, *given())


def test_two_caches_and_what_waits_for_both() -> None:
    def program(keys: Tensor, values: Tensor, new: Tensor) -> Tensor:
        keys.index_copy_(2, PLACES, new)
        values.index_copy_(2, PLACES, new * 2)
        return torch.softmax(keys @ values.transpose(2, 3), -1)

    (keys, new), (values, _) = given(), given()
    assert replaced(program, keys, values, new) == 2
    mine, theirs = (keys.clone(), values.clone()), (keys.clone(), values.clone())
    function = torch.compile(program, backend="hemstitch", options=OPTIONS)
    torch.testing.assert_close(function(*mine, new), program(*theirs, new))
    torch.testing.assert_close(mine, theirs)


def test_a_place_that_is_not_there_is_an_error() -> None:
    def program(cache: Tensor, places: Tensor, values: Tensor) -> Tensor:
        cache.index_copy_(2, places, values)
        return cache.cos()

    cache, values = given()
    function = torch.compile(program, backend="hemstitch", options=OPTIONS)
    function(cache, PLACES, values)
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        function(cache, PLACES + 4, values)
    torch.testing.assert_close(function(cache, PLACES, values), cache.cos())
