"""Options: what is accepted, what wins, and what a mistake is told."""

from __future__ import annotations

import re

import pytest

from hemstitch.errors import OptionError
from hemstitch.options import MODES, Options


def parse(options: dict[str, object] | None = None, mode: str | None = None, **env: str) -> Options:
    return Options.parse(options, mode, environment=env)


def test_defaults() -> None:
    assert parse() == parse({}) == Options()
    assert all(parse(mode=mode) == Options() for mode in MODES)


def test_the_call_wins_over_the_environment() -> None:
    assert parse(HEMSTITCH_PLANNER="conservative").planner == "conservative"
    assert parse({"planner": "auto"}, HEMSTITCH_PLANNER="conservative").planner == "auto"


@pytest.mark.parametrize(("text", "value"), [("1", True), ("on", True), ("0", False), ("", False)])
def test_switches_in_the_environment(text: str, value: bool) -> None:
    assert parse(HEMSTITCH_CHECK=text).check is value


def test_other_variables_are_not_ours() -> None:
    assert (
        parse(PATH="/bin", HEMSTITCH_TESTS="all", HEMSTITCH_TEST_BACKEND="x", planner="no")
        == Options()
    )


@pytest.mark.parametrize(
    ("options", "mode", "environment", "message"),
    [
        ({"planer": "auto"}, None, {}, 'no option "planer"\n  hint: did you mean "planner"?'),
        ({"zzz": 1}, None, {}, "hint: the options are target, planner"),
        ({"planner": "convservative"}, None, {}, 'did you mean "conservative"?'),
        (
            {"planner": 3},
            None,
            {},
            "cannot be 3\n  hint: it can be 'auto', 'conservative'",
        ),
        ({"pack": 1}, None, {}, '"pack" cannot be 1\n  hint: it can be True or False'),
        (None, "max-autotun", {}, 'did you mean "max-autotune"?'),
        (None, None, {"HEMSTITCH_STRICT": "maybe"}, 'HEMSTITCH_STRICT is a switch, not "maybe"'),
        (None, None, {"HEMSTITCH_STRICTT": "1"}, 'did you mean "strict"?'),
        ({"memory_budget": 1.5}, None, {}, 'option "memory_budget" cannot be 1.5'),
        ({"rewrites": [len]}, None, {}, 'option "rewrites" takes pairs of functions'),
        ({"rewrites": "len"}, None, {}, 'option "rewrites" takes pairs of functions'),
        ({"rewrites": [(len, isinstance)]}, None, {}, "takes 1 arguments, its replacement"),
        ({"loss_every": -1}, None, {}, 'option "loss_every" cannot be -1'),
        (None, None, {"HEMSTITCH_LOSS_EVERY": "2.5"}, "\"loss_every\" cannot be '2.5'"),
        ({"memory_budget": True}, None, {}, 'option "memory_budget" cannot be True'),
        (None, None, {"HEMSTITCH_MEMORY_BUDGET": "half"}, "\"memory_budget\" cannot be 'half'"),
        (None, None, {"HEMSTITCH_PLANNER": "mars"}, "\"planner\" cannot be 'mars'"),
    ],
)
def test_mistakes(
    options: dict[str, object] | None, mode: str | None, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        Options.parse(options, mode, environment=environment)
