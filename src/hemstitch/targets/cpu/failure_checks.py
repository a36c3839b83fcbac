"""Checks of a nest: a word for each failure, not zero where a check of it did not hold. A check
takes no branch, which would end a block that the loop's other work is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce

from hemstitch.ir.failure import Failure
from hemstitch.kernel_ir.nodes import Check, Nest, walk
from hemstitch.targets.cpu.emitter import Emitter, Value

Words = Mapping[Failure, Value]


def begin(e: Emitter, nest: Nest) -> Words:
    """At the top of the function."""
    everything = (statement for part in nest.parts for statement in walk(part))
    checks = (statement for statement in everything if isinstance(statement, Check))
    failures = dict.fromkeys(check.failure for check in checks)
    words = {failure: Value(f"%{e.fresh('failed')}", "ptr") for failure in failures}
    for word in words.values():
        e.line(f"{word.text} = alloca i64")
        e.line(f"store i64 0, {word}")
    return words


def check(e: Emitter, word: Value, conditions: Sequence[Value], used: Value | None) -> None:
    """That all `conditions` hold in the lanes in use."""
    good = reduce(partial(e.binary, "and"), conditions)
    bad = e.binary("xor", good, e.constant(True, "i1"))
    bad = bad if used is None else e.binary("and", bad, used)
    lanes = e.define(f"i{e.width}", f"bitcast {bad} to i{e.width}")
    wide = lanes if e.width == 64 else e.define("i64", f"zext {lanes} to i64")
    before = e.define("i64", f"load i64, {word}")
    e.line(f"store {e.binary('or', before, wide)}, {word}")


def end(e: Emitter, words: Words, numbers: dict[Failure, int], status: Value | None) -> None:
    """Tells the failure that is the first in the program, by its number, which it gets here."""
    for failure, word in reversed([*words.items()]):
        number = numbers.setdefault(failure, len(numbers) + 1)
        with e.when(e.compare("ne", e.define("i64", f"load i64, {word}"), e.i64(0))):
            e.line(f"store i64 {number}, {status}")
