"""A `@triton.jit` function as plain Python that computes on tensors of the emulator.

Where Python differs from what Triton's compiler makes of the same text, the text is rewritten:
assigned numbers become tensors, `and`, `or` and `not` work on blocks, the variable of a loop is a
tensor. The function's own globals are copied, never changed.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import triton.language as tl

from hemstitch.errors import Location

MOST_SOURCES = 512  # functions whose rewritten text is kept; generated kernels come and go
_ASSIGNED, _NEGATED = "__hemstitch_assigned", "__hemstitch_negated"
_JOINED = {ast.And: "__hemstitch_and", ast.Or: "__hemstitch_or"}


def plain(function: FunctionType, semantic: Any) -> Callable[..., Any]:
    """The rewritten function; `semantic` makes tensors of numbers."""
    helpers = {
        _ASSIGNED: lambda value: _assigned(value, semantic),
        _NEGATED: lambda value: semantic.not_(value) if _is_tensor(value) else not value,
        _JOINED[ast.And]: lambda *values: _joined(values, False, semantic.logical_and),
        _JOINED[ast.Or]: lambda *values: _joined(values, True, semantic.logical_or),
        "range": loop_range(semantic),
    }
    nonlocals = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    made: dict[str, Callable[..., Any]] = {}
    exec(_code(function), {**function.__globals__, **nonlocals, **helpers}, made)
    return made[function.__name__]


def loop_range(semantic: Any) -> Callable[..., Iterator[Any]]:
    """`range` and `tl.range`: the variable is a tensor that wraps like the bounds do."""

    def iterate(first: Any, last: Any = None, step: Any = None, **hints: object) -> Iterator[Any]:
        bounds = [0, first] if last is None else [first, last]
        bounds += [] if step is None else [step]
        wide = any(_is_tensor(bound) and bound.dtype == tl.int64 for bound in bounds)
        for index in range(*(_number(bound) for bound in bounds)):
            number = semantic.to_tensor(index)
            yield semantic.cast(number, tl.int64) if wide else number

    return iterate


def where() -> Location | None:
    """The line of the kernel, or of the device function it calls, that is running."""
    frame = sys._getframe(1)
    inside_triton = f"{tl.__name__}."
    while frame is not None:
        names = frame.f_globals
        if _ASSIGNED in names and not str(names.get("__name__")).startswith(inside_triton):
            file, line = frame.f_code.co_filename, frame.f_lineno
            return Location(file, line, linecache.getline(file, line))
        frame = frame.f_back  # type: ignore[assignment]
    return None


@lru_cache(maxsize=MOST_SOURCES)
def _code(function: FunctionType) -> CodeType:
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef), "@triton.jit stands above a function"
    definition.decorator_list, definition.returns = [], None
    arguments = definition.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    rewritten = ast.fix_missing_locations(_Rewriter().visit(tree))
    ast.increment_lineno(rewritten, first - 1)
    return compile(rewritten, inspect.getsourcefile(function) or "<kernel>", "exec")


class _Rewriter(ast.NodeTransformer):
    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        node.value = ast.copy_location(_call(_ASSIGNED, node.value), node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(_call(_JOINED[type(node.op)], *map(_thunk, node.values)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(_call(_NEGATED, node.operand), node)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=list(arguments), keywords=[])


def _thunk(value: ast.expr) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=nothing, body=value)


def _is_tensor(value: object) -> bool:
    return isinstance(value, tl.tensor)


def _number(value: Any) -> int:
    return int(value.handle.data.item()) if _is_tensor(value) else int(value)


def _assigned(value: Any, semantic: Any) -> Any:
    if type(value) is tuple:
        return tuple(_assigned(each, semantic) for each in value)
    return value if value is None else semantic.to_tensor(value, False)


def _joined(thunks: tuple[Callable[[], Any], ...], decides: bool, join: Callable[..., Any]) -> Any:
    """As the compiler does it: numbers may decide early, tensors are all computed."""
    joined: Any = None
    value: Any = None
    for thunk in thunks:
        value = thunk()
        if _is_tensor(value):
            joined = value if joined is None else join(joined, value)
        elif bool(value) is decides:
            return value
    return value if joined is None else joined
