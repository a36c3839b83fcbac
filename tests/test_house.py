"""The rule keeper keeps its own rules and finds what it should."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import house


@pytest.mark.parametrize(
    ("layer", "source", "message"),
    [
        ("ir", "import torch", "imports torch, which only matmul,"),
        (
            "targets/cpu",
            "from llvmlite import binding",
            "imports llvmlite, which only toolchain may",
        ),
        ("latency", "import triton", "imports triton, which only targets/gpu,"),
        ("ir", "from hemstitch.rewrites import engine", "imports hemstitch.rewrites, which is not"),
        (
            "ir",
            "from hemstitch import planning",
            "imports hemstitch.planning, which is not below ir",
        ),
        ("runtime", "from hemstitch.planning import plan", "which runtime may not know"),
        ("driver", "import testing.emulator", "imports testing, which is not installed"),
        ("mars", "", "mars is not a layer"),
    ],
)
def test_a_forbidden_import_is_found(layer: str, source: str, message: str) -> None:
    (found,) = house.imports(ast.parse(source), layer)
    assert message in found


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("toolchain", "import torch, llvmlite"),
        ("rewrites", "from hemstitch.ir import graph\nimport math"),
        ("targets/gpu", "from hemstitch.matmul.lowering import panels"),
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


def test_a_local_says_what_it_is() -> None:
    tree = ast.parse("def f(given):\n    g = lambda each: each\n    found, rest = g(given)\n")
    assert list(house.vague_locals(tree)) == [
        "line 1 has a local given: name the thing",
        "line 2 has a local each: name the thing",
        "line 3 has a local found: name the thing",
    ]
    assert not [*house.vague_locals(ast.parse("found = 1\ndef f(found_in): return found\n"))]


def test_a_class_name_has_one_meaning(tmp_path: Path) -> None:
    for module, name in (("loops", "Loop"), ("nodes", "Loop"), ("index", "Axis")):
        (tmp_path / f"{module}.py").write_text(f"class {name}:\n    pass\n")
    assert list(house.shared_class_names(sorted(tmp_path.glob("*.py")))) == [
        "class Loop is in loops, nodes: one name, one meaning"
    ]


def test_a_module_name_has_one_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "PACKAGE", "")
    paths = [tmp_path / name for name in ("a/loss.py", "b/loss.py", "a/printer.py", "b/printer.py")]
    assert list(house.shared_module_names(paths)) == [
        "module loss is in a, b: one name, one meaning"
    ]


def test_only_the_pipeline_calls_stages(tmp_path: Path) -> None:
    pipeline, other = tmp_path / "pipeline.py", tmp_path / "other.py"
    pipeline.write_text(
        "from a import fold, Form\nT = (Stage('x', Form, Form, lambda g, _: fold(g)),)\n"
    )
    other.write_text("from a import fold\n")
    assert list(house.stages_called_elsewhere(pipeline, [pipeline, other])) == [
        "other.py imports the stage a.fold: pipeline.py runs stages"
    ]
    other.write_text("from b import fold\n")
    assert not [*house.stages_called_elsewhere(pipeline, [pipeline, other])]


def test_a_word_that_the_field_has_another_for_is_found(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text('"""Fine."""\n\nobstacles = ()\n')
    assert list(house.manners(path, ast.parse(path.read_text()))) == [
        "line 3 says obstacles, for which the field has a word"
    ]


def test_a_docstring_describes_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(
        "class Tile:\n"
        '    """A tile. `rows` and `steps`: how many. `lanes`: of it."""\n'
        "    rows: int\n"
        "    lanes: int\n"
        "def choose(tile: Tile, programs: int) -> int:\n"
        '    """`programs`: at least; `lanes`: of the tile. `again`: with it."""\n'
    )
    assert list(house.unknown_names_in_docstrings([path])) == [
        "sample.py: Tile describes steps, which it does not have",
        "sample.py: choose describes again, which it does not have",
    ]
