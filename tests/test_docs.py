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

import hemstitch
from hemstitch.options import NAMES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hemstitch"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
STAGES = (
    *("graph-ir", "passes", "fusion", "stitching", "kernel-ir", "codegen", "latency"),
    *("runtime", "frontend"),
)
HEADINGS = (
    "## How it works",
    "## What it refuses, and why",
    "## To extend it",
    "## What holds afterwards",
)
FACTS = ("**takes**", "**gives**", "**lives in**", "**before**", "**after**")
NOTES = sorted(
    {*(ROOT / "docs" / "design").glob("*.md")} - {ROOT / "docs" / "design" / "README.md"}
)
PARTS = ("Decision", "Why", "Measured", "Rejected")  # of a decision, the first two always


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
    text = (ROOT / "docs" / f"{stage}.md").read_text()
    head = text.partition("\n## ")[0].lower()
    assert [fact for fact in FACTS if fact not in head] == []
    assert re.findall(r"(?m)^## .*$", text) == list(HEADINGS)


def test_every_package_has_a_page_and_says_what_it_does() -> None:
    homes = "\n".join((ROOT / "docs" / f"{stage}.md").read_text() for stage in STAGES)
    for init in PACKAGE.rglob("*/__init__.py"):
        place = init.parent.relative_to(ROOT)
        assert f"`{place}/`" in homes, f"no page says that it lives in {place}/"
        words = init.read_text().split('"""')[1].lower().split()
        assert {"takes", "gives"} <= set(words), f"{place} does not say what it takes and gives"


def test_every_option_is_explained() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in NAMES if f"`{name}`" not in text] == []


def test_the_index_has_every_design_note() -> None:
    index = (ROOT / "docs" / "design" / "README.md").read_text()
    rows = [re.findall(r"^\| \[(.*)\]\((.*)\) \| ", line) for line in index.splitlines()]
    titles = {page.name: page.read_text().partition("\n")[0] for page in NOTES}
    assert {name: f"# {title}" for row in rows for title, name in row} == titles


@pytest.mark.parametrize("note", NOTES, ids=identity)
def test_a_design_note_says_what_why_and_what_was_rejected(note: Path) -> None:
    head, *sections = re.split(r"(?m)^## ", note.read_text())
    assert "**" not in head, "a summary comes first"
    found = [re.findall(r"(?m)^\*\*(\w+)\.\*\* ?", section) for section in sections]
    assert all(parts[:2] == [*PARTS[:2]] for parts in found)
    assert all(parts == [part for part in PARTS if part in parts] for parts in found)
    assert {*PARTS} == {part for parts in found for part in parts}


@pytest.mark.parametrize("note", NOTES, ids=identity)
def test_what_a_design_note_names_is_there(note: Path) -> None:
    """Paths, and dotted names of the package."""
    named = re.findall(r"`([\w/.-]+)`", note.read_text())
    for name in named:
        if "/" in name or name.endswith(".py"):
            assert (ROOT / name).exists() or (PACKAGE / name).exists(), name
        elif name.startswith("hemstitch.") and name.split(".")[1] not in hemstitch.__all__:
            place = ROOT / "src" / name.replace(".", "/")
            assert place.exists() or place.with_suffix(".py").exists(), name


def test_what_the_glossary_names_is_there() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    named = [re.findall(r"`([\w/]+(?:\.py)?)`", row[3]) for row in rows if row[1] != " term "]
    assert all(named), "each term says where it is"
    assert [place for each in named for place in each if not (PACKAGE / place).exists()] == []
