"""The bar while kernels are tuned."""

from __future__ import annotations

from contextlib import nullcontext
from io import StringIO

import pytest
import torch

from hemstitch.driver import builds as build
from hemstitch.driver.progress import CLEAR, with_bar
from hemstitch.options import Options
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of


class Terminal(StringIO):
    def isatty(self):
        return True


def test_a_bar_that_fills_and_goes():
    stream = Terminal()
    assert list(with_bar("abc", "tuning", stream)) == ["a", "b", "c"]
    *shown, last = stream.getvalue().split(CLEAR)[1:]
    assert [text.split("] ")[1] for text in shown] == ["0/3", "1/3", "2/3"]
    assert [text.count("#") for text in shown] == [0, 10, 20] and last == ""


def test_it_goes_when_a_piece_fails():
    stream = Terminal()
    pieces = with_bar([1, 2], "tuning", stream)
    next(pieces)
    pieces.close()
    assert stream.getvalue().endswith(CLEAR)


def test_nothing_is_written_to_a_file():
    stream = StringIO()
    assert list(with_bar([1, 2], "tuning", stream)) == [1, 2]
    assert stream.getvalue() == ""


@pytest.mark.parametrize("tune", [False, True])
def test_there_is_one_while_kernels_are_tuned(monkeypatch, tune):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(build, "_launches", lambda *_: nullcontext(lambda step: None))
    [(_, plan)] = plans_of(lambda x: torch.softmax(x, -1), [torch.zeros(64, 64)], generic_gpu())
    assert build.build(plan, Options(target="cuda", tune=tune)) == [None]
    assert ("tuning kernels" in stream.getvalue()) is tune
