"""Checks house rules that a linter cannot: sizes, layers, who may import what, names.

python tools/house.py              prints each broken rule; exit status 1 if there is one
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/hemstitch"
FOLDERS = (PACKAGE, "benchmarks", "testing", "tests", "tools")
# Packages, and modules beside them, from the lowest to the highest: each imports what is below it.
LAYERS = (
    *("errors", "exactness", "gpu_vendors", "options", "workers", "ir", "machine", "rewrites"),
    "kernel_ir",
    *("matmul/lowering", "stitching", "matmul/patterns", "matmul", "planning", "targets/cpu"),
    *("targets/gpu", "latency", "cache", "toolchain", "runtime", "capture", "before_autograd"),
    *("fallback", "joint", "calls", "pipeline", "measure", "driver", "backend", "report"),
)
IMPORTED_BY = {
    "torch": (
        *("matmul", "toolchain", "runtime", "capture", "before_autograd", "fallback", "joint"),
        *("calls", "measure", "driver", "backend", "report"),
    ),
    "llvmlite": ("toolchain",),
    "triton": ("targets/gpu", "toolchain", "runtime", "measure"),
}
# Of the source tree only; an installed package has none of them.
NOT_INSTALLED = FOLDERS[1:]
# What runs knows nothing of what decides.
NOT_IMPORTED_BY = {"runtime": ("planning", "rewrites")}
# A name that says what a module is for its package: a printer of this IR, a nest of that target.
ROLES = (
    *("printer", "verifier", "interpreter", "description"),
    *("kernel", "nest", "memory", "elementwise"),
)
MAX_FILE, MAX_FUNCTION = 500, 60  # lines of code: no blanks, comments, docstrings
MAX_PAGE = {"README.md": 120, "CONTRIBUTING.md": 150}
NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
UNFINISHED = ("TODO", "FIXME", "XXX")
NAMELESS = ("MOST",)  # constants that do not say of what
# Identifiers for which the field has a word: fusion barriers, rematerialised, inlined, row
# interleaving, prepacking, online softmax, recomputed, index-set splitting, scalarise.
HOME_MADE = (
    *("obstacles", "remade", "remaking", "opens_products", "open_products", "abreast"),
    *("packed_once", "walked_once", "make_again", "is_made_again", "cut_rows", "cut_loops"),
    "by_channels",
)
# Local names that do not say of what; in the package only.
VAGUE = ("found", "each", "made", "given")
# In a docstring, names of which a clause says what they are: `steps`: of the matmul.
DESCRIBED = re.compile(r"(?:^|[.;:)]\s+|\n\n)(`\w+`(?:(?:, | and |, and )`\w+`)*):")

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Documented = (ast.Module, ast.ClassDef, *Function)


def code_lines(path: Path, tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    with path.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type not in NOT_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, Documented) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


def sizes(path: Path, tree: ast.Module) -> Iterator[str]:
    lines = code_lines(path, tree)
    if len(lines) > MAX_FILE:
        yield f"{len(lines)} lines of code, at most {MAX_FILE}"
    for node in ast.walk(tree):
        if isinstance(node, Function):
            length = len(lines.intersection(range(node.lineno, (node.end_lineno or 0) + 1)))
            if length > MAX_FUNCTION:
                yield f"{node.name} has {length} lines of code, at most {MAX_FUNCTION}"


def manners(path: Path, tree: ast.Module) -> Iterator[str]:
    if not ast.get_docstring(tree):
        yield "no module docstring"
    with path.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type == tokenize.COMMENT and any(word in token.string for word in UNFINISHED):
                yield f"line {token.start[0]} says that something is unfinished"
            if token.type == tokenize.NAME and token.string in NAMELESS:
                yield f"line {token.start[0]} has a constant {token.string}: name what it limits"
            if token.type == tokenize.NAME and token.string in HOME_MADE:
                yield f"line {token.start[0]} says {token.string}, for which the field has a word"


def vague_locals(tree: ast.Module) -> Iterator[str]:
    functions = (node for node in ast.walk(tree) if isinstance(node, (*Function, ast.Lambda)))
    names = {
        (node.lineno, node.arg if isinstance(node, ast.arg) else node.id)
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    for line, name in sorted(names):
        if name in VAGUE:
            yield f"line {line} has a local {name}: name the thing"


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module == "hemstitch":
        return [f"hemstitch.{alias.name}" for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def layer_of(parts: Sequence[str]) -> str:
    """Of a module, which a package has for its first one or two parts."""
    return next((name for name in ("/".join(parts[:2]), parts[0]) if name in LAYERS), parts[0])


def imports(tree: ast.Module, layer: str) -> Iterator[str]:
    if layer not in {name.split("/")[0] for name in LAYERS} | {*LAYERS}:
        yield f"{layer} is not a layer: add it to LAYERS in tools/house.py"
        return
    for name in (name for node in ast.walk(tree) for name in imported(node)):
        package, _, rest = name.partition(".")
        below = LAYERS[: LAYERS.index(layer) + 1] if layer in LAYERS else ()
        if package == "hemstitch" and layer_of(rest.split(".")) not in below:
            yield f"imports {name}, which is not below {layer}"
        if layer_of(rest.split(".")) in NOT_IMPORTED_BY.get(layer, ()):
            yield f"imports {name}, which {layer} may not know"
        if package in NOT_INSTALLED:
            yield f"imports {package}, which is not installed"
        if layer not in IMPORTED_BY.get(package, (layer,)):
            yield f"imports {package}, which only {', '.join(IMPORTED_BY[package])} may"


def broken(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from manners(path, tree)
    yield from sizes(path, tree)
    if path.is_relative_to(ROOT / PACKAGE) and path != ROOT / PACKAGE / "__init__.py":
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        yield from imports(tree, layer_of(parts))
        yield from vague_locals(tree)


def stages_called_elsewhere(pipeline: Path, paths: Iterable[Path]) -> Iterator[str]:
    """There is one pipeline: nothing but its table calls a stage."""
    tree = ast.parse(pipeline.read_text(encoding="utf-8"))
    rows = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Stage"
    ]
    runs = [row.args[3] for row in rows if len(row.args) > 3]
    named = {node.id for run in runs for node in ast.walk(run) if isinstance(node, ast.Name)}
    stages = {pair for pair in imported_names(tree) if pair[1] in named}
    for path in paths:
        if path != pipeline:
            called = stages.intersection(imported_names(ast.parse(path.read_text("utf-8"))))
            for module, name in sorted(called):
                yield f"{path.name} imports the stage {module}.{name}: pipeline.py runs stages"


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def long_pages() -> Iterator[str]:
    for name, most in MAX_PAGE.items():
        length = len((ROOT / name).read_text(encoding="utf-8").splitlines())
        if length > most:
            yield f"{name}: {length} lines, at most {most}"


def shared_module_names(paths: Iterable[Path]) -> Iterator[str]:
    """A name has one meaning in the whole package, but for those of roles."""
    modules: dict[str, list[str]] = {}
    for path in paths:
        if path.stem != "__init__" and path.stem not in ROLES:
            modules.setdefault(path.stem, []).append(str(path.parent.relative_to(ROOT / PACKAGE)))
    for name, places in modules.items():
        if len(places) > 1:
            yield f"module {name} is in {', '.join(sorted(places))}: one name, one meaning"


def shared_class_names(paths: Iterable[Path]) -> Iterator[str]:
    """Of classes: a name has one meaning in the whole package."""
    modules: dict[str, list[str]] = {}
    for path in paths:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, []).append(path.stem)
    for name, places in modules.items():
        if len(places) > 1:
            yield f"class {name} is in {', '.join(sorted(places))}: one name, one meaning"


def unknown_names_in_docstrings(paths: Iterable[Path]) -> Iterator[str]:
    """What a docstring describes is a field of the class, or a parameter of the function, or an
    attribute of a parameter."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    members: dict[str, set[str]] = {}
    for _, node in nodes:
        if isinstance(node, ast.ClassDef):
            members.setdefault(node.name, set()).update(members_of(node))
    for path, node in nodes:
        if isinstance(node, (ast.ClassDef, *Function)):
            described = DESCRIBED.findall(ast.get_docstring(node) or "")
            known = members_of(node) if isinstance(node, ast.ClassDef) else parameters_of(node)
            for type_ in types_in(node):
                known |= members.get(type_, set())
            for name in re.findall(r"`(\w+)`", " ".join(described)):
                if name not in known:
                    yield f"{path.name}: {node.name} describes {name}, which it does not have"


def members_of(node: ast.ClassDef) -> set[str]:
    """Fields, attributes that methods set, methods, and parameters of the constructor."""
    names = {
        child.attr
        for child in ast.walk(node)
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
    }
    for child in node.body:
        if isinstance(child, ast.AnnAssign | ast.Assign):
            targets = [child.target] if isinstance(child, ast.AnnAssign) else child.targets
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(child, Function):
            names.add(child.name)
            names |= parameters_of(child) if child.name == "__init__" else set()
    return names


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}


def types_in(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Bases of a class; types of a function's parameters."""
    types = node.bases if isinstance(node, ast.ClassDef) else annotations_of(node)
    for type_ in types:
        yield from re.findall(r"\w+", ast.unparse(type_))


def annotations_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg) and argument.annotation is not None:
            yield argument.annotation


def main() -> int:
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}: {rule}"
        for path in paths
        if path.stat().st_size
        for rule in broken(path)
    ]
    package = sorted((ROOT / PACKAGE).rglob("*.py"))
    found += [*shared_class_names(package), *shared_module_names(package)]
    found += unknown_names_in_docstrings(package)
    found += stages_called_elsewhere(ROOT / PACKAGE / "pipeline.py", package)
    found += long_pages()
    print("\n".join(found) or f"{len(paths)} files keep the house rules")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
