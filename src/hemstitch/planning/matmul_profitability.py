"""Profitability check of inlined matmuls. Takes merged clusters, gives the calls that return to the
library.

A matmul stays inlined where its kernel saves more time in memory traffic and launches than the
library's GEMM is faster (`matmul/gain.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hemstitch.ir.calls import Call
from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.types import DType
from hemstitch.machine.record import Execution, Machine
from hemstitch.matmul.gain import (
    IMPOSSIBLE,
    MatmulGain,
    MatmulKernel,
    below,
    call_seconds,
    matmul_seconds,
    packed_elements,
)
from hemstitch.matmul.inlined_matmuls import InlinedMatmul, InlinedMatmuls, PatternSavings
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.topological_order import Cluster
from hemstitch.planning.work import Vertex
from hemstitch.stitching.refusal import Refusal


def without_gain(inlined: InlinedMatmuls, clustering: Clustering) -> dict[Call, Refusal]:
    """The calls that are faster by the library, with the reason."""
    machine, hints = clustering.trials.machine, clustering.work.hints
    gains: dict[Call, MatmulGain] = {}
    kernels: dict[Cluster, _MatmulCluster] = {}
    for dot, matmul in inlined.matmuls.items():
        cluster = clustering.cluster_of.get(dot)
        gain = IMPOSSIBLE
        if cluster is not None and cluster not in clustering.unstitchable:
            if cluster not in kernels:
                kernels[cluster] = _MatmulCluster.of(cluster, clustering)
            gain = _gain(matmul, inlined, clustering, kernels[cluster])
        for call in matmul.calls:
            gains[call] = gains.get(call, MatmulGain()) + gain
    for call, savings in inlined.patterns.items():
        if call in gains:
            gains[call] += _saved_by_pattern(savings, machine, hints)
        clusters = (set(map(clustering.cluster_of.get, dots)) for dots in savings.in_one_kernel)
        if any(len(several) > 1 for several in clusters):
            gains[call] = IMPOSSIBLE
    return {call: gain.refusal for call, gain in gains.items() if not gain.gain > 0}


def _saved_by_pattern(
    savings: PatternSavings, machine: Machine, hints: Mapping[str, int]
) -> MatmulGain:
    saved = evaluate(savings.bytes, hints) / machine.memory_bytes_per_second
    if savings.multiplications:
        units = machine.matrix_units[DType.F32]
        saved += 2 * savings.multiplications / units.operations_per_second
    return MatmulGain(saved=saved)


@dataclass(frozen=True, slots=True)
class _MatmulCluster:
    """A cluster with matmuls: its kernel and its vertices."""

    kernel: MatmulKernel
    inside: frozenset[Vertex]

    @staticmethod
    def of(cluster: Cluster, clustering: Clustering) -> _MatmulCluster:
        machine, hints = clustering.trials.machine, clustering.work.hints
        kernel = clustering.trials.stitched([clustering.group_of(cluster)], "attempt").kernel
        is_simt = machine.execution is Execution.SIMT
        packed = 0.0 if is_simt else packed_elements(kernel, hints, machine.threads)
        return _MatmulCluster(MatmulKernel(kernel, packed), frozenset(cluster.vertices))


def _gain(
    matmul: InlinedMatmul,
    inlined: InlinedMatmuls,
    clustering: Clustering,
    cluster: _MatmulCluster,
) -> MatmulGain:
    """A kernel saves traffic that stays on chip, and a launch. The traffic of a sum of several
    matmuls is counted with the first of them."""
    inside, result = cluster.inside, matmul.result
    machine, hints = clustering.trials.machine, clustering.work.hints
    gain = matmul_seconds(matmul, cluster.kernel, machine, hints)
    added = [dot for dot, other in inlined.matmuls.items() if other.result is result]
    if not inside - _computed_for(added, result):
        is_simt = machine.execution is Execution.SIMT
        library = min(gain.library, gain.kernel) if is_simt else gain.library
        return MatmulGain(library, gain.kernel, doubt=gain.doubt)
    bytes_ = _saved_bytes(result, inside, clustering) if matmul.dot is added[0] else 0
    operands = map(below, matmul.dot.inputs)
    bytes_ += sum(_saved_bytes(operand, inside, clustering) for operand in operands)
    launch = call_seconds(matmul, machine.matrix_units[matmul.dtype], machine, hints)
    return gain + MatmulGain(saved=bytes_ / machine.memory_bytes_per_second + launch)


def _computed_for(dots: Sequence[Node], result: Node) -> set[Node]:
    """The nodes of the library call itself: the matmuls, their additions, and rounding."""
    computed, stack = set(dots), [result]
    while stack:
        node = stack.pop()
        if node not in computed and node.op in (Op.ADD, Op.CAST):
            computed.add(node)
            stack.extend(map(below, node.inputs))
    return computed


def _saved_bytes(value: Node, inside: Collection[object], clustering: Clustering) -> int:
    """Bytes of traffic saved since one kernel computes and reads `value`."""
    if value not in inside:
        return 0
    is_stored = value in clustering.work.materialised or any(
        reader not in inside for reader in clustering.work.readers.get(value, ())
    )
    return evaluate(value.type.bytes, clustering.work.hints) * (1 if is_stored else 2)
