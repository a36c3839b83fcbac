"""XLA by way of JAX. torchax runs the same PyTorch module on JAX's arrays, `jax.value_and_grad`
differentiates it, `jax.jit` compiles all of it: forward, loss, backward. Random numbers are of
JAX's fastest generator, with a new key for each step; batch norm's statistics are carried on."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from benchmarks.rivals.problem import Made, Prepared, Results
from benchmarks.rivals.substitutes import substituted

GENERATOR = "unsafe_rbg"


@contextmanager
def _overloads_that_are_gone() -> Iterator[None]:
    """torchax 0.0.13 names operators of tensors with named axes, which PyTorch 2.13 has no more."""
    packet: Any = torch._ops.OpOverloadPacket
    known = packet.__getattr__

    def get(self: Any, name: str) -> Any:
        try:
            return known(self, name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return object()  # nothing ever calls it

    packet.__getattr__ = get
    try:
        yield
    finally:
        packet.__getattr__ = known


with _overloads_that_are_gone():
    ENVIRONMENT: Any = importlib.import_module("torchax").default_env()


def prepare(workload: Made) -> Prepared:
    model = workload.model
    held: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    weights = ENVIRONMENT.t2j_copy({name: x for name, x in held.items() if x.requires_grad})
    buffers = ENVIRONMENT.t2j_copy({name: x for name, x in held.items() if name not in weights})
    arguments = ENVIRONMENT.t2j_copy(workload.arguments)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.new_empty(0)  # from here on only the model's code is used
    turns = count()
    latest: list[Any] = []  # results live until the next step begins, as gradients do in PyTorch

    def call(weights: Any, buffers: Any, arguments: Any, turn: Any) -> tuple[Any, Any]:
        """(output or loss, (buffers, output)); `buffers` is changed by the model."""
        ENVIRONMENT.param.prng = jax.random.key(turn, impl=GENERATOR)
        weights, buffers, arguments = ENVIRONMENT.j2t_iso((weights, buffers, arguments))
        with ENVIRONMENT, substituted():
            outputs = torch.func.functional_call(model, weights | buffers, kwargs=arguments)
        first, *rest = outputs if workload.training else (outputs,)
        return ENVIRONMENT.t2j_iso(first), ENVIRONMENT.t2j_iso((buffers, rest))

    compiled = jax.jit(jax.value_and_grad(call, has_aux=True) if workload.training else call)

    def step() -> Any:
        nonlocal buffers
        latest.clear()
        outputs = jax.block_until_ready(
            compiled(weights, buffers, arguments, np.uint32(next(turns)))
        )
        if workload.training:
            buffers = outputs[0][1][0]
        latest.append(outputs)
        return outputs

    def results(outputs: Any) -> Results:
        if not workload.training:
            return {"output": [_tensor(outputs[0])]}
        (loss, _), gradients = outputs
        return {"loss": [_tensor(loss)], "gradients": [_tensor(gradients[x]) for x in weights]}

    return Prepared(step, results)


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))
