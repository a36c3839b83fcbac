"""One model in a process of its own: built, run by eager PyTorch in f32 and f64, then compiled, for
an answer and for gradients. Gives what is known after each step, so that a crash has its place."""

from __future__ import annotations

import contextlib
import copy
import importlib
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo import operators
from benchmarks.zoo.model import Library, Model, NotBuilt, first_that_runs, tensors

operators.define()

LIBRARIES = {
    "transformers": ("hugging_face", "LIBRARY"),
    "timm": ("images", "TIMM"),
    "torchvision": ("images", "TORCHVISION_LIBRARY"),
    "diffusers": ("diffusion", "LIBRARY"),
    "torch_geometric": ("graph_networks", "LIBRARY"),
}
FALLBACKS = ("H007", "H008")
PHASES = ("inference", "training")
OF_EAGER = 4.0  # times eager's own distance from float64
FLOOR = 1e-5  # of the largest element; rounding alone
SHARE = 1e-2  # of the largest gradient: what is smaller is rounding of what cancels
Results = dict[str, Tensor]


def library(name: str) -> Library:
    module, attribute = LIBRARIES[name]
    described: Library = getattr(importlib.import_module(f"benchmarks.zoo.{module}"), attribute)
    return described


@dataclass(frozen=True, slots=True)
class How:
    backend: str
    threads: int
    phases: tuple[str, ...]


def judged(package: str, name: str, how: How) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(how.threads)
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    try:
        model = first_that_runs(library(package).attempts(name))
    except NotBuilt as error:
        yield {"built": False, "why": str(error)}
        return
    count = sum(parameter.numel() for parameter in model.module.parameters())
    yield {"built": True, "parameters": count, "build_seconds": _since(start)}
    for phase in how.phases:
        yield {phase: _phase(model, phase, how.backend)}


def _phase(model: Model, phase: str, backend: str) -> dict[str, Any]:
    model = Model(_ready(model.module, phase), model.inputs)
    try:
        eager, again = _results(model, model.module), _results(model, model.module)
    except Exception as error:
        return {"state": "not run", "why": _short(error)}
    if any(not torch.equal(eager[key], again[key]) for key in eager):
        return {"state": "not run", "why": "eager gives other numbers each time"}
    start = time.perf_counter()
    compiled, fallbacks, raised = _compiled(model, backend)
    record: dict[str, Any] = {"seconds": _since(start), "fallbacks": fallbacks}
    if compiled is None:
        _, _, theirs = _compiled(model, "aot_eager")
        state = "raised" if theirs is None else "not traced"
        return record | {"state": state, "why": raised, "aot_eager": theirs}
    wide = _wide(model)
    worst = _worst(compiled, eager, wide)
    if worst is None:
        return record | {"state": "right", "exact": wide is not None}
    other, _, _ = _compiled(model, "aot_eager")
    is_same = other is not None and _worst(other, eager, wide) is not None
    return record | {"state": "wrong as aot_eager" if is_same else "wrong", "why": worst}


def _ready(module: nn.Module, phase: str) -> nn.Module:
    for part in module.modules():
        if isinstance(part, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
            part.p = 0.0
    return module.train(phase == "training")


def _compiled(model: Model, backend: str) -> tuple[Results | None, list[str], str | None]:
    """Results, warnings of what fell back, what was raised."""
    torch._dynamo.reset()
    results, raised = None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            results = _results(model, torch.compile(model.module, backend=backend))
        except Exception as error:
            raised = _short(error)
    said = [str(w.message) for w in caught if str(w.message).startswith(FALLBACKS)]
    return results, said, raised


def _results(model: Model, function: Callable[..., object]) -> Results:
    """Results by their places; in training, gradients by the names of parameters as well. Buffers
    are as they were, afterwards: a step of training changes them."""
    buffers = {name: buffer.clone() for name, buffer in model.module.named_buffers()}
    inputs = {key: _copied(value) for key, value in model.inputs.items()}
    torch.manual_seed(2)
    with torch.set_grad_enabled(model.module.training):
        answers = tensors(function(**inputs))
    results = {f"result {place}": value.detach().clone() for place, value in enumerate(answers)}
    if model.module.training:
        model.module.zero_grad()
        loss = sum(_loss(value) for value in answers if value.requires_grad)
        if isinstance(loss, Tensor):
            loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in model.module.named_parameters():
            if parameter.grad is not None:
                results[f"gradient of {name}"] = parameter.grad.clone()
        model.module.zero_grad()
    for name, buffer in model.module.named_buffers():
        if name in buffers:
            buffer.data.copy_(buffers[name])
    return results


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _loss(value: Tensor) -> Tensor:
    weights = torch.linspace(0.5, 1, value.numel(), dtype=value.dtype).view(value.shape)
    return (value * weights).mean()


def _wide(model: Model) -> Results | None:
    """In float64; None where the model has operations that do not take it."""
    inputs = {
        key: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for key, value in model.inputs.items()
    }
    with contextlib.suppress(Exception):
        wide = Model(copy.deepcopy(model.module).double(), inputs)
        return _results(wide, wide.module)
    return None


def _worst(results: Results, eager: Results, wide: Results | None) -> str | None:
    """What is further from float64 than eager's own distance allows."""
    true = eager if wide is None or wide.keys() != eager.keys() else wide
    if results.keys() != eager.keys():
        return f"has other results: {sorted(results.keys() ^ eager.keys())[:3]}"
    gradients = [_largest(true[key]) for key in true if key.startswith("gradient")]
    least = SHARE * max(gradients, default=0.0)
    for key, value in eager.items():
        ours = results[key]
        if ours.shape != value.shape or ours.dtype != value.dtype:
            return f"{key}: {ours.dtype} {tuple(ours.shape)}"
        if not value.isfinite().all():
            if not torch.equal(ours.isfinite(), value.isfinite()):
                return f"{key}: finite where eager is not, or the other way round"
            continue
        scale = max(_largest(true[key]), least if key.startswith("gradient") else 0.0)
        mine, theirs = _apart(ours, true[key]), _apart(value, true[key])
        if not mine <= OF_EAGER * theirs + FLOOR * scale:
            return f"{key}: off by {mine:.2g}, eager by {theirs:.2g}, of {scale:.2g}"
    return None


def _largest(value: Tensor) -> float:
    return float(value.double().abs().max()) if value.numel() else 0.0


def _apart(value: Tensor, true: Tensor) -> float:
    return _largest(value.double() - true.double())


def _short(error: BaseException) -> str:
    text = re.sub(r"\s+", " ", str(error))
    return f"{type(error).__name__}: {text[:400]}"


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 1)
