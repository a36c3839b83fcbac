"""Calls of compiled graphs without AOTAutograd's wrappers, where these would have nothing to do.

Around the graphs that it gives a compiler, AOTAutograd puts code that copies mutated arguments
back, makes aliases of results anew and rebuilds tensor subclasses. Most graphs need none of that,
and then it costs more than a small kernel. What a graph needs is in AOTAutograd's own record
(`ViewAndMutationMeta`); `direct` calls the graphs themselves where that record has no such entry,
and gives back AOTAutograd's callable everywhere else. Where no argument has a gradient, views of
arguments that the graph gives are the ones that AOTAutograd would make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch._functorch._aot_autograd.schemas import (
    OutputAliasInfo,
    OutputType,
    PlainTensorMeta,
    ViewAndMutationMeta,
)
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor

from hemstitch.calls.argument_checks import check_arguments, is_in_memory
from hemstitch.calls.unused_gradients import Backward
from hemstitch.capture.result_aliasing import is_view_of
from hemstitch.errors import UnsupportedError
from hemstitch.fallback import Recoverable

Function = Callable[..., Any]
Boxed = Callable[[list[Any]], Sequence[Any]]
VIEWS = (OutputType.alias_of_input, OutputType.is_input)
PLAIN = (Tensor, torch.nn.Parameter, FakeTensor)


@dataclass(frozen=True, slots=True)
class CompiledPart:
    """One compiled graph, and what it was compiled from. `example_inputs`: the arguments that it
    was traced with. `is_repeatable`, `is_guarded`: as `fallback` and `entry` say."""

    run: Boxed
    traced: torch.fx.GraphModule
    example_inputs: tuple[object, ...]
    is_repeatable: bool
    is_guarded: bool


@dataclass(frozen=True, slots=True)
class Calls:
    """What Dynamo captured, as a function that autograd follows. `computing`: whether a kernel of
    the graph of that name computes anything, once it is compiled."""

    captured: Function
    computing: Mapping[str, bool]


def direct(
    whole: Function,
    parts: Mapping[str, CompiledPart],
    example_inputs: Sequence[object],
    strict: bool,
    calls: Calls | None = None,
) -> Function:
    """The shortest callable with the meaning of `whole`, which is what AOTAutograd made of `parts`:
    "inference", or "forward" and "backward". `calls`: where nothing was rewritten before that."""
    context = TracingContext.try_get()
    record = context.fw_metadata if context is not None else None
    main = parts.get("inference") or parts.get("forward")
    if record is None or main is None or not _is_plain(record, main, example_inputs):
        return whole
    has_views = any(info.output_type in VIEWS for info in record.output_info)
    if has_views and ("inference" not in parts or not _gives_views(record, main)):
        return whole
    # A fault in what stands in place of the wrappers leaves the wrappers.
    wrapped = Recoverable(main.run, lambda arguments: whole(*arguments), main.is_repeatable, strict)
    if "inference" in parts:
        if context is not None and context.fakify_first_call:
            return whole  # a bucket of DDP's, which is called with fake tensors first
        return _inference(whole, main.run, _mutated(record), wrapped, has_views)
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return whole  # AOTAutograd traced them into the graphs
    return _or_library_calls(_training(whole, parts, record, wrapped), calls)


def _is_plain(
    record: ViewAndMutationMeta, main: CompiledPart, example_inputs: Sequence[object]
) -> bool:
    """Arguments go into the graph and results come out of it just as they are."""
    nothing = (
        record.num_mutated_inp_runtime_indices,
        record.num_intermediate_bases,
        record.dynamic_outputs,
        record.grad_enabled_mutation is not None,
        record.tokens,
        record.is_rng_op_functionalized,
        record.num_graphsafe_rng_states,
        record.num_backward_tokens,
        record.num_symints_saved_for_bw,
        record.indices_of_inputs_that_requires_grad_with_mutations_in_bw,
        getattr(record, "num_tensors_saved_with_no_vc_check", None),  # not in torch 2.11
        getattr(record, "num_opaque_objects_saved_for_bw", None),
    )
    kinds = (OutputType.non_alias, OutputType.unsafe_view_alias, *VIEWS)
    tensors = [*record.subclass_fw_graph_out_meta, *record.subclass_tangent_meta]
    return (
        not any(nothing)
        and len(main.example_inputs) == len(example_inputs) == len(record.input_info)
        and all(map(_is_plain_tensor, (*example_inputs, *main.example_inputs)))
        and all(info.output_type in kinds for info in record.output_info)
        and all(isinstance(meta, PlainTensorMeta) for meta in tensors)
    )


def _gives_views(record: ViewAndMutationMeta, main: CompiledPart) -> bool:
    """Of arguments without gradient that the graph does not write to, as it was captured, all of
    known layout and type."""
    arguments = main.traced.graph.find_nodes(op="placeholder")
    [results] = main.traced.graph.output_node().args
    assert isinstance(results, (tuple, list))
    pairs = zip(record.output_info, results)
    views = [(info.base_idx, node) for info, node in pairs if info.output_type in VIEWS]
    return (
        not _mutated(record)
        and not any(info.requires_grad for info in record.input_info)
        and not any(info.requires_grad for info in record.output_info)
        and all(base is not None and is_view_of(node, arguments[base]) for base, node in views)
    )


def _is_plain_tensor(value: object) -> bool:
    """Of known size, and of no class that is traced through."""
    if type(value) not in PLAIN:
        return False
    assert isinstance(value, Tensor)
    return all(isinstance(size, int) for size in (*value.shape, *value.stride()))


def _graphs(record: ViewAndMutationMeta, forward: CompiledPart, backward: CompiledPart) -> _Graphs:
    wanted = [
        index
        for index, info in enumerate(record.output_info)
        if issubclass(info.raw_type, Tensor) and _has_tangent(info)
    ]
    recoverable, first = backward.run, len(backward.example_inputs) - len(wanted)
    assert isinstance(recoverable, Recoverable) and isinstance(recoverable.run, Backward)
    run = recoverable.run
    tangents = [
        Tangent(index, tuple(x.shape), x.stride(), x.dtype, x.device, first + place in run.optional)
        for place, (index, x) in enumerate(zip(wanted, backward.example_inputs[first:]))
        if isinstance(x, Tensor)
    ]
    return _Graphs(
        forward.run,
        run.without_zeros,
        recoverable,
        run.expected,
        forward.is_guarded,
        len(record.output_info),
        _mutated(record),
        tuple(_without_gradient(record, backward)),
        tuple(record.unsafe_view_out_indices),
        tuple(i for i, info in enumerate(record.output_info) if not info.requires_grad),
        tuple(tangents),
    )


def _has_tangent(info: OutputAliasInfo) -> bool:
    """torch 2.11 does not know the difference between the two."""
    return bool(getattr(info, "requires_grad_for_backward", info.requires_grad))


def _mutated(record: ViewAndMutationMeta) -> tuple[int, ...]:
    """Arguments that the graph itself changes."""
    return tuple(record.mutated_graph_handled_indices_seen_by_autograd)


def _without_gradient(record: ViewAndMutationMeta, backward: CompiledPart) -> Iterator[int]:
    """Arguments that never get one, though they are results of something that could."""
    [gradients] = backward.traced.graph.output_node().args
    assert isinstance(gradients, (tuple, list))
    for index, (info, gradient) in enumerate(zip(record.input_info, gradients)):
        if gradient is None and info.requires_grad and not info.is_leaf:
            yield index


def _is_traced() -> bool:
    """Something wants to see the operations inside: a transform, or compiled autograd."""
    return (
        torch._C._are_functorch_transforms_active() or compiled_autograd.compiled_autograd_enabled
    )


def _without_autocast(run: Boxed, arguments: list[Any]) -> Sequence[Any]:
    """Casts are part of the graph already."""
    if torch._C._is_any_autocast_enabled():
        with torch._C._DisableAutocast():
            return run(arguments)
    return run(arguments)


def _inference(
    whole: Function,
    run: Boxed,
    mutated: tuple[int, ...],
    wrapped: Recoverable,
    has_views: bool,
) -> Function:
    """One graph that no gradient goes through. A closure: to call an object takes longer.
    `has_views`: views of arguments, to which autograd must see writes."""
    recoverable = run if isinstance(run, Recoverable) else wrapped
    inner = recoverable.run

    def inference(*arguments: Tensor) -> Sequence[Any]:
        if torch._C._are_functorch_transforms_active():
            return whole(*arguments)  # type: ignore[no-any-return]
        if mutated:
            torch.autograd.graph.increment_version([arguments[i] for i in mutated])
        left, is_recorded = [*arguments], torch.is_grad_enabled() and not has_views
        try:
            if is_recorded:
                torch._C._set_grad_enabled(False)
            if torch._C._is_any_autocast_enabled():
                return _without_autocast(inner, left)
            return inner(left)
        except Exception as error:
            failure = error
        finally:
            if is_recorded:
                torch._C._set_grad_enabled(True)
        with torch.no_grad(), torch._C._DisableAutocast():
            return recoverable.recovered(failure, arguments, has_not_begun=bool(left))

    return inference


@dataclass(frozen=True, slots=True)
class _Graphs:
    """`results`: how many values of `forward` are the user's; the others go to `backward`, after
    them the gradients of some results, each as laid out when it was compiled."""

    forward: Boxed
    backward: Boxed
    recoverable: Recoverable  # backward
    expected: Sequence[object]  # by it
    is_guarded: bool  # what forward has saved is as it was when compiled, unless hooks change it
    results: int
    mutated: tuple[int, ...]  # arguments
    detached: tuple[int, ...]  # arguments that autograd must not follow
    views: tuple[int, ...]  # results that autograd must not take for views
    constant: tuple[int, ...]  # results without gradient
    tangents: tuple[Tangent, ...]


@dataclass(frozen=True, slots=True)
class Tangent:
    """The gradient of a result, as `backward` was compiled for it. `is_optional`: or None."""

    result: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_optional: bool

    def of(self, gradient: Tensor | None) -> Tensor | None:
        """A copy where it is laid out otherwise; zeros where there is none, but must be."""
        if gradient is None:
            return None if self.is_optional else self._empty().zero_()
        if type(gradient) is not Tensor or not is_in_memory(gradient):
            raise UnsupportedError("a gradient that comes in is no plain tensor")
        return gradient if gradient.stride() == self.strides else self._empty().copy_(gradient)

    def _empty(self) -> Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


def _or_library_calls(training: Function, calls: Calls | None) -> Function:
    """What was captured in place of `training`, once it is known that both passes are library calls
    alone: PyTorch's own functions of autograd cost less than one of ours around the same calls."""
    if calls is None or calls.computing.get("forward", True):
        return training

    def called(*arguments: Tensor) -> Sequence[Any]:
        run = training if calls.computing.get("backward", True) else calls.captured
        return run(*arguments)  # type: ignore[no-any-return]

    return called


def _training(
    whole: Function,
    parts: Mapping[str, CompiledPart],
    record: ViewAndMutationMeta,
    wrapped: Recoverable,
) -> Function:
    """A forward and a backward graph as one function of autograd. AOTAutograd compiles the
    backward graph when it is needed first; until then its own callable runs."""
    graphs: _Graphs | None = None
    # The method below `Function.apply`, which looks for transforms of functorch once more.
    apply: Function = super(torch.autograd.Function, Hemstitch).apply

    def training(*arguments: Tensor) -> Sequence[Any]:
        nonlocal graphs
        is_recorded, has_begun, failure = torch.is_grad_enabled(), False, None
        try:
            if graphs is None and "backward" in parts:
                graphs = _graphs(record, parts["forward"], parts["backward"])
            if graphs is not None and not _is_traced():
                if graphs.mutated:
                    torch.autograd.graph.increment_version([arguments[i] for i in graphs.mutated])
                operands = [*arguments]
                for index in graphs.detached:
                    operands[index] = operands[index].detach()
                if not is_recorded:
                    torch._C._set_grad_enabled(True)  # the program turned it on inside
                has_begun = True
                return apply(graphs, *operands)  # type: ignore[no-any-return]
        except Exception as error:
            failure = error
        finally:
            if not is_recorded:
                torch._C._set_grad_enabled(False)
        if failure is not None:
            return wrapped.recovered(failure, arguments, not has_begun)
        return whole(*arguments)  # type: ignore[no-any-return]

    return training


class Hemstitch(torch.autograd.Function):
    """What autograd records for a compiled graph. Arguments: the graphs, then the tensors."""

    @staticmethod
    def forward(ctx: Any, graphs: _Graphs, *arguments: Tensor) -> tuple[Any, ...]:
        values = _without_autocast(graphs.forward, [*arguments])
        results = [*values[: graphs.results]]
        for index in graphs.views:
            # Else it stays what it is, and a write to it is seen where backward reads it.
            if results[index]._is_view():
                results[index] = torch.ops.aten._unsafe_view(results[index], results[index].shape)
        ctx.graphs = graphs
        has_hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        ctx.is_checked = has_hooks or not graphs.is_guarded
        ctx.save_for_backward(
            *[x.detach() if x._is_view() else x for x in values[graphs.results :]]
        )
        constant = [results[i] for i in graphs.constant if isinstance(results[i], Tensor)]
        ctx.mark_non_differentiable(*constant)
        ctx._materialize_non_diff_grads = False
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                "the backward pass of a compiled function was called inside vmap, grad or vjp; "
                "put these inside torch.compile instead"
            )
        graphs: _Graphs = ctx.graphs
        arguments = [*ctx.saved_tensors]
        saved, is_recorded, has_begun = len(arguments), torch.is_grad_enabled(), False
        try:
            arguments += [tangent.of(gradients[tangent.result]) for tangent in graphs.tangents]
            if ctx.is_checked:
                optional = {
                    saved + n for n, tangent in enumerate(graphs.tangents) if tangent.is_optional
                }
                check_arguments(graphs.expected, arguments, optional)
            ctx.maybe_clear_saved_tensors()
            has_begun = True
            if is_recorded:
                return (None, *_recorded(graphs.backward, arguments))
            return (None, *_without_autocast(graphs.backward, arguments))
        except Exception as error:
            failure = error
        has_not_begun = not has_begun or (bool(arguments) and not is_recorded)
        plain = [*arguments[:saved], *(gradients[tangent.result] for tangent in graphs.tangents)]
        run = partial(graphs.recoverable.recovered, failure, has_not_begun=has_not_begun)
        return (None, *(_recorded(run, plain) if is_recorded else run(plain)))


def _recorded(run: Boxed, arguments: Sequence[Any]) -> Sequence[Any]:
    apply: Function = _Once.apply
    return apply(run, torch.empty(0, requires_grad=True), *arguments)  # type: ignore[no-any-return]


class _Once(torch.autograd.Function):
    """Gradients as a function of autograd that has no gradient: a second derivative is an error."""

    @staticmethod
    def forward(ctx: Any, run: Boxed, _: Tensor, *arguments: Tensor) -> tuple[Any, ...]:
        return tuple(_without_autocast(run, [*arguments]))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:
        raise RuntimeError("a compiled function has no second derivative: AOTAutograd makes none")
