"""From a plan to straight-line Python: one line for each kernel, library call or allocation.

There is one text for each graph. Sizes are names in it, so that a call with other sizes only needs
other values for these names (see `executable`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from hemstitch.ir.calls import LibraryCall, Operand, holds_operands, may_keep_operands
from hemstitch.ir.dims import Dim, SymbolicDim, known
from hemstitch.ir.graph import InputAttr, call_of
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.planning.materialised_views import Alias, same_strides
from hemstitch.planning.plan import LibraryStep, Plan
from hemstitch.runtime.assembly import Assembly, IntermediateView, Launch, Slot
from hemstitch.runtime.aten_forms import aten_form
from hemstitch.runtime.bindings import OUT_FORMS, binding
from hemstitch.runtime.interpreter import with_strides
from hemstitch.runtime.recycling import LEAST_BYTES, Layout, empty_strided_on
from hemstitch.runtime.returned import (
    Argument,
    Fixed,
    Number,
    Result,
    Returned,
    ReturnedNumber,
    ReturnedView,
)
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES
from hemstitch.stitching.group import Tensor

CPU = torch.device("cpu")
_NAME = re.compile(r"\b[at]\d+\b")


def assemble(
    plan: Plan,
    launches: Sequence[Launch | None],
    returns: Sequence[Returned],
    arguments: int,
    device: torch.device = CPU,
) -> Assembly:
    """`launches[k]` runs step k, unless that is a library call; all tensors are on `device`."""
    return _Assembler(plan, launches, returns, arguments, device).assemble()


@dataclass(slots=True)
class _Assembler:
    plan: Plan
    launches: Sequence[Launch | None]
    returns: Sequence[Returned]
    arguments: int
    device: torch.device
    lines: list[str] = field(default_factory=list)
    fixed: dict[str, object] = field(default_factory=dict)
    sizes: dict[str, Dim | tuple[Dim, ...]] = field(default_factory=dict)
    names: dict[Tensor, str] = field(default_factory=dict)
    slots: dict[Tensor, Slot] = field(default_factory=dict)
    views: dict[IntermediateView, str] = field(default_factory=dict)
    large: dict[str, Layout] = field(default_factory=dict)
    scratch: list[Slot] = field(default_factory=list)
    shared: set[Tensor] = field(default_factory=set)
    replaced: set[Tensor] = field(default_factory=set)
    overwriting: set[int] = field(default_factory=set)  # steps

    def assemble(self) -> Assembly:
        empty = empty_strided_on(self.device)
        self.fixed |= {"empty": empty, "as_strided": torch.as_strided, "lay": with_strides}
        self.fixed["copy"] = _copy
        self._find_shared()
        self._find_overwriting()
        if self.device == CPU:
            self._find_slots()
        steps: list[list[str]] = []
        for number, step in enumerate(self.plan.steps):
            self.lines = []
            if isinstance(step, LibraryStep):
                self._library(step, number)
            else:
                self._launch(number)
            steps.append(self.lines)
        self.lines = []
        results = ", ".join(self._returned(returned) for returned in self.returns)
        steps.append(self.lines)
        source = self._source(steps, results)
        slots = list(self.slots.values())
        views = list(self.views)
        return Assembly(
            *(source, self.fixed, self.sizes, slots, views, self.scratch),
            *(self.large, self.device),
        )

    def _source(self, steps: list[list[str]], results: str) -> str:
        parameters = [f"a{p}" for p in range(self.arguments)]
        head = [f"    {', '.join(parameters)}, = args"] if parameters else []
        body = [f"    {line}" for lines in steps for line in lines]
        end = [f"    return ({results}{',' if results else ''})"]
        text = ["def run(args, v=(), p=()):", *head, "    args.clear()", *body, *end]
        return "\n".join(_with_frees(text)) + "\n"

    # --- where tensors are

    def _find_shared(self) -> None:
        """Tensors that may be alive after the call: results of the graph, and operands that library
        calls retain. Arguments are not among them, but may be replaced."""
        outputs = self.plan.outputs
        self.replaced = {o.tensor for o in outputs if o.tensor.is_argument and o.is_whole}
        retained = [output.tensor for output in outputs]
        for step in self.plan.steps:
            if isinstance(step, LibraryStep) and (_holds_operands(step) or _may_keep(step)):
                retained.extend(operand.tensor for operand in step.operands)
        self.shared = {tensor for tensor in retained if not tensor.is_argument}

    def _find_overwriting(self) -> None:
        """Library calls that copy an operand and replace elements of the copy, and can replace
        those of the operand: a kernel wrote it, and this is its last use. It is not in the arena
        then, since the result shares its memory."""
        steps = enumerate(self.plan.steps)
        last = {tensor: n for n, step in steps for tensor in self._touched(step, n)}
        kernel_results = {x for step in self.plan.kernels for x in step.writes} - self.shared
        for number, step in enumerate(self.plan.steps):
            tensor = _replaceable(step) if isinstance(step, LibraryStep) else None
            if tensor is not None and tensor in kernel_results and last[tensor] == number:
                self.overwriting.add(number)
                self.shared.add(tensor)

    def _find_slots(self) -> None:
        """Intermediates that kernels or `out=` forms of library calls write live in the arena."""
        for number, step in enumerate(self.plan.steps):
            for tensor in self._touched(step, number):
                if tensor.is_argument or tensor in self.shared:
                    continue
                if tensor.is_result and not self._has_out_form(tensor):
                    continue
                slot = self.slots.setdefault(tensor, Slot(_bytes_of(tensor), number, number))
                slot.last = number

    def _touched(self, step: object, number: int) -> list[Tensor]:
        if isinstance(step, LibraryStep):
            results = [tensor for tensor in step.results if tensor is not None]
            return [*(operand.tensor for operand in step.operands), *results]
        launch = self.launches[number]
        assert launch is not None
        return list(launch.tensors)

    def _has_out_form(self, tensor: Tensor) -> bool:
        """Whether it is the result of a library call that has an `out=` form."""
        if tensor.node.type.dtype is DType.OPAQUE:
            return False
        call = aten_form(call_of(tensor.node))
        contiguous = same_strides(
            tensor.node.shape, tensor.strides, contiguous_strides(tensor.node.shape)
        )
        return call.target in OUT_FORMS and contiguous

    def _name(self, tensor: Tensor) -> str:
        """The variable that holds a tensor. Its first use allocates it, unless a call returns
        it."""
        if tensor.is_argument:
            assert isinstance(tensor.node.attr, InputAttr)
            return f"a{tensor.node.attr.position}"
        if tensor in self.slots:
            return self._view_of_slot(tensor, tensor.node.shape, tensor.strides, 0)
        if tensor not in self.names:
            self.names[tensor] = f"t{len(self.names)}"
            if not tensor.is_result or self._has_out_form(tensor):
                self._allocate(tensor)
        return self.names[tensor]

    def _allocate(self, tensor: Tensor) -> None:
        layout = _large_layout(tensor) if self.device == CPU else None
        if layout is not None:
            name = f"large{len(self.large)}"
            self.large[name] = layout
            self.lines.append(f"{self.names[tensor]} = {name}()")
            return
        shape, strides = self._sizes(tensor.node.shape), self._sizes(tensor.strides)
        dtype = self._fix(TORCH_DTYPES[tensor.node.type.dtype], "dtype")
        self.lines.append(f"{self.names[tensor]} = empty({shape}, {strides}, {dtype})")

    def _view_of_slot(
        self, tensor: Tensor, shape: tuple[Dim, ...], strides: tuple[Dim, ...], offset: Dim
    ) -> str:
        slot = list(self.slots).index(tensor)
        view = IntermediateView(slot, shape, strides, offset, tensor.node.type.dtype)
        return self.views.setdefault(view, f"v[{len(self.views)}]")

    def _alias(self, alias: Alias) -> str:
        if alias.is_whole:
            return self._name(alias.tensor)
        if alias.tensor in self.slots:
            return self._view_of_slot(alias.tensor, alias.shape, alias.strides, alias.offset)
        shape, strides = self._sizes(alias.shape), self._sizes(alias.strides)
        base = self._name(alias.tensor)
        return _as_strided(base, shape, strides, self._size(alias.offset))

    def _from(self, tensor: Tensor, place: int) -> str:
        """A tensor's memory from element `place` to the end."""
        if place == 0:
            return self._name(tensor)
        left = (tensor.extent(known) - place,)
        return self._alias(Alias(tensor, left, (1,), place))

    # --- steps

    def _launch(self, number: int) -> None:
        launch = self.launches[number]
        assert launch is not None
        places = launch.places or (0,) * len(launch.tensors)
        tensors = map(self._from, launch.tensors, places)
        sizes = [self._size(size) for size in launch.sizes]
        name = self._fix(launch.function, "k")
        scratch = self._scratch(launch.scratch_bytes, number)
        self.lines.append(f"{name}({', '.join([*tensors, *sizes, scratch])})")

    def _scratch(self, bytes_: Dim, number: int) -> str:
        """The scratch of one launch, which lives only for that step."""
        if bytes_ == 0:
            return "0"
        self.scratch.append(Slot(bytes_, number, number))
        return f"p[{len(self.scratch) - 1}]"

    def _library(self, step: LibraryStep, number: int) -> None:
        call = aten_form(call_of(step.node))
        operands = [self._operand(step, operand) for operand in step.operands]
        arguments = [self._argument(argument, operands) for argument in call.arguments]
        arguments += [f"{key}={self._argument(v, operands)}" for key, v in call.keywords]
        if any(tensor is not None and tensor.is_argument for tensor in step.results):
            self.lines.append(f"{self._fix(call.in_place, 'f')}({', '.join(arguments)})")
            return
        out_results = [t for t in step.results if t is not None and self._has_out_form(t)]
        if out_results:
            name = self._fix(OUT_FORMS[call.target], "f")
            self.lines.append(
                f"{name}({', '.join([*arguments, f'out={self._name(out_results[0])}'])})"
            )
            return
        function = binding(call.target, call.arguments, dict(call.keywords))
        if number in self.overwriting:
            function = call.in_place
        text = f"{self._fix(function, 'f')}({', '.join(arguments)})"
        if all(tensor is None for tensor in step.results):
            self.lines.append(text)
        elif call.is_tuple:
            self.lines.append(f"r{number} = {text}")
            for index, tensor in enumerate(step.results):
                if tensor is not None:
                    self._result(tensor, f"r{number}[{index}]")
            self.lines.append(f"del r{number}")
        else:
            (tensor,) = step.results
            assert tensor is not None
            self._result(tensor, text)

    def _operand(self, step: LibraryStep, operand: Alias) -> str:
        """A call that retains an argument which the graph replaces gets a copy."""
        text = self._alias(operand)
        is_kept = _holds_operands(step) and operand.tensor in self.replaced
        return f"copy({text})" if is_kept else text

    def _result(self, tensor: Tensor, text: str) -> None:
        """Assign a library call's result, with the strides of the trace."""
        name = self._name(tensor)
        self.lines.append(f"{name} = {text}")
        if tensor.node.type.dtype is not DType.OPAQUE:
            strides = self._sizes(tensor.strides)
            self.lines.append(f"if {name}.stride() != {strides}: {name} = lay({name}, {strides})")

    def _argument(self, argument: object, operands: list[str]) -> str:
        match argument:
            case Operand(index):
                return operands[index]
            case SymbolicDim():
                return self._size(argument)
            case tuple():
                parts = [self._argument(part, operands) for part in argument]
                return f"[{', '.join(parts)}]"
            case bool() | int() | None:
                return repr(argument)
            case _:
                return self._fix(argument, "c")

    def _returned(self, returned: Returned) -> str:
        match returned:
            case Result(index):
                return self._own_result(index)
            case ReturnedView(base, shape, strides, offset):
                whole = self._returned(base)
                layout = self._sizes(shape), self._sizes(strides), self._size(offset)
                return _as_strided(whole, *layout)
            case Argument(position):
                return f"a{position}"
            case ReturnedNumber(index):
                return f"{self._alias(self.plan.outputs[index])}.item()"
            case Number(value):
                return self._size(value)
            case Fixed(value):
                return repr(value) if value is None else self._fix(value, "c")

    def _own_result(self, index: int) -> str:
        """A result that belongs to the caller alone is a detached tensor, and the same tensor
        object wherever it is returned, so that autograd sees the caller's writes to it."""
        outputs, alias = self.plan.outputs, self.plan.outputs[index]
        may_share = [output.may_share for output in self.plan.graph.outputs]
        aliases = [
            n for n, output in enumerate(outputs) if not may_share[n] and output.shows_as(alias)
        ]
        if not aliases or alias.is_whole or alias.tensor.is_argument:
            return self._alias(alias)
        name = f"r{aliases[0]}"
        line = f"{name} = {self._alias(alias)}.data"
        if line not in self.lines:
            self.lines.append(line)
        return name

    # --- names

    def _fix(self, value: object, hint: str) -> str:
        for name, fixed in self.fixed.items():
            if fixed is value:
                return name
        name = f"{hint}{len(self.fixed)}"
        self.fixed[name] = value
        return name

    def _size(self, size: Dim) -> str:
        return str(size) if isinstance(size, int) else self._named(size)

    def _sizes(self, sizes: tuple[Dim, ...]) -> str:
        fixed = [size for size in sizes if isinstance(size, int)]
        return repr(tuple(fixed)) if len(fixed) == len(sizes) else self._named(sizes)

    def _named(self, value: Dim | tuple[Dim, ...]) -> str:
        for name, size in self.sizes.items():
            if size == value and isinstance(size, tuple) == isinstance(value, tuple):
                return name
        name = f"s{len(self.sizes)}"
        self.sizes[name] = value
        return name


def _large_layout(tensor: Tensor) -> Layout | None:
    """None for a small tensor, and for symbolic sizes."""
    shape = tuple(size for size in tensor.node.shape if isinstance(size, int))
    strides = tuple(step for step in tensor.strides if isinstance(step, int))
    bytes_ = tensor.node.type.bytes
    if len(shape) < len(tensor.node.shape) or len(strides) < len(shape):
        return None
    is_large = isinstance(bytes_, int) and bytes_ >= LEAST_BYTES
    return Layout(shape, strides, TORCH_DTYPES[tensor.node.type.dtype]) if is_large else None


def _bytes_of(tensor: Tensor) -> Dim:
    return tensor.node.type.bytes


def _with_frees(lines: list[str]) -> list[str]:
    """Insert a `del` of each local tensor after its last use."""
    last: dict[str, int] = {}
    for number, line in enumerate(lines[:-1]):
        for word in _words(line):
            last[word] = number
    returned = set(_words(lines[-1]))
    gone: dict[int, list[str]] = {}
    for word, number in last.items():
        if word not in returned and number > 1:
            gone.setdefault(number, []).append(word)
    result: list[str] = []
    for number, line in enumerate(lines):
        result.append(line)
        if number in gone:
            result.append(f"    del {', '.join(gone[number])}")
    return result


def _words(line: str) -> list[str]:
    """The names of arguments and tensors in a line: a0, t3."""
    return [w for w in _NAME.findall(line) if not line.lstrip().startswith("del ")]


def _replaceable(step: LibraryStep) -> Tensor | None:
    """The operand that the call copies to replace elements of the copy, if the copy has its
    layout."""
    call = step.node.attr
    if not isinstance(call, LibraryCall):
        return None
    if call.in_place is None or call.arguments[0] != Operand(0):
        return None
    (result,), operand = step.results, step.operands[0]
    tensor = operand.tensor
    uses = [n for n in _operands(call.arguments) if step.operands[n].tensor is tensor]
    if result is None or len(uses) > 1:
        return None
    same = operand.is_whole and result.node.type == tensor.node.type
    return tensor if same and same_strides(operand.shape, result.strides, tensor.strides) else None


def _operands(argument: object) -> Iterator[int]:
    if isinstance(argument, Operand):
        yield argument.index
    elif isinstance(argument, tuple):
        for part in argument:
            yield from _operands(part)


def _holds_operands(step: LibraryStep) -> bool:
    return holds_operands(step.node.attr)


def _may_keep(step: LibraryStep) -> bool:
    return may_keep_operands(step.node.attr)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor at the same offset in a copy of its whole storage, since its views may show more."""
    memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    layout = tensor.storage_offset(), tensor.shape, tensor.stride()
    copied = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    return memory.set_(copied, *layout)


def _as_strided(tensor: str, shape: str, strides: str, offset: str) -> str:
    """A view relative to the tensor's own offset, in PyTorch's functions only: a backward that
    fails cannot be repeated. Only returned tensors are named `x`, since a name keeps memory
    alive."""
    expression, name = (tensor, tensor) if tensor.isidentifier() else (f"x := {tensor}", "x")
    return f"as_strided({expression}, {shape}, {strides}, {name}.storage_offset() + {offset})"
