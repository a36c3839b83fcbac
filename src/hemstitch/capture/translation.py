"""From the fx graph of AOTAutograd (functional ATen) to the graph IR: one pass over its nodes, each
translated by its rule or kept whole as a library call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload

from hemstitch.capture.as_strided import FROM, is_in_memory
from hemstitch.capture.collectives import is_under_way, is_wait
from hemstitch.capture.device_target import (
    check_device,
    device_of,
    is_number_elsewhere,
    traced_tensors,
)
from hemstitch.capture.effects import has_effects
from hemstitch.capture.expressions import Expr, constant
from hemstitch.capture.library_calls import (
    call_of_numbers,
    make_library,
    strides_of,
    tensor_type,
)
from hemstitch.capture.origin import origin_of
from hemstitch.capture.result_aliasing import TRACED, Results, SharedResult, shared_memory
from hemstitch.capture.rule_context import Context, NotHandled, Rule
from hemstitch.capture.rules import RULES
from hemstitch.capture.runtime_assertions import assertion
from hemstitch.capture.seeded_random import draw_at_once, draw_seeds
from hemstitch.capture.symbolic_sizes import Sizes
from hemstitch.capture.traced_nodes import copy_of_written, is_copy, refuse_moves
from hemstitch.errors import InternalError, UnsupportedError
from hemstitch.gpu_vendors import VENDORS
from hemstitch.ir.builder import NOTHING, Builder
from hemstitch.ir.calls import LibraryCall, Operand
from hemstitch.ir.dims import Dim, SymbolicDim
from hemstitch.ir.graph import Graph, InputAttr, Node, Op, Output
from hemstitch.ir.layout import overlaps, repeats, without_gaps
from hemstitch.ir.types import DType, TensorType
from hemstitch.runtime.returned import (
    Argument,
    Fixed,
    Number,
    Result,
    Returned,
    ReturnedNumber,
    ReturnedView,
)
from hemstitch.runtime.torch_dtypes import from_torch

TracedGraph = torch.fx.GraphModule
aten = torch.ops.aten
COPYING_MEMORY = (
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
)


@dataclass(frozen=True, slots=True)
class Captured:
    """`returns[k]`: where the k-th result of a call comes from. `constants`: tensors the traced
    program holds; they are appended to the arguments of every call. `device`: where kernels run."""

    graph: Graph
    builder: Builder
    returns: tuple[Returned, ...]
    device: torch.device
    constants: tuple[torch.Tensor, ...] = ()


def capture(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    private: int | None = None,
    frozen: Collection[int] = (),
    results: Results = TRACED,
) -> Captured:
    """The graph IR of `gm`. Sizes stay symbolic where the trace's are, without new guards.

    `private`: how many of the results, from the first, the user gets; others are only kept for
    backward. None: all of them. `frozen`: positions of arguments that are weights, which stay as
    they are. `gm` itself is changed in one point: see `draw_at_once`.
    """
    draw_at_once(gm)
    state = _Capture(gm, private, frozen, results)
    state.bind_arguments(example_inputs)
    for node in gm.graph.nodes:
        state.visit(node)
    return state.finish()


def tensor_values(
    gm: torch.fx.GraphModule,
) -> tuple[dict[torch.fx.Node, tuple[Node, ...]], tuple[Node, ...], Mapping[str, int], Builder]:
    """The value of each tensor of `gm` in the graph IR, or of several that one operation gives;
    calls that run though nobody reads them; an example value of each symbol of sizes; and what made
    the values. `gm` stays as it is. Raises UnsupportedError."""
    state = _Capture(gm, None, (), TRACED)
    state.bind_arguments([None] * len(gm.graph.find_nodes(op="placeholder")))
    for node in gm.graph.nodes:
        if node.op != "output":
            state.visit(node)
    values = {node: _nodes_in(value) for node, value in state.environment.items()}
    tensors = {node: nodes for node, nodes in values.items() if nodes}
    return tensors, tuple(state.effects), state.sizes.hints, state.builder


def _nodes_in(value: Any) -> tuple[Node, ...]:
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(part.node for part in parts if isinstance(part, Expr) and not part.is_number)


@dataclass(slots=True)
class _Capture:
    gm: torch.fx.GraphModule
    private: int | None
    frozen: Collection[int]
    results: Results
    builder: Builder = field(default_factory=Builder)
    environment: dict[torch.fx.Node, Any] = field(default_factory=dict)
    positions: dict[torch.fx.Node, int] = field(default_factory=dict)
    inputs: dict[int, Node] = field(default_factory=dict)
    constants: list[torch.Tensor] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    effects: list[Node] = field(default_factory=list)
    returns: tuple[Returned, ...] = ()
    brought: dict[torch.fx.Node, Expr] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    read: dict[torch.fx.Node, Expr] = field(default_factory=dict)  # numbers, from tensors
    device: torch.device = field(init=False)
    sizes: Sizes = field(init=False)
    argument_count: int = 0

    def __post_init__(self) -> None:
        self.device = device_of(self.gm)
        self.sizes = Sizes(self.builder)

    # --- the call's arguments

    def bind_arguments(self, example_inputs: Sequence[object]) -> None:
        placeholders = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        traced = [
            node.meta.get("val", example) for node, example in zip(placeholders, example_inputs)
        ]
        self.sizes.bind(traced)
        self.argument_count = len(placeholders)
        for position, (node, value) in enumerate(zip(placeholders, traced)):
            is_written = self.private is not None and copy_of_written(node) is not None
            self.environment[node] = self._argument(node.name, position, value, is_written)
            self.positions[node] = position

    def _argument(self, name: str, position: int, traced: Any, is_written: bool = False) -> Any:
        if isinstance(traced, (torch.SymInt, torch.SymFloat)):
            return self.sizes.number(traced)
        if traced is None or isinstance(traced, (bool, int, float, str)):
            return traced
        type_ = TensorType((), DType.OPAQUE)
        strides: tuple[Dim, ...] = ()
        if isinstance(traced, torch.Tensor):
            type_, strides = self._type(traced), strides_of(traced, self.sizes)
        is_frozen = position in self.frozen and type_.dtype is not DType.OPAQUE
        node = self.builder.input(
            *(name, position, type_.shape, type_.dtype, strides), is_frozen, is_written
        )
        self.inputs[position] = node
        return Expr(self.builder, node)

    # --- nodes

    def visit(self, node: torch.fx.Node) -> None:
        self.builder.origin = origin_of(node)
        try:
            for tensor in traced_tensors(node):
                check_device(tensor, self.device)
            if node.op != "placeholder":
                _VISIT[node.op](self, node)
        except UnsupportedError as error:
            if error.where is not None:
                raise
            origin = self.builder.origin
            what = f"{origin.op}: {error.message}"
            raise UnsupportedError(what, hint=error.hint, where=origin.location) from error
        except Exception as error:
            origin = self.builder.origin
            raise InternalError(f"{origin.op}: {error!r}", where=origin.location) from error

    def attribute(self, node: torch.fx.Node) -> None:
        value = operator.attrgetter(str(node.target))(self.gm)
        if not isinstance(value, torch.Tensor):
            self.environment[node] = value
            return
        position = self.argument_count + len(self.constants)
        self.constants.append(value)
        self.positions[node] = position
        self.environment[node] = self._argument(node.name, position, node.meta.get("val", value))

    def function(self, node: torch.fx.Node) -> None:
        refuse_moves(node)
        special = _SPECIAL.get(node.target)
        if special is not None:
            special(self, node)
        elif isinstance(node.meta.get("val"), _NUMBERS):
            is_read = any(user.target not in _UNREAD for user in node.users)
            self.environment[node] = self._number(node.meta["val"]) if is_read else None
        else:
            self.environment[node] = self._operator(node)

    def _number(self, traced: Any) -> Any:
        if isinstance(traced, (torch.SymInt, torch.SymFloat)):
            return self.sizes.number(traced)
        return self.sizes.truth(traced) if isinstance(traced, torch.SymBool) else traced

    def _operator(self, node: torch.fx.Node) -> Any:
        rule = RULES.get(node.target)  # type: ignore[call-overload]
        if rule is not None and self._is_translatable(node):
            try:
                return self._translate(node, rule)
            except NotHandled:
                pass
        value, library = make_library(node, self.environment, self.sizes, self.device)
        if has_effects(node):
            self.effects.append(library)
        if is_wait(node.target):
            self._waited(node, value)
        return value

    def _waited(self, node: torch.fx.Node, value: Any) -> None:
        """Who reads what was waited for after that reads `value`."""
        (awaited,) = _operands(node)
        if awaited in self.positions:
            self.awaited.add(self.positions[awaited])
        self.environment[awaited] = value

    def _is_translatable(self, node: torch.fx.Node) -> bool:
        """Everything there, in types that the IR computes with, on one device, all of it real."""
        if any(map(is_under_way, node.all_input_nodes)) or self._copies_memory(node):
            return False
        operands = [x for operand in node.all_input_nodes for x in traced_tensors(operand)]
        tensors = [x for x in operands if not is_number_elsewhere(x, self.device)]
        scalars = [*node.args, *node.kwargs.values()]
        return not any(isinstance(scalar, complex) for scalar in scalars) and all(
            self._type(tensor).dtype is not DType.OPAQUE
            for tensor in (*tensors, *traced_tensors(node))
        )

    def _copies_memory(self, node: torch.fx.Node) -> bool:
        """It replaces elements in a copy of its operand as that lies in memory, where others are
        elements under several indices too."""
        if node.target not in COPYING_MEMORY:
            return False
        traced = _operands(node)[0].meta["val"]
        shape, strides = self.sizes.dims(traced.shape), strides_of(traced, self.sizes)
        return overlaps(shape, strides, self.sizes.hints) is not False

    def _type(self, tensor: torch.Tensor) -> TensorType:
        return tensor_type(tensor, self.sizes, self.device)

    def _translate(self, node: torch.fx.Node, rule: Rule) -> Any:
        traced = node.meta["val"]
        parts = traced if isinstance(traced, (list, tuple)) else (traced,)
        types = tuple(
            self._type(part) if isinstance(part, torch.Tensor) else None for part in parts
        )
        context = Context(self.sizes, types, for_gpu=self.device.type in VENDORS)
        arguments = self._with_tensor(node, [self._operand(argument) for argument in node.args])
        keywords = {key: self._operand(argument) for key, argument in node.kwargs.items()}
        result = rule(context, *arguments, **keywords)
        if parts is not traced:
            return self._as_traced(result, types[0])
        return tuple(self._as_traced(part, type_) for part, type_ in zip(result, types))

    def _with_tensor(self, node: torch.fx.Node, arguments: list[Any]) -> list[Any]:
        """Where all are numbers, those that stand for tensors as such: `torch.div(size, 2)`."""
        if not isinstance(node.target, OpOverload) or any(isinstance(x, Expr) for x in arguments):
            return arguments
        names = node.target._schema.arguments
        return [
            self._as_tensor(argument) if isinstance(name.type, torch.TensorType) else argument
            for name, argument in zip(names, arguments)
        ]

    def _as_tensor(self, argument: Any) -> Any:
        kinds = {bool: DType.BOOL, int: DType.I64, float: DType.F64, SymbolicDim: DType.I64}
        dtype = kinds.get(type(argument))
        if dtype is None:
            return argument
        return Expr(self.builder, constant(self.builder, argument, dtype).node, is_number=True)

    def _operand(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self._within_reach(argument)
        if isinstance(argument, (list, tuple)):
            return tuple(self._operand(part) for part in argument)
        return argument

    def _within_reach(self, node: torch.fx.Node) -> Any:
        """The value of `node`; a number on the processor is brought to the GPU, once a graph."""
        traced = node.meta.get("val")
        if not isinstance(traced, torch.Tensor) or not is_number_elsewhere(traced, self.device):
            return self.environment[node]
        if node not in self.brought:
            dtype = from_torch(traced.dtype)
            if dtype is DType.OPAQUE:
                raise NotHandled
            self.brought[node] = self._bring(self.environment[node].node, dtype)
        return self.brought[node]

    def _bring(self, number: Node, dtype: DType) -> Expr:
        call = LibraryCall(
            name="aten._to_copy.default",
            target=aten._to_copy.default,
            arguments=(Operand(0),),
            keywords=(("device", self.device), ("non_blocking", True)),
            operand_strides=((),),
            results=((TensorType((), dtype), ()),),
        )
        (brought,) = self.builder.call(call, (number,))
        assert brought is not None
        return Expr(self.builder, brought)

    def _as_traced(self, value: Expr | None, type_: TensorType | None) -> Expr | None:
        """With the element type and the size formulas that the trace says."""
        if value is None or type_ is None:
            return None
        node = value.cast(type_.dtype).broadcast(type_.shape).node
        return Expr(self.builder, node)

    def draw(self, node: torch.fx.Node) -> None:
        """Without the dispatcher around it."""
        call = LibraryCall(
            name="hemstitch.draw_seeds",
            target=draw_seeds,
            arguments=node.args,
            keywords=(),
            operand_strides=(),
            results=((self._type(node.meta["val"]), (1,)),),
            effects=True,
        )
        (seeds,) = self.builder.call(call, ())
        assert seeds is not None
        self.effects.append(seeds.inputs[0])
        self.environment[node] = Expr(self.builder, seeds)

    def get_item(self, node: torch.fx.Node) -> None:
        source, index = _operands(node)
        self.environment[node] = self.environment[source][index]

    def alias(self, node: torch.fx.Node) -> None:
        (source,) = _operands(node)
        self.environment[node] = self.environment[source]
        if source in self.positions:
            self.positions[node] = self.positions[source]

    def item(self, node: torch.fx.Node) -> None:
        (source,) = _operands(node)
        number = node.meta["val"]
        if isinstance(number, (torch.SymInt, torch.SymFloat)):
            self.read[node] = self._within_reach(source).reshape(())
            if not number.node.expr.is_number:  # it may be promised to be one
                self.sizes.bind_value(number, self.read[node])
        self.environment[node] = self._number(number)

    def asserted(self, node: torch.fx.Node) -> None:
        """Of numbers that the call reads, sizes and constants."""
        self.environment[node] = None
        if node.args[0] is True:
            return
        function, leaves = assertion(node)
        values = [self.read.get(leaf, self.environment[leaf]) for leaf in leaves]
        if any(value is None for value in values):
            raise UnsupportedError("a check of what only the call knows")
        call, operands = call_of_numbers(str(node.target), function, values)
        self.builder.call(call, operands)
        self.effects.append(self.builder.make(Op.LIBRARY, *operands, attr=call, type=NOTHING))

    def skip(self, node: torch.fx.Node) -> None:
        self.environment[node] = None

    def in_memory(self, node: torch.fx.Node) -> None:
        if not is_in_memory(node, self.sizes):
            what = "it looks at memory that is laid out otherwise, or as only the call knows"
            raise UnsupportedError(what, hint="call as_strided outside of the compiled function")
        self.environment[node] = self._operator(node)

    def copy_into(self, node: torch.fx.Node) -> None:
        """A write to an argument at the end of the graph; any other stays a library call."""
        target, source = _operands(node)[:2]
        if target not in self.positions:
            value, library = make_library(node, self.environment, self.sizes, self.device)
            self.effects.append(library)
            self.environment[node] = value
            return
        place = self.inputs[self.positions[target]]
        assert isinstance(place.attr, InputAttr)
        if self.positions[target] in self.awaited:
            what = f"argument {place.attr.name} is waited for in the graph that replaces it"
            raise UnsupportedError(what, hint="wait for the collective before")
        value = self._as_traced(self.environment[source], place.type)
        assert value is not None
        self.outputs.append(Output(value.node, place.attr.strides, mutates=place))
        self.environment[node] = self.environment[target] = value
        self.positions[node] = self.positions[target]

    # --- results

    def output(self, node: torch.fx.Node) -> None:
        (returned,) = node.args
        results: _Known = {}
        listed: Any = returned if isinstance(returned, (list, tuple)) else (returned,)
        private = listed[: self.private]
        parts = shared_memory(private, self.results, self.sizes)
        kept = {private[place]: part for place, part in parts.items() if not part.is_replaced}
        parts |= {n: kept[x] for n, x in enumerate(listed) if n >= len(private) and x in kept}
        self.returns = tuple(
            self._part(result, parts[place], results)
            if place in parts
            else self._returned(result, results, may_share=place >= len(private))
            for place, result in enumerate(listed)
        )

    def _part(self, result: object, part: SharedResult, known: _Known) -> Returned:
        """A result that shares memory with others, or with an argument."""
        whole = self._returned(part.whole, known, may_share=False)
        if result is part.whole:
            return whole
        assert isinstance(whole, (Result, Argument))
        shape, strides = self.sizes.dims(part.seen.shape), strides_of(part.seen, self.sizes)
        distance = part.seen.storage_offset() - part.whole.meta["val"].storage_offset()
        return ReturnedView(whole, shape, strides, self.sizes.dim(distance))

    def _returned(self, result: Any, known: _Known, may_share: bool) -> Returned:
        """`may_share`: it is kept for backward. What the caller gets as well is another output: it
        may be laid out otherwise."""
        if not isinstance(result, torch.fx.Node):
            return Fixed(result)
        value = self.environment[result]
        if result in self.positions and isinstance(value, Expr):
            return Argument(self.positions[result])
        if isinstance(value, Expr) and value.is_number:
            self.outputs.append(Output(value.node, ()))
            return ReturnedNumber(len(self.outputs) - 1)
        if isinstance(value, Expr):
            # A copy of an argument is saved for what the call, or its caller, writes to that.
            shares = may_share and not is_copy(result)
            if (result, shares) not in known:
                known[result, shares] = Result(len(self.outputs))
                strides = self._strides(result.meta["val"])
                self.outputs.append(Output(value.node, strides, None, shares))
            return known[result, shares]
        return Number(value) if isinstance(value, SymbolicDim) else Fixed(value)

    def _strides(self, result: torch.Tensor) -> tuple[Dim, ...]:
        shape, strides = self.sizes.dims(result.shape), strides_of(result, self.sizes)
        if not self.results.are_gradients or not strides or repeats(shape, strides):
            return strides
        return without_gaps(shape, strides, self.sizes.hints)

    def finish(self) -> Captured:
        graph = Graph(
            tuple(self.inputs.values()),
            tuple(self.outputs),
            tuple(self.effects),
            self.sizes.places,
            self.sizes.hints,
            self.builder.origins,
        )
        constants = tuple(self.constants)
        return Captured(graph, self.builder, self.returns, self.device, constants)


_Known = dict[tuple[torch.fx.Node, bool], Result]  # with whether it may share memory
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)

_VISIT: dict[str, Callable[[_Capture, torch.fx.Node], None]] = {
    "get_attr": _Capture.attribute,
    "call_function": _Capture.function,
    "output": _Capture.output,
}

_SPECIAL: dict[Any, Callable[[_Capture, torch.fx.Node], None]] = {
    draw_seeds: _Capture.draw,
    operator.getitem: _Capture.get_item,
    aten.alias.default: _Capture.alias,
    aten.detach.default: _Capture.alias,
    aten._local_scalar_dense.default: _Capture.item,
    **dict.fromkeys([*FROM, *FROM.values()], _Capture.in_memory),
    aten.copy_.default: _Capture.copy_into,
    aten._assert_scalar.default: _Capture.asserted,
    aten.sym_constrain_range.default: _Capture.asserted,
    aten.sym_constrain_range_for_size.default: _Capture.asserted,
    aten._assert_tensor_metadata.default: _Capture.skip,  # guards and the trace have seen to it
}

_UNREAD = frozenset(target for target, visit in _SPECIAL.items() if visit is _Capture.skip)


def _operands(node: torch.fx.Node) -> tuple[Any, ...]:
    return node.args
