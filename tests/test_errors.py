"""Every error has a code of its own, a paragraph in docs/user/troubleshooting.md, and says what to
do."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from hemstitch import errors
from hemstitch.errors import (
    GraphWarning,
    HemstitchError,
    HemstitchWarning,
    KernelBuildWarning,
    Location,
    UnsupportedError,
)

DOCUMENT = Path(__file__).parents[1] / "docs" / "user" / "troubleshooting.md"
CLASSES: list[type[HemstitchError] | type[HemstitchWarning]] = [
    *HemstitchError.__subclasses__(),
    *HemstitchWarning.__subclasses__(),
]


def test_the_document_has_one_paragraph_per_error() -> None:
    documented = re.findall(r"^## (H\d{3}) (\w+)$", DOCUMENT.read_text(), re.MULTILINE)
    assert documented == sorted((kind.code, kind.__name__) for kind in CLASSES)


def test_each_code_is_used_once() -> None:
    assert len({kind.code for kind in CLASSES}) == len(CLASSES)
    assert all(kind.__module__ == errors.__name__ and kind.__doc__ for kind in CLASSES)


def test_an_error_says_what_where_and_what_to_do() -> None:
    where = Location("train.py", 7, "    y = model(x)\n")
    error = UnsupportedError("no target mars", hint="use earth", where=where)
    assert str(error).splitlines() == [
        "H002: no target mars",
        "  at train.py:7: y = model(x)",
        "  hint: use earth",
    ]
    assert (error.what, error.where, error.hint) == ("no target mars", where, "use earth")


@pytest.mark.parametrize("kind", HemstitchError.__subclasses__())
def test_an_error_without_a_hint_has_the_advice_of_its_kind(kind: type[HemstitchError]) -> None:
    assert kind("something").hint == kind.advice


def test_the_warning_names_the_kernel() -> None:
    with pytest.warns(KernelBuildWarning, match="H007: kernel_3 .* no registers left"):
        warnings.warn(KernelBuildWarning("kernel_3", "no registers left"), stacklevel=1)


def test_a_graph_that_falls_back_says_why_and_where() -> None:
    where = Location("train.py", 7, "y = model(x)")
    warning = GraphWarning(UnsupportedError("no target mars", hint="use earth", where=where))
    assert str(warning).splitlines() == [
        "H008: a graph could not be compiled and runs through the library: H002: no target mars",
        "  at train.py:7: y = model(x)",
        "  hint: use earth",
    ]


def test_a_graph_that_falls_back_for_another_reason_quotes_it() -> None:
    warning = GraphWarning(KeyError("x"))
    assert "library: KeyError('x')" in str(warning) and warning.hint == GraphWarning.advice


def test_an_error_that_has_no_place_has_that_of_its_graph() -> None:
    begins = Location("train.py", 7, "y = model(x)")
    assert str(GraphWarning(KeyError("x"), begins=begins)).splitlines()[:2] == [
        "H008: a graph could not be compiled and runs through the library: KeyError('x'), in the "
        "graph that begins here",
        "  at train.py:7: y = model(x)",
    ]
    where = Location("model.py", 3)
    warning = GraphWarning(UnsupportedError("no target mars", where=where), begins)
    assert "begins" not in str(warning) and "at model.py:3" in str(warning)
