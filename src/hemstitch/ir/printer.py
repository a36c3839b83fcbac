"""Graph -> text. Nothing that matters for the meaning is left out; `parser` reads it back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields

from hemstitch.ir.calls import (
    Call,
    Convolution,
    LibraryCall,
    Operand,
    Operation,
    StructuredCall,
    Within,
)
from hemstitch.ir.dims import SymbolicDim
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import Attr, Graph, InputAttr, Node, Output, Windows, toposort


def show(graph: Graph, *, origins: bool = False) -> str:
    """One line for each symbol, input, node and output; `origins` adds where a node comes from."""
    nodes = dict.fromkeys((*graph.inputs, *toposort(graph.roots)))
    names = {node: f"%{number}" for number, node in enumerate(nodes)}
    lines = [_symbol_line(graph, name) for name in graph.symbols]
    for node in nodes:
        comment = f"  # {graph.origins[node]}" if origins and node in graph.origins else ""
        lines.append(f"{names[node]} = {_node_text(node, names)}{comment}")
    lines.extend(_output_line(output, names) for output in graph.outputs)
    lines.extend(f"effect {names[node]}" for node in graph.effects)
    return "\n".join(lines) + "\n"


def describe(node: Node) -> str:
    """A node by itself, its operands shown by their types: for messages."""
    operands = ", ".join(str(operand.type) for operand in node.inputs)
    return f"{node.op.value} {node.type} of ({operands}) {attr_text(node.attr)}".rstrip()


def attr_text(attr: Attr) -> str:
    match attr:
        case None:
            return ""
        case bool():
            return str(attr).lower()
        case tuple():
            return _tuple(attr)
        case InputAttr():
            place = f"{json.dumps(attr.name)} position {attr.position}"
            text = f"{place} strides {_tuple(attr.strides)}"
            return text + " frozen" * attr.frozen + " written" * attr.is_written
        case LibraryCall() | StructuredCall():
            return _call_text(attr)
        case int() | float() | SymbolicDim() | Windows() | Within() | Failure():
            return str(attr)


def _symbol_line(graph: Graph, name: str) -> str:
    position, axis = graph.symbols[name]
    place = f"argument {position}" + ("" if axis is None else f" axis {axis}")
    hint = f" hint {graph.hints[name]}" if name in graph.hints else ""
    return f"symbol {name} = {place}{hint}"


def _node_text(node: Node, names: Mapping[Node, str]) -> str:
    operands = ", ".join(names[operand] for operand in node.inputs)
    words = (node.op.value, str(node.type), operands, attr_text(node.attr))
    return " ".join(word for word in words if word)


def _output_line(output: Output, names: Mapping[Node, str]) -> str:
    into = "" if output.mutates is None else f" into {names[output.mutates]}"
    share = " may share" if output.may_share else ""
    return f"output {names[output.value]} strides {_tuple(output.strides)}{into}{share}"


def _memory_text(call: Call) -> str:
    strides = ("none" if item is None else _tuple(item) for item in call.operand_strides)
    results = (
        "none" if item is None else f"{item[0]} strides {_tuple(item[1])}" for item in call.results
    )
    return f"operands {_tuple(strides)} results {_tuple(results)}"


def _call_text(call: Call) -> str:
    if isinstance(call, LibraryCall):
        return _library_text(call)
    return f"{_operation_text(call.operation)} {_memory_text(call)}".lstrip()


def _operation_text(operation: Operation) -> str:
    """Its fields by name, but for those that are as by default."""
    words = []
    for field in fields(operation):
        value = getattr(operation, field.name)
        if isinstance(value, Convolution):
            words.append(_operation_text(value))
        elif value is True:
            words.append(field.name)
        elif value != field.default:
            text = str(value) if isinstance(value, Within) else _argument(value)
            words.append(f"{field.name} {text}")
    return " ".join(words)


def _library_text(call: LibraryCall) -> str:
    keywords = (f"{name}={_argument(value)}" for name, value in call.keywords)
    words = [
        json.dumps(call.name),
        f"arguments {_argument(call.arguments)}",
        f"keywords {_tuple(keywords)}",
        _memory_text(call),
    ]
    words += ["tuple"] * call.is_tuple + ["effects"] * call.effects
    return " ".join(words)


def _argument(value: object) -> str:
    """An argument of a library call. What only the framework understands stands in <quotes>."""
    match value:
        case None | bool() | int() | float():
            return str(value).lower()
        case str():
            return json.dumps(value)
        case Operand():
            return f"${value.index}"
        case SymbolicDim():
            return f"{{{value}}}"
        case tuple():
            return _tuple(_argument(item) for item in value)
        case _:
            return f"<{json.dumps(str(value))}>"


def _tuple(items: Iterable[object]) -> str:
    return f"({', '.join(map(str, items))})"
