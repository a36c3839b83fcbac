"""The whole compiler on a page: the stages of each target, top to bottom. Read this file first.

    Dynamo's graph --autograd--> joint graph --cut--> forward, backward     (torch.fx, in place)
    captured graph -> simplified graph -> plan -> kernels -> text           (ours, immutable)

A stage takes a form and gives a new one, which the form's verifier accepts (option `check`). The
driver runs the tables; `snapshots` gives what each stage leaves, to whoever wants to look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from hemstitch.before_autograd.attention_lengths import as_many_values_as_keys
from hemstitch.before_autograd.interpolation import interpolate_by_axes
from hemstitch.before_autograd.masked_assignment import choose_by_masks
from hemstitch.before_autograd.mutation_layouts import keep_layouts
from hemstitch.before_autograd.overlapping_writes import write_copies
from hemstitch.before_autograd.product_gradients import multiply_along
from hemstitch.cache.plans import planned
from hemstitch.capture.as_strided import resolve_as_strided
from hemstitch.errors import InternalError
from hemstitch.exactness import EXACT, FINITE, ROUNDING, Exactness
from hemstitch.gpu_vendors import VENDORS
from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph
from hemstitch.ir.verifier import verify as verify_graph
from hemstitch.joint.channels_last import propagate_channels_last
from hemstitch.joint.partition import merge_repetitions
from hemstitch.joint.singular_values import drop_unread_vectors
from hemstitch.joint.user_rewrites import apply_user_rewrites
from hemstitch.kernel_ir.passes.cascade_summation import cascade_sums
from hemstitch.kernel_ir.passes.common_subexpressions import eliminate_common_subexpressions
from hemstitch.kernel_ir.passes.compensated_sums import compensate_sums
from hemstitch.kernel_ir.passes.diagonal_fill import fill_diagonals
from hemstitch.kernel_ir.passes.index_set_splitting import split_loops, split_rows
from hemstitch.kernel_ir.passes.loop_invariants import hoist_loop_invariants
from hemstitch.kernel_ir.passes.row_interleaving import interleave_rows
from hemstitch.kernel_ir.passes.scalarisation import scalarise
from hemstitch.kernel_ir.passes.sorted_scatter_add import sort_scatter_adds
from hemstitch.kernel_ir.passes.unrolling import unroll_reductions
from hemstitch.kernel_ir.verifier import verify as verify_kernel
from hemstitch.machine.record import Machine
from hemstitch.matmul.convolution_weights import lay_out_convolution_weights
from hemstitch.matmul.im2col import im2col_values, lower_to_im2col
from hemstitch.matmul.lowering.blocking import block_matmuls
from hemstitch.matmul.lowering.contraction_loops import expand_contractions
from hemstitch.matmul.mask_analysis import mark_masked_matmuls
from hemstitch.options import Options
from hemstitch.planning.plan import Plan
from hemstitch.planning.prepacking import prepack
from hemstitch.planning.program import Program
from hemstitch.planning.verifier import verify_plan
from hemstitch.rewrites.algebra import ALGEBRA
from hemstitch.rewrites.common_operands import merge_common_operands
from hemstitch.rewrites.constant_folding import FOLD
from hemstitch.rewrites.dead_rows import eliminate_dead_rows, live_rows
from hemstitch.rewrites.engine import rewrite
from hemstitch.rewrites.logic import LOGIC
from hemstitch.rewrites.matmul_merging import merge_matmuls
from hemstitch.rewrites.reassociation import REASSOCIATE, common_factor
from hemstitch.rewrites.view_propagation import LAYOUT, slicing
from hemstitch.rewrites.weight_folding import split_weight_work
from hemstitch.targets.cpu.description import CPULowering, Target
from hemstitch.targets.cpu.kernel import print_llvm
from hemstitch.targets.cpu.non_temporal import mark_non_temporal_stores
from hemstitch.targets.gpu.kernel import print_triton
from hemstitch.targets.gpu.loop_collapsing import collapse_loops
from hemstitch.targets.gpu.loop_fission import fission_loops
from hemstitch.targets.gpu.row_tiling import tile_rows
from hemstitch.targets.gpu.tile_peeling import peel_tiles
from hemstitch.targets.gpu.work_distribution import distribute_work

SIMPLIFY = (*FOLD, *ALGEBRA, *LOGIC)
ARRANGE = (*SIMPLIFY, *LAYOUT)


class Form(Enum):
    """What stages take and give. A `PROGRAM` says what each call runs and what runs once, before
    the first call: as graphs, then as plans."""

    TRACED = "torch.fx"
    JOINT = "joint graph"
    GRAPH = "graph IR"
    PROGRAM = "program"
    KERNEL = "kernel IR"
    TEXT = "text"


TRACED, JOINT, GRAPH, PROGRAM, KERNEL, TEXT = Form


def always(_: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Stage:
    """A row of the tables below. `run`: from a form, and what stages of its kind are told, to the
    next form; a graph of torch.fx is changed in place. `when`: of what it is told, whether it runs.
    `exactness`: what it keeps of the program's meaning; the option `exact` leaves others out."""

    name: str
    takes: Form
    gives: Form
    run: Callable[[Any, Any], Any]
    when: Callable[[Any], bool] = always
    exactness: Exactness = EXACT

    def runs(self, told: Any) -> bool:
        """Kernels are lowered by exact stages, which are told of no options."""
        return self.when(told) and (self.exactness is EXACT or not told.options.exact)


def stages_to(stages: Iterable[Stage], *forms: Form) -> tuple[Stage, ...]:
    """Those that give one of these forms."""
    return tuple(stage for stage in stages if stage.gives in forms)


@dataclass(frozen=True, slots=True)
class Tracing:
    """What stages on torch.fx are told. `is_joint`: the graph has forward and backward."""

    options: Options
    is_joint: bool


@dataclass(frozen=True, slots=True)
class Simplification:
    """What stages on graphs are told that every target has. `is_training`: the graph is forward or
    backward."""

    builder: Builder
    options: Options
    is_training: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Compilation(Simplification):
    """What all stages on graphs and programs are told. `arguments`: how many a call brings, with
    the constants; `processor`: that this runs on."""

    machine: Machine
    arguments: int
    processor: Target

    @property
    def multiplies(self) -> bool:
        """Kernels may multiply matrices."""
        return self.options.inlines_matmuls and bool(self.machine.matrix_units)


# --- torch.fx: what must be said before autograd, and what is said of the graphs that it gives

BEFORE_AUTOGRAD = (
    Stage("copy what overlapping writes read", TRACED, TRACED, lambda gm, _: write_copies(gm)),
    Stage("keep layouts of mutated values", TRACED, TRACED, lambda gm, _: keep_layouts(gm)),
    Stage("equate lengths in attention", TRACED, TRACED, lambda gm, _: as_many_values_as_keys(gm)),
    Stage(
        "interpolate axis by axis",
        TRACED,
        TRACED,
        lambda gm, _: interpolate_by_axes(gm),
        exactness=ROUNDING,
    ),
    Stage("gradients of products", TRACED, TRACED, lambda gm, _: multiply_along(gm)),
    Stage("masked assignments as choices", TRACED, TRACED, lambda gm, _: choose_by_masks(gm)),
)

AFTER_AUTOGRAD = (
    Stage(
        "rewrites of the user",
        TRACED,
        TRACED,
        lambda gm, tracing: apply_user_rewrites(gm, tracing.options.rewrites),
    ),
    Stage("as_strided as slices", TRACED, TRACED, lambda gm, _: resolve_as_strided(gm.graph)),
    Stage(
        "common subexpressions",
        TRACED,
        TRACED,
        lambda gm, _: merge_repetitions(gm.graph),
        when=lambda tracing: tracing.is_joint,
    ),
    Stage("unread singular vectors", TRACED, TRACED, lambda gm, _: drop_unread_vectors(gm.graph)),
    Stage(
        "propagate channels-last",
        TRACED,
        TRACED,
        lambda gm, tracing: propagate_channels_last(
            gm.graph, rows=tracing.options.inlines_matmuls and not tracing.is_joint
        ),
    ),
)

# --- the joint graph of a step of training: what both passes must agree on

JOINT_REWRITES = (
    Stage(
        "dead rows",
        JOINT,
        JOINT,
        lambda joint, _: joint if joint.has_checkpoints else joint.rewritten(live_rows),
        exactness=FINITE,
    ),
    Stage(
        "im2col",
        JOINT,
        JOINT,
        lambda joint, _: joint.rewritten(im2col_values) if joint.is_on_cpu else joint,
    ),
    Stage(
        "mask analysis",
        JOINT,
        JOINT,
        lambda joint, _: joint.with_bands(),
        exactness=FINITE,
    ),
)

# --- graph IR: every target


def simplify(graph: Graph, told: Simplification) -> Graph:
    return rewrite(graph, SIMPLIFY, told.builder)


def arrange(graph: Graph, told: Simplification) -> Graph:
    """After a slice has moved, more values have one reader, so it is tried again."""
    before = None
    while graph is not before:
        rules = (*ARRANGE, slicing(graph))
        before, graph = graph, rewrite(graph, rules, told.builder)
    return graph


def reassociate(graph: Graph, told: Simplification) -> Graph:
    rules = (*REASSOCIATE, common_factor(graph), *ARRANGE)
    return rewrite(graph, rules, told.builder)


SIMPLIFICATION = (
    Stage(
        "dead rows",
        GRAPH,
        GRAPH,
        lambda g, c: eliminate_dead_rows(g, c.builder),
        # Of a step of training it is decided before forward and backward are parted.
        when=lambda c: not c.is_training,
        exactness=FINITE,
    ),
    Stage(
        "mask analysis",
        GRAPH,
        GRAPH,
        lambda g, c: mark_masked_matmuls(g, c.builder),
        exactness=FINITE,
    ),
    # Before others: constants show which branches and axes matter.
    Stage("simplify", GRAPH, GRAPH, simplify),
    Stage("arrange views", GRAPH, GRAPH, arrange),
    Stage("common operands", GRAPH, GRAPH, lambda g, c: merge_common_operands(g, c.builder)),
    # Behind all that makes two operands the same.
    Stage(
        "merge added matmuls",
        GRAPH,
        GRAPH,
        lambda g, c: merge_matmuls(g, c.builder),
        exactness=ROUNDING,
    ),
    Stage(
        "reassociate",
        GRAPH,
        GRAPH,
        reassociate,
        when=lambda c: c.options.reassociate,
        exactness=FINITE,
    ),
    # What became one node has become x - x, max(x, x), ...
    Stage("arrange views again", GRAPH, GRAPH, arrange),
)


def split_weights(graph: Graph, compilation: Compilation) -> Program[Graph]:
    once, rest = split_weight_work(graph, compilation.builder, compilation.arguments)
    return Program(rest, () if once is None else (once,))


def plan(program: Program[Graph], compilation: Compilation) -> Program[Plan]:
    machine, options = compilation.machine, compilation.options
    before = tuple(planned(graph, machine, options) for graph in program.before)
    return Program(planned(program.each_call, machine, options), before)


PLANNING = (
    Stage("split off what frozen weights decide", GRAPH, PROGRAM, split_weights),
    Stage("plan", PROGRAM, PROGRAM, plan),
)

# --- processors: the kernel IR down to LLVM


def prepack_operands(program: Program[Plan], compilation: Compilation) -> Program[Plan]:
    """What packs frozen weights is one part more. Perhaps no code can be made of it."""
    free = compilation.arguments + sum(len(plan.outputs) for plan in program.before)
    stages = stages_before(CPU_LOWERING, "block matmuls")
    until_blocking = partial(run_stages, stages, told=CPULowering(compilation.processor))
    packed = prepack(program.each_call, until_blocking, compilation.processor.threads, free)
    packing = () if packed.once is None else (packed.once,)
    return Program(packed.plan, (*program.before, *packing), otherwise=program)


CPU = (
    Stage(
        "im2col",
        GRAPH,
        GRAPH,
        lambda g, c: lower_to_im2col(g, c.builder),
        # Of a step of training it is decided before forward and backward are parted.
        when=lambda c: not c.is_training,
    ),
    *SIMPLIFICATION,
    Stage(
        "lay out weights of convolutions",
        GRAPH,
        GRAPH,
        lambda g, c: lay_out_convolution_weights(g, c.builder, c.multiplies, c.options.exact),
    ),
    *PLANNING,
    Stage("prepack matmul operands", PROGRAM, PROGRAM, prepack_operands),
    Stage("mark non-temporal stores", KERNEL, KERNEL, mark_non_temporal_stores),
    Stage("hoist loop invariants", KERNEL, KERNEL, lambda k, _: hoist_loop_invariants(k)),
    Stage("scalarise running maxima", KERNEL, KERNEL, lambda k, _: scalarise(k)),
    Stage("split rows where choices change", KERNEL, KERNEL, lambda k, _: split_rows(k)),
    Stage(
        "block matmuls",
        KERNEL,
        KERNEL,
        lambda k, cpu: block_matmuls(k, cpu.target.threads, cpu.blocking),
    ),
    Stage("unroll short reductions", KERNEL, KERNEL, lambda k, _: unroll_reductions(k)),
    Stage("interleave rows", KERNEL, KERNEL, lambda k, cpu: interleave_rows(k, cpu.target.lanes)),
    Stage("reuse subexpressions", KERNEL, KERNEL, lambda k, _: eliminate_common_subexpressions(k)),
    Stage("expand contractions", KERNEL, KERNEL, lambda k, _: expand_contractions(k)),
    Stage("fill around diagonals", KERNEL, KERNEL, lambda k, _: fill_diagonals(k)),
    Stage("split loops where choices change", KERNEL, KERNEL, lambda k, _: split_loops(k)),
    Stage(
        "sort sums by index",
        KERNEL,
        KERNEL,
        lambda k, cpu: sort_scatter_adds(k, cpu.target.threads),
    ),
    Stage("compensate sums in memory", KERNEL, KERNEL, lambda k, _: compensate_sums(k)),
    Stage(
        "cascade long sums",
        KERNEL,
        KERNEL,
        lambda k, cpu: cascade_sums(k, cpu.cascade_block, cpu.unroll_factor),
    ),
    Stage("print LLVM", KERNEL, TEXT, print_llvm),
)

CPU_LOWERING = stages_to(CPU, KERNEL, TEXT)

# --- GPUs: the kernel IR down to Triton

GPU = (
    *SIMPLIFICATION,
    *PLANNING,
    Stage("collapse loops", KERNEL, KERNEL, lambda k, _: collapse_loops(k)),
    Stage("peel to even tiles", KERNEL, KERNEL, lambda k, _: peel_tiles(k)),
    Stage("fission", KERNEL, KERNEL, lambda k, _: fission_loops(k)),
    Stage("tile rows", KERNEL, KERNEL, lambda k, gpu: tile_rows(k, gpu.hint, gpu.programs)),
    Stage("distribute work", KERNEL, KERNEL, lambda k, gpu: distribute_work(k, gpu.programs)),
    Stage("print Triton", KERNEL, TEXT, print_triton),
)

GPU_LOWERING = stages_to(GPU, KERNEL, TEXT)
PIPELINES = {"cpu": CPU, **dict.fromkeys(VENDORS, GPU), "interpret": GPU}  # by the target

# --- running the tables


def verify_program(program: Program[Any]) -> None:
    """What packs operands computes no graph: of it only kernels are verified."""
    for part in program.parts:
        if isinstance(part, Graph):
            verify_graph(part)
            continue
        if part is program.each_call:
            verify_plan(part)
        for step in part.kernels:
            verify_kernel(step.stitched.kernel)


VERIFIERS: Mapping[Form, Callable[[Any], None]] = {
    TRACED: lambda gm: gm.graph.lint(),
    JOINT: lambda joint: joint.traced.lint(),
    GRAPH: verify_graph,
    PROGRAM: verify_program,
    KERNEL: verify_kernel,
}


def stages_before(stages: Sequence[Stage], name: str) -> tuple[Stage, ...]:
    """Those before the one of this name."""
    return tuple(stages[: [stage.name for stage in stages].index(name)])


def snapshots(
    stages: Iterable[Stage], form: Any, told: object, check: bool = False
) -> Iterator[tuple[str, Any]]:
    """What each stage leaves, by its name, as it runs. `told`: what stages of this kind are told.
    `check`: it is verified, which raises InternalError."""
    for stage in stages:
        if stage.runs(told):
            result = stage.run(form, told)
            form = form if stage.gives is TRACED else result
            if check and stage.gives in VERIFIERS:
                _verify(stage, form)
            yield stage.name, form


def _verify(stage: Stage, form: Any) -> None:
    try:
        VERIFIERS[stage.gives](form)
    except InternalError as error:
        what = f'the stage "{stage.name}" left what does not hold: {error.message}'
        raise InternalError(what, where=error.where) from error


def run_stages(stages: Iterable[Stage], form: Any, told: object, check: bool = False) -> Any:
    """What the last stage leaves; `form` itself where none runs."""
    last = form
    for _, left in snapshots(stages, form, told, check):
        last = left
    return last
