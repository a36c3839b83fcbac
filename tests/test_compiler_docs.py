"""What the pages of docs/compiler name is there: files, functions, constants with their values; and
their tables list what the code has, in its order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from hemstitch import pipeline
from hemstitch.exactness import Exactness
from hemstitch.ir.graph import CALLED
from hemstitch.kernel_ir import nodes
from hemstitch.matmul.patterns.registry import PATTERNS
from hemstitch.stitching.schedule import Scheme
from tools.house import IMPORTED_BY, LAYERS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hemstitch"
COMPILER = ROOT / "docs" / "compiler"
PAGES = sorted(COMPILER.rglob("*.md"))
CODE = ("src", "testing", "tests", "tools", "benchmarks")
FOLDERS = (*CODE, "docs", "requirements")
# What is not ours: libraries, and the first part of their dotted names.
LIBRARIES = ("torch", "aten", "tl", "llvm", "e")
OTHERS = {
    *("wait_tensor", "as_strided", "scatter_", "masked_fill_", "cumsum_", "default_partition"),
    *("make_fx", "torch_geometric", "aot_eager", "soft_clip", "VDPBF16PS", "TORCH_LOGS"),
    *("HEMSTITCH_CHECK", "HEMSTITCH_CACHE", "HEMSTITCH_TESTS", "HEMSTITCH_TARGET", "ASINH"),
    *("sm_80", "sm_90"),
}
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
INSTANCES = {"CPU": "CPUNumbers", "GPU": "GPUNumbers"}


def prose(page: Path) -> str:
    """Without examples and figures."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def spans(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below this heading."""
    text = (COMPILER / page).read_text()
    _, found, below = f"\n{text}".partition(f"\n{heading}\n")
    assert found, f"{page} has no heading {heading}"
    table = re.search(r"(?m)(?:^\|.*\n)+", below)
    assert table, f"{page}: no table below {heading}"
    lines = table.group().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@cache
def trees(folder: str) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in (ROOT / folder).rglob("*.py")}


@cache
def files() -> frozenset[str]:
    """Paths from the root and from every folder on the way, folders with a slash."""
    found = {f"{folder}/" for folder in FOLDERS}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            parts = path.relative_to(ROOT).parts
            end = "/" if path.is_dir() else ""
            found |= {"/".join(parts[start:]) + end for start in range(len(parts))}
    return frozenset({*found, *(path.name for path in ROOT.iterdir())})


@cache
def members() -> dict[str, frozenset[str]]:
    """Of each class: methods, fields, members of an enum."""
    found: dict[str, frozenset[str]] = {}
    for tree in trees("src").values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name] = found.get(node.name, frozenset()) | set(_names(node))
    return found


@cache
def defined() -> frozenset[str]:
    """Whatever has a name in the code: functions, classes, arguments, variables, attributes."""
    return frozenset(n for f in CODE for tree in trees(f).values() for n in _names(tree))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def problem(span: str) -> str | None:
    """What is wrong with a name, if it claims to be one of ours."""
    if re.fullmatch(r"[\w./-]+/[\w./-]*|[\w./-]+\.(?:py|md|csv|txt|toml|jinja|c)", span):
        return None if {span, f"{span}/"} & files() else "there is no such file"
    name = span.removesuffix("()")
    if re.fullmatch(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", name):
        return _problem_of_dotted(name.split("."))
    is_ours = re.fullmatch(r"[A-Za-z]\w*_\w*|_\w+|[A-Z]\w*[a-z]\w*|[A-Z][A-Z0-9]+", name)
    is_module = not {f"{name}/", f"{name}.py"}.isdisjoint(files())
    if is_ours is None or name in OTHERS | defined() or is_module:
        return None
    return "nothing has this name"


def _problem_of_dotted(parts: Sequence[str]) -> str | None:
    first, *rest = parts
    if first in LIBRARIES:
        return None
    if first in ("hemstitch", *CODE[1:]):
        is_there = _is_module(parts) or (_is_module(parts[:-1]) and rest[-1] in defined())
        return None if is_there else "there is no such module"
    owner = INSTANCES.get(first, first)
    if owner not in members() and owner not in defined():
        return f"nothing is called {owner}"
    names = members().get(owner, defined())
    return None if rest[-1] in names else f"{owner} has no {rest[-1]}"


def _is_module(parts: Sequence[str]) -> bool:
    place = "/".join(parts)
    return not {f"{place}.py", f"{place}/"}.isdisjoint(files())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(COMPILER)))
def test_what_a_page_names_is_there(page: Path) -> None:
    problems = {span: problem(span) for span in spans(page)}
    assert {span: why for span, why in problems.items() if why} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(COMPILER)))
def test_what_a_page_places_in_a_module_is_there(page: Path) -> None:
    text = " ".join(prose(page).split())
    places = re.findall(r"`([A-Za-z_][\w.]*)` in `([\w/]+\.py)`", text)
    assert [(name, module) for name, module in places if not _is_in(name, module)] == []


def _is_in(name: str, module: str) -> bool:
    in_module = {
        known
        for folder in CODE
        for path, tree in trees(folder).items()
        if f"/{path}".endswith(f"/{module}")
        for known in _names(tree)
    }
    return name.split(".")[-1] in in_module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(COMPILER)))
def test_constants_have_the_values_that_a_page_says(page: Path) -> None:
    said = re.findall(r"`([A-Z][A-Z_0-9]+)` = ([\d.,]*\d)(?: ([KMG]iB))?", prose(page))
    for name, number, unit in said:
        value = float(number.replace(",", "")) * UNITS[unit]
        values = list(_values_of(name))
        assert value in values, f"{name} is {values}"


def _values_of(name: str) -> Iterator[object]:
    """Of constants at the top of a module that are arithmetic of numbers."""
    for tree in trees("src").values():
        for node in tree.body:
            match node:
                case ast.Assign([ast.Name(id=target)], value) if target == name:
                    with suppress(NameError):
                        yield eval(compile(ast.Expression(value), name, "eval"), {})


# --- tables


def test_all_pages_are_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (COMPILER / "README.md").read_text()))
    assert {str(page.relative_to(COMPILER)) for page in PAGES} - {"README.md"} <= linked


def test_the_map_has_every_package_and_what_it_imports() -> None:
    table = rows("README.md", "## The packages")
    assert [code(package)[0] for package, *_ in table] == list(LAYERS)
    for package, _, _, imports in table:
        allowed = {library for library, by in IMPORTED_BY.items() if code(package)[0] in by}
        assert set(re.findall(r"\w+", imports)) == allowed, package


def test_the_pipeline_has_every_stage() -> None:
    def names(heading: str, mark: int | None = None) -> list[str]:
        table = rows("pipeline.md", heading)
        return [row[0] for row in table if mark is None or row[mark] == "x"]

    def of(stages: Iterable[pipeline.Stage]) -> list[str]:
        return [stage.name for stage in stages]

    targets = "## Stages of each target"
    assert names("## Stages on torch.fx, before autograd") == of(pipeline.BEFORE_AUTOGRAD)
    assert names("## Stages on torch.fx, after autograd") == of(pipeline.AFTER_AUTOGRAD)
    assert names("## Stages on the joint graph") == of(pipeline.JOINT_REWRITES)
    assert names(targets, 2) == of(pipeline.CPU)
    assert names(targets, 3) == of(pipeline.GPU)
    forms = [code(form)[0] for form, *_ in rows("pipeline.md", "## The forms")]
    assert forms == [form.name for form in pipeline.Form]


def test_the_pipeline_has_the_exactness_of_every_stage() -> None:
    tables = (
        *(pipeline.BEFORE_AUTOGRAD, pipeline.AFTER_AUTOGRAD, pipeline.JOINT_REWRITES),
        *(pipeline.CPU, pipeline.GPU),
    )
    labels = {stage.name: stage.exactness for table in tables for stage in table}
    table = {stage: code(label)[0] for stage, label in rows("pipeline.md", "## Exactness")}
    assert table == {
        name: label.name for name, label in labels.items() if label is not Exactness.EXACT
    }


def test_planning_has_every_check() -> None:
    raised = set[str]()
    for tree in trees("src").values():
        for node in ast.walk(tree):
            match node:
                case ast.Call(ast.Name(id="Refusal" | "Refused"), [ast.Constant(check), *_]):
                    raised.add(check)
    table = rows("planning.md", "## What it refuses")
    assert {check for first, *_ in table for check in code(first)} == {*raised, "opaque"}


def test_stitching_has_every_scheme() -> None:
    table = rows("stitching.md", "### The four schemes")
    assert [name for first, *_ in table for name in code(first)] == [s.name for s in Scheme]


def test_the_kernel_ir_has_every_statement() -> None:
    text = (COMPILER / "kernel-ir.md").read_text()
    table = re.findall(r"(?m)^\| (`[A-Z]\w+`(?:, `\w+`)*) \|", text)
    named = [name for cell in table for name in code(cell)]
    assert sorted(named) == sorted(each.__name__ for each in get_args(nodes.Stmt))


def test_passes_and_patterns_are_all_there() -> None:
    passes = [name for row in rows("kernel-passes.md", "## How it works") for name in code(row[1])]
    assert sorted(passes) == _modules(PACKAGE / "kernel_ir" / "passes")
    patterns = {name for row in rows("matmul.md", "### Patterns") for name in code(row[1])}
    shared = {"registry.py", "inlined.py", "image_tiles.py"}
    assert sorted(patterns | shared) == _modules(PACKAGE / "matmul" / "patterns")


def test_patterns_have_their_exactness() -> None:
    labels = [code(row[2]) for row in rows("matmul.md", "### Patterns")]
    assert [label for [label] in filter(None, labels)] == [row.exactness.name for row in PATTERNS]


def test_the_graph_ir_has_every_structured_call() -> None:
    table = rows("graph-ir.md", "#### Structured calls")
    described = [(code(node)[0], code(record)[0]) for node, record, *_ in table]
    assert described == [(op.name, record.__name__) for record, op in CALLED.items()]


def _modules(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.py") if path.stem != "__init__")
