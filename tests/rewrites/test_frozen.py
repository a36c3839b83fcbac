"""What frozen weights alone decide is cut off a graph, and nothing else is."""

from __future__ import annotations

import torch

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph
from hemstitch.ir.parser import parse
from hemstitch.ir.printer import show
from hemstitch.ir.verifier import verify
from hemstitch.rewrites.weight_folding import frozen_leaves, split_weight_work
from hemstitch.runtime.interpreter import run

FREE = 5  # no graph here has more arguments


def cut(text: str) -> tuple[Graph | None, Graph]:
    builder = Builder()
    graph = parse(text, builder)
    verify(graph)
    once, rest = split_weight_work(graph, builder, FREE)
    if once is None:
        assert rest is graph
        return None, rest
    verify(once)
    verify(rest)
    return once, rest


NORM = """
%0 = input f32[4, 8] "x" position 0 strides (8, 1)
%1 = input f32[8] "weight" position 1 strides (1) frozen
%2 = input f32[8] "variance" position 2 strides (1) frozen
%3 = rsqrt f32[8] %2
%4 = mul f32[8] %1, %3
%5 = reshape f32[1, 8] %4
%6 = broadcast f32[4, 8] %5
%7 = mul f32[4, 8] %0, %6
output %7 strides (8, 1)
"""


def test_what_was_computed_crosses_and_views_of_it_do_not() -> None:
    once, rest = cut(NORM)
    assert once is not None
    assert show(once).splitlines() == [
        '%0 = input f32[8] "weight" position 1 strides (1) frozen',
        '%1 = input f32[8] "variance" position 2 strides (1) frozen',
        "%2 = rsqrt f32[8] %1",
        "%3 = mul f32[8] %0, %2",
        "output %3 strides (1) may share",
    ]
    assert show(rest).splitlines()[3:] == [
        '%3 = input f32[8] "once0" position 5 strides (1) frozen',
        "%4 = reshape f32[1, 8] %3",
        "%5 = broadcast f32[4, 8] %4",
        "%6 = mul f32[4, 8] %0, %5",
        "output %6 strides (8, 1)",
    ]


def test_both_together_compute_the_same() -> None:
    once, rest = cut(NORM)
    assert once is not None
    given = [torch.randn(4, 8), torch.randn(8), torch.rand(8) + 0.5]
    (kept,) = run(once, given)
    (found,) = run(rest, [*given, None, None, kept])
    torch.testing.assert_close(found, given[0] * (given[1] * given[2].rsqrt()))


def test_nothing_is_cut_off_without_frozen_weights() -> None:
    assert cut(NORM.replace(" frozen", ""))[0] is None
    assert cut(NORM.replace("2 strides (1) frozen", "2 strides (1)"))[0] is None


def test_views_of_weights_stay_with_their_readers() -> None:
    once, _ = cut("""
%0 = input f32[4, 8] "x" position 0 strides (8, 1)
%1 = input f32[8, 4] "weight" position 1 strides (4, 1) frozen
%2 = permute f32[4, 8] %1 (1, 0)
%3 = add f32[4, 8] %0, %2
output %3 strides (8, 1)
""")
    assert once is None


def test_what_is_larger_than_its_weights_stays_but_not_what_it_is_made_of() -> None:
    text = """
%0 = input f32[4, 8] "x" position 0 strides (8, 1)
%1 = input i64[4, 8] "weight" position 1 strides (8, 1) frozen
%2 = input i64[4, 8] "zero" position 2 strides (8, 1) frozen
%3 = sub i64[4, 8] %1, %2
%4 = cast f32[4, 8] %3
%5 = mul f32[4, 8] %0, %4
output %5 strides (8, 1)
"""
    once, _ = cut(text)
    assert once is not None and once.outputs[0].value.op.value == "cast"
    once, _ = cut(text.replace("i64", "u8"))
    assert once is not None and once.outputs[0].value.op.value == "sub"


def test_a_result_is_computed_in_each_call() -> None:
    """The caller may write to it."""
    once, _ = cut("""
%0 = input f32[8] "weight" position 0 strides (1) frozen
%1 = exp f32[8] %0
output %1 strides (1)
""")
    assert once is None


def test_what_sizes_of_a_call_decide_is_not_frozen() -> None:
    builder = Builder()
    graph = parse(
        """
symbol n = argument 0 axis 0 hint 4
%0 = input f32[n] "x" position 0 strides (1)
%1 = input f32[] "weight" position 1 strides () frozen
%2 = size i64[] n
%3 = cast f32[] %2
%4 = mul f32[] %1, %3
%5 = reshape f32[1] %4
%6 = broadcast f32[n] %5
%7 = add f32[n] %0, %6
output %7 strides (1)
""",
        builder,
    )
    leaves = frozen_leaves(graph)
    assert [node.op.value for node, found in leaves.items() if found] == ["input"]
    assert split_weight_work(graph, builder, FREE) == (None, graph)


LIBRARY = """
%0 = input i64[] "x" position 0 strides ()
%1 = input i64[] "weight" position 1 strides () frozen
%2 = library opaque[] %1 "f" arguments ($0) keywords () operands (()) results (i64[] strides ()){}
%3 = result i64[] %2 0
%4 = add i64[] %0, %3
output %4 strides ()
"""


def test_library_calls_cross_unless_they_have_effects() -> None:
    once, rest = cut(LIBRARY.format(""))
    assert once is not None and '"f"' in show(once) and '"f"' not in show(rest)
    once, _ = cut(LIBRARY.format(" effects") + "effect %2\n")
    assert once is None
