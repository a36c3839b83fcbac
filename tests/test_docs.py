"""The documents are true: their examples give what they say, links lead somewhere, every package
and option is named. `pytest --accept` rewrites the outputs of the examples."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

from hemstitch.options import NAMES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hemstitch"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
COMPILER = ROOT / "docs" / "compiler"
STAGES = (
    *("capture", "joint-graph", "graph-ir", "rewrites", "planning", "stitching", "kernel-ir"),
    *("kernel-passes", "matmul", "target-cpu", "target-gpu", "driver-and-runtime"),
)
FACTS = ("**Takes**", "**Gives**", "**Lives in**", "**Before** it", "**After** it")
HEADINGS = ("## How it works", "## What it refuses", "## To extend it", "## Invariants")
MOST_LINES_OF_A_DECISION = 40


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def with_outputs(page: str, name: str) -> str:
    """`page`, its examples followed by what they print now. Outputs that match stay as they are,
    and so do examples that raise."""
    names: dict[str, object] = {"__name__": "__main__"}
    written: list[str] = []
    for part in doctest.DocTestParser().parse(page, name):
        if isinstance(part, str):
            written.append(part)
            continue
        prompts = [">>> ", *["... "] * part.source.count("\n")]
        lines = [prompt + line for prompt, line in zip(prompts, part.source.splitlines())]
        lines += (part.want if part.exc_msg else output_of(part, name, names)).splitlines()
        written += [f"{' ' * part.indent}{line.rstrip()}\n" for line in lines]
    return "".join(written)


def output_of(example: doctest.Example, page: str, names: dict[str, object]) -> str:
    """What is to stand below an example, which is run."""
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(example.source, page, "single"), names)
    text = printed.getvalue()
    flags = sum(flag for flag, is_on in example.options.items() if is_on)
    if doctest.OutputChecker().check_output(example.want, text, flags):
        return example.want
    return re.sub(r"(?m)^$", "<BLANKLINE>", text.rstrip("\n")) if text else ""


def identity(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs").with_suffix(""))


@pytest.mark.parametrize("page", PAGES, ids=identity)
def test_examples(page: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--accept"):
        page.write_text(with_outputs(page.read_text(), page.name))
    names = {"__name__": "__main__"}
    test = doctest.DocTestParser().get_doctest(page.read_text(), names, page.name, str(page), 0)
    failed, _ = doctest.DocTestRunner().run(test, clear_globs=False)  # Dynamo holds on to them
    assert not failed, "see above; if the new text is right: pytest tests/test_docs.py --accept"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=str)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_code_names_only_documents_that_exist() -> None:
    named = {
        found for path in PACKAGE.rglob("*.py") for found in _documents_named(path.read_text())
    }
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def _documents_named(text: str) -> list[str]:
    return re.findall(r"docs/[\w/-]+\.md", text)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_a_page_of_the_same_form(stage: str) -> None:
    text = (COMPILER / f"{stage}.md").read_text()
    head = " ".join(text.partition("\n## ")[0].split())
    head = head.replace("**Before** them", "**Before** it").replace(
        "**After** them", "**After** it"
    )
    assert [fact for fact in FACTS if fact not in head] == []
    assert re.findall(r"(?m)^## .*$", text) == list(HEADINGS)
    assert "```mermaid" in text or "```text" in text, "a page of a stage has a figure"


def test_every_package_has_a_page_and_says_what_it_does() -> None:
    homes = "\n".join(page.read_text() for page in COMPILER.glob("*.md"))
    for init in PACKAGE.rglob("*/__init__.py"):
        place = init.parent.relative_to(ROOT)
        assert f"`{place}/`" in homes, f"no page says that it lives in {place}/"
        words = init.read_text().split('"""')[1].lower().split()
        assert {"takes", "gives"} <= set(words), f"{place} does not say what it takes and gives"


def test_every_option_is_explained() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in NAMES if f"`{name}`" not in text] == []


def test_every_decision_is_short_and_numbered() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in decisions] == list(range(1, len(decisions) + 1))
    for page in decisions:
        lines = page.read_text().splitlines()
        assert len(lines) <= MOST_LINES_OF_A_DECISION, page.name
        assert re.match(rf"# 0*{int(page.name[:4])}[:.] ", lines[0]), page.name


def test_what_the_glossary_names_is_there() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    named = [re.findall(r"`([\w/]+(?:\.py)?)`", row[3]) for row in rows if row[1] != " term "]
    assert all(named), "each term says where it is"
    assert [place for each in named for place in each if not (PACKAGE / place).exists()] == []
