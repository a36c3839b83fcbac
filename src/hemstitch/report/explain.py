"""What became of a program: kernels, library calls, bytes, and why there are not fewer kernels."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch._guards import detect_fake_mode

from hemstitch.backend import compile_with
from hemstitch.driver.compiler import Compiled
from hemstitch.driver.cpu_kernels import stages_of
from hemstitch.errors import KernelBuildError, UnsupportedError
from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import call_of
from hemstitch.kernel_ir.nodes import Kernel, Role
from hemstitch.kernel_ir.printer import show
from hemstitch.kernel_ir.traffic import reread_bytes, traffic
from hemstitch.machine.record import Machine
from hemstitch.options import Options
from hemstitch.pipeline import GPU_LOWERING, snapshots
from hemstitch.planning.plan import KernelStep, LibraryFormStep, LibraryStep, Step
from hemstitch.runtime.aten_forms import aten_form
from hemstitch.runtime.gpu_facts import EMULATED
from hemstitch.stitching.group import Group
from hemstitch.stitching.online_softmax import with_online_softmax
from hemstitch.stitching.schedule import schedule
from hemstitch.targets.cpu.kernel import LLVMProgram
from hemstitch.targets.gpu.description import GPULowering
from hemstitch.toolchain.jit import host_target, threads_now

PAGE = Path(__file__).with_name("explain.html.jinja")
FIELDS = (
    *("name", "graph", "ops", "schemes", "reads", "writes", "bytes_again", "scratch_bytes"),
    *("shared_bytes", "barriers", "tickets", "launches", "source", "ir", "target", "origin"),
)


@dataclass(frozen=True, eq=False)
class KernelInfo:
    """One launch. `graph`: "forward", "backward" or "inference"; `target`: "cpu", "cuda" or
    "interpret"; `origin`: lines of the program. The rest is found when it is first asked for."""

    graph: str
    target: str
    origin: tuple[str, ...]
    _step: KernelStep = field(repr=False)
    _machine: Machine = field(repr=False)
    _known: Mapping[str, int] = field(repr=False)  # sizes, and `threads`: that share its work
    _threads: int = field(repr=False)  # of the process

    @property
    def name(self) -> str:
        return self._step.stitched.kernel.name

    @cached_property
    def ops(self) -> tuple[str, ...]:
        return tuple(node.op.value for group in self._step.groups for node in group.members)

    @cached_property
    def schemes(self) -> tuple[str, ...]:
        """Those of AStitch that its reductions came to (`stitching/schedule.py`), each once."""
        scheduled = [
            schedule(with_online_softmax(group), self._machine) for group in self._step.groups
        ]
        schemes = [scheme for each in scheduled for scheme in each.schemes.values()]
        return tuple(sorted({scheme.value for scheme in schemes}))

    @property
    def reads(self) -> dict[str, int]:
        """Bytes of each buffer in memory, counted anew after each barrier or ticket, those among
        them that tasks exchange too (`kernel_ir/traffic.py`)."""
        return self._traffic[0]

    @property
    def writes(self) -> dict[str, int]:
        """Bytes of each buffer, as in `reads`."""
        return self._traffic[1]

    @cached_property
    def bytes_again(self) -> int:
        """Of the reads, what an earlier phase had read, so that a cache may still hold it."""
        return reread_bytes(self._kernel, self._known)

    @property
    def scratch_bytes(self) -> int:
        """Of all tasks together."""
        program = self._lowered[1]
        if isinstance(program, LLVMProgram):
            return evaluate(program.scratch_bytes, self._known)
        _, size = program.scratch_layout(self._known)
        return int(size)

    @cached_property
    def shared_bytes(self) -> int:
        """What tasks exchange. It may be more than the scratch, since phases share memory."""
        shared = [buffer for buffer in self._kernel.buffers if buffer.role is Role.SHARED]
        return sum(evaluate(b.size * b.dtype.bytes, self._known) for b in shared)

    @property
    def barriers(self) -> int:
        """At which all tasks wait for all."""
        return self._kernel.barriers

    @property
    def tickets(self) -> int:
        """One if the last task to come does the rest alone."""
        return int(self._kernel.has_last_block)

    @property
    def launches(self) -> int:
        return 1

    @property
    def source(self) -> str:
        """What the target compiles, LLVM or Triton."""
        text: str = self._lowered[1].text
        return text

    @property
    def ir(self) -> str:
        """The kernel IR that it is printed from."""
        return show(self._kernel)

    @property
    def bytes_read(self) -> int:
        return sum(self.reads.values())

    @property
    def bytes_written(self) -> int:
        return sum(self.writes.values())

    def to_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in FIELDS}

    @property
    def stages(self) -> Iterator[tuple[str, str]]:
        """What each stage of the target leaves of the kernel, by the stage's name: the kernel IR,
        and in the end `source`."""
        for name, form in self._snapshots():
            yield name, show(form) if isinstance(form, Kernel) else form.text

    def _snapshots(self) -> Iterator[tuple[str, Any]]:
        step = self._step
        yield "stitch", step.stitched.kernel
        if self.target == "cpu":
            yield from stages_of(step, self._threads)
        else:
            lowering = GPULowering(step.groups[0].hint, self._known["threads"])
            yield from snapshots(GPU_LOWERING, step.stitched.kernel, lowering)

    @cached_property
    def _lowered(self) -> tuple[Kernel, Any]:
        """The kernel as it is printed, and what is printed."""
        *_, (_, kernel), (_, program) = self._snapshots()
        return replace(kernel, name=self.name), program

    @property
    def _kernel(self) -> Kernel:
        return self._lowered[0]

    @cached_property
    def _traffic(self) -> tuple[dict[str, int], dict[str, int]]:
        read, written = traffic(self._kernel, self._known)
        return {b.name: size for b, size in read.items()}, {b.name: n for b, n in written.items()}


@dataclass(slots=True)
class Report:
    """The kernels and library calls of all graphs of a program, in the order they run.
    `library_bytes`: of the operands and results of the calls. `once`: what runs before the first
    call only, by its name (option `freeze`)."""

    kernels: list[KernelInfo] = field(default_factory=list)
    library_calls: list[str] = field(default_factory=list)
    library_bytes: int = 0
    once: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    options: str = ""

    @property
    def kernel_count(self) -> int:
        return len(self.kernels)

    @property
    def bytes_read(self) -> int:
        return sum(kernel.bytes_read for kernel in self.kernels)

    @property
    def bytes_written(self) -> int:
        return sum(kernel.bytes_written for kernel in self.kernels)

    @property
    def bytes_again(self) -> int:
        return sum(kernel.bytes_again for kernel in self.kernels)

    def to_json(self) -> str:
        totals = {
            "kernel_count": self.kernel_count,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
        }
        rest = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({**totals, **rest}, indent=2, default=KernelInfo.to_dict)

    def to_html(self, path: str | Path) -> None:
        """All of it on one page, the sources folded away. The page needs no other file."""
        if importlib.util.find_spec("jinja2") is None:
            raise UnsupportedError(
                "a report as HTML needs Jinja, which is not installed",
                hint="pip install 'hemstitch[html]', or use to_json",
            )
        jinja2 = importlib.import_module("jinja2")  # only this needs it
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        environment.filters["bytes"] = _bytes
        page = environment.from_string(PAGE.read_text(encoding="utf-8"))
        text = page.render(report=self, calls=Counter(self.library_calls))
        Path(path).write_text(text, encoding="utf-8")

    def __str__(self) -> str:
        calls = len(self.library_calls)
        moved = f"{_bytes(self.bytes_read)} read, {_bytes(self.bytes_written)} written"
        moved += f"; calls: {_bytes(self.library_bytes)}" if calls else ""
        lines = [f"{self.kernel_count} kernels, {calls} library calls; kernels: {moved}"]
        for kernel in self.kernels:
            meetings = f", {kernel.barriers} barriers" if kernel.barriers else ""
            meetings += ", a ticket" if kernel.tickets else ""
            lines.append(
                f"  {kernel.graph:9} {kernel.name}: {len(kernel.ops)} ops, "
                f"{_bytes(kernel.bytes_read)} in, {_bytes(kernel.bytes_written)} out{meetings}"
            )
            lines.extend(f"            {place}" for place in kernel.origin[:3])
        counts = Counter(self.library_calls)
        lines.extend(f"  library   {name} x {count}" for name, count in counts.items())
        lines.extend(f"  once      {name} x {n}" for name, n in Counter(self.once).items())
        lines.extend(f"  apart     {refusal}" for refusal in self.refusals)
        return "\n".join(lines)


def explain(
    function: Callable[..., Any],
    *args: Any,
    options: Mapping[str, object] | None = None,
    backward: bool = False,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> Report:
    """Compile `function` (or a module) for these arguments, run it once, say what became of it.

    With `backward`, the sum of all floating-point results is differentiated too. Arguments and
    the module's buffers and gradients are left as they were. With fake tensors nothing is built or
    run: the device that they claim to be on need not be there. Nothing is left for later, whatever
    the option `asynchronous` says.
    """
    parsed = Options.parse(options, None)
    at_once = replace(parsed, asynchronous=False)
    report = Report(options=str(parsed))
    given = _tensors((function, args, kwargs))
    fake = detect_fake_mode(given)
    if fake is not None:
        _check_autograd(given)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        return compile_with(gm, inputs, at_once, partial(_record, report), fake is not None)

    is_module = isinstance(function, torch.nn.Module)
    target = copy.deepcopy(function) if is_module and fake is None else function
    gradients = [tensor.grad for tensor in given]
    torch._dynamo.reset()
    with fake or nullcontext():
        compiled = torch.compile(target, backend=backend, dynamic=dynamic)
        results = compiled(*_own(args), **_own(kwargs))
        if backward:
            _differentiate(results)
    for tensor, gradient in zip(given, gradients):
        tensor.grad = gradient
    torch._dynamo.reset()
    return report


def _tensors(value: object) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for leaf in torch.utils._pytree.tree_leaves(value):
        if isinstance(leaf, torch.nn.Module):
            found += [*leaf.parameters(), *leaf.buffers()]
        elif isinstance(leaf, torch.Tensor):
            found.append(leaf)
    return found


def _check_autograd(tensors: Sequence[torch.Tensor]) -> None:
    """Autograd ends the process where torch was built without support for a tensor's device."""
    known = torch.accelerator.current_accelerator()
    for tensor in tensors:
        kind = tensor.device.type
        if tensor.requires_grad and kind != "cpu" and (known is None or known.type != kind):
            raise UnsupportedError(
                f"this build of PyTorch has no autograd for fake tensors on {kind}",
                hint=f"use a build with {kind}, or look at the forward pass under torch.no_grad()",
            )


def _own(value: Any) -> Any:
    """Copies of tensors, so that a mutating program leaves the caller's alone."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(_own(part) for part in value)
    if isinstance(value, dict):
        return {key: _own(part) for key, part in value.items()}
    return value


def _differentiate(results: Any) -> None:
    leaves = torch.utils._pytree.tree_leaves(results)
    sums = [x.sum() for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    torch.stack([each.float() for each in sums]).sum().backward()  # type: ignore[no-untyped-call]


def _record(report: Report, kind: str, compiled: Compiled) -> None:
    for number, step in enumerate(compiled.plan.steps):
        if isinstance(step, LibraryStep):
            report.library_calls.append(aten_form(call_of(step.node)).name)
            report.library_bytes += _library_bytes(step, compiled.graph.hints)
        elif isinstance(step, LibraryFormStep):
            _record_library_form(report, (step.group,), str(step.why))
        else:
            info = _kernel_info(kind, step, compiled)
            launch = compiled.launches[number] if compiled.launches else None
            failure = _failure(info) if launch is None else launch.failure
            if failure:  # then it runs in its library form as well
                _record_library_form(report, step.groups, failure)
            else:
                report.kernels.append(info)
    report.once.extend(_name(step) for plan in compiled.program.before for step in plan.steps)
    report.refusals.extend(f"{pair}: {refusal}" for pair, refusal in compiled.plan.refusals)


def _failure(info: KernelInfo) -> str:
    """Why what was only planned could not be built."""
    try:
        return info.source and ""
    except KernelBuildError as error:
        return str(error)


def _name(step: Step) -> str:
    match step:
        case KernelStep():
            return step.stitched.kernel.name
        case LibraryStep():
            return str(step.node.attr)
        case LibraryFormStep():
            return " ".join(node.op.value for node in step.group.members)


def _record_library_form(report: Report, groups: Sequence[Group], why: str) -> None:
    ops = [node.op.value for group in groups for node in group.members]
    report.library_calls.extend(ops or ["copy"])
    report.library_bytes += sum(_form_bytes(group) for group in groups)
    report.refusals.append(f"not a kernel: {why}")


def _library_bytes(step: LibraryStep, hints: Mapping[str, int]) -> int:
    """Of operands, each once, and of the results that somebody reads."""
    operands = [node.type.bytes for node in dict.fromkeys(step.node.inputs)]
    results = [tensor.bytes for tensor in step.results if tensor is not None]
    return sum(evaluate(size, hints) for size in (*operands, *results))


def _form_bytes(group: Group) -> int:
    values = (*group.reads, *(write.value for write in group.writes))
    return sum(group.hint(value.type.bytes) for value in values)


def _kernel_info(kind: str, step: KernelStep, compiled: Compiled) -> KernelInfo:
    members = [node for group in step.groups for node in group.members]
    origins = [compiled.graph.origins[n] for n in members if n in compiled.graph.origins]
    places = dict.fromkeys(f"{o.file}:{o.line} {o.source}".strip() for o in origins if o.file)
    known = {**compiled.graph.hints, "threads": _tasks(compiled)}
    own = step, compiled.machine, known, threads_now()
    return KernelInfo(kind, compiled.target, tuple(places), *own)


def _tasks(compiled: Compiled) -> int:
    """How many share a kernel's work."""
    if compiled.target == "interpret":
        return EMULATED
    if compiled.target == "cpu":
        return host_target().threads
    return compiled.machine.threads


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
