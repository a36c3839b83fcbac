"""One model in a process of its own: built, run by eager PyTorch in f32 and f64, then compiled, for
an answer and for gradients. Gives what is known after each step, so that a crash has its place."""

from __future__ import annotations

import contextlib
import copy
import importlib
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

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
# Of modules: what they leave out at random, by numbers that are not eager's.
DROPS = ("drop_prob", "drop_rate")
PHASES = ("inference", "training")
OF_EAGER = 4.0  # times eager's own distance from float64
FLOOR = 1e-5  # of the largest element; rounding alone
SEEDS = (2, 3)
DISTURBANCES = 5
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


@dataclass(frozen=True, slots=True)
class Run:
    """Results of one call: compiled, in eager, and in eager in float64, where that can be."""

    ours: Results
    eager: Results
    true: Results


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
    model = Model(ready(model.module, phase), model.inputs)
    try:
        eager, again = (results_of(model, model.module, seed) for seed in SEEDS)
    except Exception as error:
        return {"state": "not run", "why": _short(error)}
    if any(not torch.equal(eager[key], again[key]) for key in eager):
        return {"state": "not run", "why": "eager draws random numbers"}
    start = time.perf_counter()
    compiled = torch.compile(model.module, backend=backend)
    ours, fallbacks, raised = _tried(model, compiled)
    record: dict[str, Any] = {"seconds": _since(start), "fallbacks": fallbacks}
    if ours is None:
        theirs = _tried(model, torch.compile(model.module, backend="aot_eager"))[2]
        state = "raised" if theirs is None else "not traced"
        return record | {"state": state, "why": raised, "aot_eager": theirs}
    wide = _wide(model)
    record["exact"] = wide is not None
    if _worst([Run(ours, eager, wide or eager)]) is None:
        return record | {"state": "right"}
    worst = _worst(_disturbed(model, compiled))
    if worst is None:
        return record | {"state": "right", "sensitive": True}
    other = _worst(_disturbed(model, torch.compile(model.module, backend="aot_eager")))
    return record | {"state": "wrong" if other is None else "wrong as aot_eager", "why": worst}


def ready(module: nn.Module, phase: str) -> nn.Module:
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name in DROPS:
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module.train(phase == "training")


def _tried(
    model: Model, compiled: Callable[..., object]
) -> tuple[Results | None, list[str], str | None]:
    """Results, warnings of what fell back, what was raised."""
    torch._dynamo.reset()
    results, raised = None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            results = results_of(model, compiled)
        except Exception as error:
            raised = _short(error)
    said = [str(w.message) for w in caught if str(w.message).startswith(FALLBACKS)]
    return results, said, raised


def _disturbed(model: Model, compiled: Callable[..., object]) -> list[Run]:
    """Runs with parameters and inputs that are off by rounding. Some models, with batch norms of
    two values or with a ReLU near zero, make much of it, in eager as when they are compiled."""
    before = [parameter.detach().clone() for parameter in model.module.parameters()]
    runs = []
    for seed in range(DISTURBANCES):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter, value in zip(model.module.parameters(), before):
                parameter.copy_(_off(value, generator))
        inputs = {key: _off(value, generator) for key, value in model.inputs.items()}
        disturbed = Model(model.module, inputs)
        eager = results_of(disturbed, model.module)
        runs.append(Run(results_of(disturbed, compiled), eager, _wide(disturbed) or eager))
    with torch.no_grad():
        for parameter, value in zip(model.module.parameters(), before):
            parameter.copy_(value)
    return runs


def _off(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    noise = 2 * torch.rand(value.shape, generator=generator, dtype=value.dtype) - 1
    return value * (1 + noise * torch.finfo(value.dtype).eps)


def results_of(model: Model, function: Callable[..., object], seed: int = SEEDS[0]) -> Results:
    """Results by their places; in training, gradients by the names of parameters as well. Buffers
    are as they were, afterwards: a step of training changes them."""
    buffers = {name: buffer.clone() for name, buffer in model.module.named_buffers()}
    inputs = {key: _copied(value) for key, value in model.inputs.items()}
    torch.manual_seed(seed)
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
    before = torch.get_default_dtype()
    with contextlib.suppress(Exception), _Widened():
        wide = Model(copy.deepcopy(model.module).double(), inputs)
        torch.set_default_dtype(torch.float64)
        try:
            return results_of(wide, wide.module)
        finally:
            torch.set_default_dtype(before)
    return None


class _Widened(TorchFunctionMode):
    """What a model computes in float32 whatever its parameters are, as angles of positions, is in
    float64 as well. What it remembers of a step before is copied, as parameters are."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        wider = {torch.float32: torch.float64}
        leaves = tree_map_only(torch.dtype, lambda dtype: wider.get(dtype, dtype), (args, kwargs))
        double = torch.Tensor.double if func is torch.Tensor.float else func
        return double(*leaves[0], **(leaves[1] or {}))


def _worst(runs: Sequence[Run]) -> str | None:
    """What is further from float64 in every run than eager's own distance in any run allows."""
    ours, eager, true = runs[0].ours, runs[0].eager, runs[0].true
    if ours.keys() != eager.keys():
        return f"has other results: {sorted(ours.keys() ^ eager.keys())[:3]}"
    gradients = [_largest(true[key]) for key in true if key.startswith("gradient")]
    least = SHARE * max(gradients, default=0.0)
    for key, value in eager.items():
        if ours[key].shape != value.shape or ours[key].dtype != value.dtype:
            return f"{key}: {ours[key].dtype} {tuple(ours[key].shape)}"
        if not value.isfinite().all():
            if not torch.equal(ours[key].isfinite(), value.isfinite()):
                return f"{key}: finite where eager is not, or the other way round"
            continue
        scale = max(_largest(true[key]), least if key.startswith("gradient") else 0.0)
        mine = min(_apart(run.ours[key], run.true[key]) for run in runs)
        theirs = max(_apart(run.eager[key], run.true[key]) for run in runs)
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
