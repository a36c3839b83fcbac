"""The rule keeper keeps its own rules and finds what it should."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import house


@pytest.mark.parametrize(
    ("layer", "source", "message"),
    [
        ("ir", "import torch", "imports torch, which only runtime,"),
        ("codegen", "from llvmlite import binding", "imports llvmlite, which only runtime may"),
        ("latency", "import triton", "imports triton, which only runtime may"),
        ("ir", "from hemstitch.passes import engine", "imports hemstitch.passes, which is not"),
        ("ir", "from hemstitch import fusion", "imports hemstitch.fusion, which is not below ir"),
        ("mars", "", "mars is not a layer"),
    ],
)
def test_a_forbidden_import_is_found(layer: str, source: str, message: str) -> None:
    (found,) = house.imports(ast.parse(source), layer)
    assert message in found


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("runtime", "import torch, llvmlite"),
        ("passes", "from hemstitch.ir import graph\nimport math"),
    ],
)
def test_an_allowed_import_is_not(layer: str, source: str) -> None:
    assert list(house.imports(ast.parse(source), layer)) == []


def test_only_code_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    body = "\n".join(f"    x = {i}  # a comment\n\n    # only a comment" for i in range(61))
    path.write_text(f'"""Two\nlines."""\n\ndef long() -> None:\n    """One."""\n{body}\n')
    tree = ast.parse(path.read_text())
    assert len(house.code_lines(path, tree)) == 62
    assert list(house.sizes(path, tree)) == ["long has 62 lines of code, at most 60"]


def test_unfinished_work_is_found(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text('"""Fine."""\n\nx = 1  # TODO: more\n')
    assert list(house.manners(path, ast.parse(path.read_text()))) == [
        "line 3 says that something is unfinished"
    ]


def test_a_constant_says_what_it_limits(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text('"""Fine."""\n\nMOST = 4  # MOST of them\n')
    assert list(house.manners(path, ast.parse(path.read_text()))) == [
        "line 3 has a constant MOST: name what it limits"
    ]


def test_a_class_name_has_one_meaning(tmp_path: Path) -> None:
    for module, name in (("loops", "Loop"), ("nodes", "Loop"), ("index", "Axis")):
        (tmp_path / f"{module}.py").write_text(f"class {name}:\n    pass\n")
    assert list(house.shared_names(sorted(tmp_path.glob("*.py")))) == [
        "class Loop is in loops, nodes: one name, one meaning"
    ]
