"""What no plan of a graph can do with less, so that plans can be judged without a rival."""

from __future__ import annotations

from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Graph, Op
from hemstitch.kernel_ir.traffic import traffic
from hemstitch.planning.materialisation import materialisation
from hemstitch.planning.plan import LibraryStep
from hemstitch.planning.work import Vertex, Work, is_library_vertex
from hemstitch.stitching.group import Tensor
from tests.papers.harness import Planned


def least_kernels(graph: Graph) -> int:
    """On the longest chain: what stands before a library call and what stands behind it are never
    one kernel."""
    work = Work(graph, materialisation(graph))
    after: dict[Vertex, list[Vertex]] = {vertex: [] for vertex in work.vertices}
    waits = dict.fromkeys(work.vertices, 0)
    for first, second in work.edges:
        after[first].append(second)
        waits[second] += 1
    count = {vertex: int(not is_library_vertex(vertex)) for vertex in work.vertices}
    ready = [vertex for vertex in work.vertices if not waits[vertex]]
    for vertex in ready:
        for reader in after[vertex]:
            is_new = is_library_vertex(vertex) and not is_library_vertex(reader)
            count[reader] = max(count[reader], count[vertex] + is_new)
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return max(count.values(), default=0)


def least_reads(found: Planned) -> int:
    """Bytes of what kernels must load: arguments and what library calls leave, each once."""
    least: dict[Tensor, int] = {}
    for step in found.steps:
        moved, _ = traffic(step.stitched.kernel, found.sizes)
        for tensor, buffer in zip(step.stitched.tensors, step.stitched.kernel.parameters):
            if buffer in moved and tensor.node.op in (Op.INPUT, Op.RESULT):
                least[tensor] = min(least.get(tensor, moved[buffer]), moved[buffer])
    return sum(least.values())


def least_writes(found: Planned) -> int:
    """Bytes of what kernels must leave: results, and what library calls read."""
    calls = (step for step in found.plan.steps if isinstance(step, LibraryStep))
    needed = {alias.tensor for alias in found.plan.outputs}
    needed |= {alias.tensor for call in calls for alias in call.operands}
    written = {tensor for step in found.steps for tensor in step.writes}
    return sum(evaluate(tensor.bytes, found.sizes) for tensor in written & needed)
