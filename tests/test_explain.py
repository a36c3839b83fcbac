"""The report as a page: what it shows, that it stands alone, and what it says without Jinja."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from html.parser import HTMLParser

import pytest
import torch
from torch._subclasses import FakeTensorMode

from hemstitch.driver import cpu_kernels as native
from hemstitch.errors import KernelBuildError, KernelBuildWarning, UnsupportedError
from hemstitch.report.explain import explain


class Page(HTMLParser):
    """The words of a page by the element they are in, and all elements and attributes."""

    def __init__(self, text):
        super().__init__()
        self.words, self.elements, self.attributes, self.inside = {}, [], [], []
        self.feed(text)
        assert not self.inside

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag != "meta":
            self.inside.append(tag)

    def handle_endtag(self, tag):
        assert self.inside.pop() == tag

    def handle_data(self, data):
        if self.inside and data.strip():
            self.words.setdefault(self.inside[-1], []).append(data.strip())


def function(x, weight):
    return torch.softmax(x, -1).cumsum(0) @ weight, x.sum(0)


@pytest.fixture
def report():
    return explain(function, torch.randn(40, 30), torch.randn(30, 30))


def test_every_kernel_call_and_refusal_is_on_the_page(report, tmp_path):
    report.refusals.append("a | b -> made up: 1 < 2 & 3")
    report.to_html(tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.words["h3"] == [kernel.name for kernel in report.kernels]
    sources = [text.strip() for kernel in report.kernels for text in (kernel.ir, kernel.source)]
    assert page.words["pre"] == [*sources, report.options]
    assert set(report.library_calls) <= set(page.words["code"])
    assert page.words["li"][-1] == report.refusals[-1]
    described = page.words["dd"]
    for kernel in report.kernels:
        assert " ".join(kernel.ops) in described
        assert not kernel.schemes or ", ".join(kernel.schemes) in described
    buffers = [name for kernel in report.kernels for name in {**kernel.reads, **kernel.writes}]
    assert [word for word in page.words["td"] if word in buffers] == buffers


def test_the_page_needs_nothing_else(report, tmp_path):
    report.to_html(str(tmp_path / "page.html"))
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert not {"script", "link", "img", "iframe"} & {*page.elements}
    assert not {"src", "href"} & {*page.attributes}


def test_without_jinja_it_says_what_to_install(report, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"hemstitch\[html\]"):
        report.to_html(tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("where", "function"), [("driver.cpu_kernels", "program_of"), ("report.explain", "stages_of")]
)
def test_a_kernel_that_cannot_be_printed_is_a_library_form(monkeypatch, where, function):
    """Where it is built, and where there is only a plan."""

    def refuse(*_):
        raise KernelBuildError("no room")

    monkeypatch.setattr(importlib.import_module(f"hemstitch.{where}"), function, refuse)
    native.LOADED.clear()
    is_built = where != "report.explain"
    with nullcontext() if is_built else FakeTensorMode():
        x = torch.randn(8)
    with pytest.warns(KernelBuildWarning) if is_built else nullcontext():
        report = explain(lambda x: x.exp() + 1, x, options={"strict": False, "cache": False})
    assert report.kernels == [] and report.library_calls == ["exp", "add"]
    (refusal,) = report.refusals
    assert refusal.startswith("not a kernel: H006: no room")
