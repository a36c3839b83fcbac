"""The documents are true: their examples give what they say, links lead somewhere, every package
and option is named. `pytest --accept` rewrites the outputs of the examples."""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

import hemstitch
from hemstitch import KernelInfo, Report, explain
from hemstitch.options import CHOICES, COUNTS, NAMES, SHARES, Options
from hemstitch.runtime.versions import NEWEST
from hemstitch.stitching.refusal import OPAQUE

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hemstitch"
USER = ROOT / "docs" / "user"
NAMED_IN = ("src", "benchmarks", "tools", "requirements")  # may name documents
PAGES = sorted((ROOT / "docs").rglob("*.md"))
COMPILER = ROOT / "docs" / "compiler"
STAGES = (
    *("capture", "joint-graph", "graph-ir", "rewrites", "planning", "stitching", "kernel-ir"),
    *("kernel-passes", "matmul", "target-cpu", "target-gpu", "driver-and-runtime"),
)
FACTS = ("**Takes**", "**Gives**", "**Lives in**", "**Before** it", "**After** it")
HEADINGS = ("## How it works", "## What it refuses", "## To extend it", "## Invariants")
WRITTEN_LATER = {"docs/compiler/coverage.md"}  # by `benchmarks.coverage`
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
    files = (path for folder in NAMED_IN for path in (ROOT / folder).rglob("*"))
    texts = (path.read_text() for path in files if path.suffix in (".py", ".txt"))
    named = {found for text in texts for found in _documents_named(text)} - WRITTEN_LATER
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


def table(page: Path, heading: str) -> list[list[str]]:
    """Cells of the rows of the first table below a heading."""
    below = f"\n{page.read_text()}".partition(f"\n{heading}\n")[2]
    lines = below[below.index("\n|") + 1 :].splitlines()
    end = next((n for n, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:end]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_guide_has_every_option_with_its_type_and_default() -> None:
    rows = table(USER / "options.md", "# Options")
    assert [quoted(row[0]) for row in rows] == [[name] for name in NAMES]
    for row in rows:
        [name], default = quoted(row[0]), getattr(Options(), quoted(row[0])[0])
        assert quoted(row[2]) == [str(default)], name
        if name in CHOICES:
            assert tuple(quoted(row[1])) == CHOICES[name]
        else:
            kind = {
                **dict.fromkeys(SHARES, "float, 0 to 1"),
                **dict.fromkeys(COUNTS, "int, from 0"),
            }
            assert row[1] == {**kind, "rewrites": "pairs of functions"}.get(name, "bool"), name


def test_the_guide_has_all_planners() -> None:
    rows = table(USER / "options.md", "## Planners")
    assert {quoted(row[0])[0] for row in rows} == {*CHOICES["planner"]}


@pytest.mark.parametrize("kind", [Report, KernelInfo])
def test_the_guide_has_all_attributes_of_a_report(kind: type) -> None:
    rows = table(USER / "report.md", f"## {kind.__name__}")
    named = [name for row in rows for name in quoted(row[0])]
    members = {*dir(kind), *kind.__dataclass_fields__}  # type: ignore[attr-defined]
    assert sorted(named) == sorted(name for name in members if not name.startswith("_"))


def test_the_guide_has_all_arguments_of_explain() -> None:
    rows = table(USER / "report.md", "## Arguments")
    named = [name.strip("*") for row in rows for name in quoted(row[0])]
    assert sorted(named) == sorted(explain.__annotations__.keys() - {"return"})


def test_the_guide_has_every_check_that_refuses() -> None:
    rows = table(USER / "report.md", "## Why parts stay apart")
    named = {name for row in rows for name in quoted(row[0])}
    assert named == {OPAQUE, *_literals({"Refusal", "Refused"})}


def test_the_guide_has_every_folder_of_the_cache() -> None:
    rows = table(USER / "troubleshooting.md", "## Caches")
    assert {quoted(row[0])[0] for row in rows} == {*_literals({"folder"})}


def _literals(functions: set[str]) -> Iterator[str]:
    """First arguments of calls of these functions, where they are texts."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in functions:
                match node.args:
                    case [ast.Constant(value=str() as text), *_]:
                        yield text


def test_the_guide_has_the_versions_of_the_requirements() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    [python] = re.findall(r'requires-python = "(.+)"', project)
    [needed] = re.findall(r"(?m)^dependencies = \[(.+)\]$", project)
    bounds = dict(re.findall(r'"(\w+)(>=[\d.]+)"', needed)) | {"Python": python}
    rows = {row[0]: row[1:] for row in table(USER / "install.md", "## What it needs")}
    assert {name: rows[name][0] for name in bounds} == bounds
    assert rows["torch"][1].endswith(".".join(map(str, NEWEST)))
    readme = (ROOT / "README.md").read_text()
    assert f"PyTorch {bounds['torch'].strip('>=')} to {'.'.join(map(str, NEWEST))}" in readme


def test_the_index_has_every_page_of_the_guide() -> None:
    named = re.findall(r"\]\(([\w-]+\.md)\)", (USER / "README.md").read_text())
    assert sorted(named) == sorted({page.name for page in USER.glob("*.md")} - {"README.md"})


def test_anchors_of_links_to_the_guide_exist() -> None:
    pages = {page: page.read_text() for page in [*PAGES, ROOT / "README.md"]}
    for page, text in pages.items():
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", text):
            found = (page.parent / target).resolve() if target else page
            if found.parent == USER:
                assert anchor in _anchors(pages[found]), f"{page}: {target}#{anchor}"


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_performance_notes_name_modules_that_exist() -> None:
    text = (ROOT / "docs" / "compiler" / "performance-notes.md").read_text()
    named = re.findall(r"`([\w/]+\.py)`", text)
    assert named and [name for name in named if not _is_module(name)] == []


def _is_module(name: str) -> bool:
    return (PACKAGE / name).exists() or (ROOT / name).exists()


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
