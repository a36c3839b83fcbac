"""Graphs of the models that both papers measure, at their large size; and two that are large for a
planner: a BERT of many layers, and a synthetic one. Nothing is run: tensors are fake."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from benchmarks.counting import Made, Program, fake
from benchmarks.models import WORKLOADS, Batch, Size, Training, Workload, hugging_face
from hemstitch.backend import compile_with
from hemstitch.driver.compiler import Compiled
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import LibraryCall, Operand
from hemstitch.ir.graph import Graph, Node, Op, Output
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.options import Options

# What the papers call them, and which of our workloads each is.
MODELS: Mapping[str, str] = {
    "BERT": "bert",
    "Transformer": "t5",
    "DIEN": "dien",
    "ASR": "whisper",
    "CRNN": "crnn",
}
MODES = ("infer", "train")
UNTRAINED = {"CRNN": "its loss, CTC, wants real numbers"}
LAYERS = 24
SYNTHETIC_NODES = 13_400  # of which 10,000 are needed


def program(model: str, mode: str) -> Program:
    workload = WORKLOADS[MODELS[model]]
    make = partial(_training if mode == "train" else _inference, workload)
    return Program(model, make, backward=mode == "train")


def deep_bert() -> Program:
    """24 layers, trained."""
    workload = WORKLOADS["bert"]

    def model(size: Size, dropout: float) -> torch.nn.Module:
        return hugging_face.bert(hidden=256, heads=4, layers=LAYERS, dropout=dropout)

    deep = Workload(model, workload.inputs, workload.loss)
    return Program(f"BERT, {LAYERS} layers", partial(_training, deep), backward=True)


def _training(workload: Workload) -> Made:
    with torch.device("cpu"):  # what libraries do to new models needs memory
        model, batch = Training(workload, "large", dropout=0.1), workload.inputs("large")
    _to_gpu(model)
    return model, (_on_gpu(batch),)


def _inference(workload: Workload) -> Made:
    with torch.device("cpu"):
        model, batch = workload.model("large", 0.0).eval(), workload.inputs("large")
    given = {name: x for name, x in _on_gpu(batch).items() if not name.startswith("label")}
    _to_gpu(model)
    return lambda: model(**given), ()


def _to_gpu(model: torch.nn.Module) -> None:
    """As `model.to("cuda")`, which fake parameters refuse. What is tied stays so."""
    moved: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if tensor not in moved:
                    there = _there(tensor)
                    is_learned = isinstance(tensor, torch.nn.Parameter)
                    moved[tensor] = torch.nn.Parameter(there) if is_learned else there
                held[name] = moved[tensor]  # type: ignore[assignment]


def _on_gpu(batch: Batch) -> Batch:
    return {name: _there(tensor) for name, tensor in batch.items()}


def _there(tensor: Tensor) -> Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=torch.device("cuda")
    )


def graphs_of(program: Program) -> list[Graph]:
    """What `torch.compile` hands to the compiler for a GPU."""
    found: list[Graph] = []

    def observe(kind: str, compiled: Compiled) -> None:
        found.append(compiled.graph)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        options = Options(planner="conservative", strict=True)
        return compile_with(gm, inputs, options, observe, plan_only=True)

    torch._dynamo.reset()
    with fake(program):
        function, arguments = program.made()
        result = torch.compile(function, backend=backend)(*arguments)
        if program.backward:
            result[0].backward()
    return found


def synthetic(count: int = SYNTHETIC_NODES, seed: int = 0) -> Graph:
    """Elementwise nodes that read one or two of the last few, a reduction now and then, and a
    library call for every 40 nodes."""
    choose, builder = random.Random(seed), Builder()
    shape, strides = (256, 512), contiguous_strides((256, 512))
    inputs = [builder.input(f"x{n}", n, shape, DType.F32, strides) for n in range(4)]
    recent: list[Node] = list(inputs)
    made = 0
    while made < count:
        first, second = choose.sample(recent[-8:], 2)
        new, nodes = _next(builder, choose, first, second)
        recent.append(new)
        made += nodes
    outputs = tuple(Output(value, strides) for value in recent[-8:])
    return Graph(tuple(inputs), outputs)


def _next(builder: Builder, choose: random.Random, first: Node, second: Node) -> tuple[Node, int]:
    """A value, and how many nodes it took."""
    kind = choose.random()
    if kind < 1 / 40:
        strides = contiguous_strides(first.type.shape)
        call = LibraryCall("f", None, (Operand(0),), (), (strides,), ((first.type, strides),))
        (called,) = builder.call(call, [first])
        assert called is not None
        return called, 2
    if kind < 1 / 10:
        rows, _ = first.type.shape
        total = builder.reshape(builder.make(Op.SUM, first, attr=(1,)), (rows, 1))
        return builder.make(Op.SUB, second, builder.broadcast(total, first.type.shape)), 4
    if kind < 0.4:
        return builder.make(Op.EXP, first), 1
    return builder.make(choose.choice((Op.ADD, Op.MUL, Op.MAXIMUM)), first, second), 1
