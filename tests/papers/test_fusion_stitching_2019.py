"""FusionStitching 2018 and 2019: rows F1-1 to F1-15, but for those about search."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import torch
import torch.nn.functional as F

from benchmarks.models.hugging_face import bert_encoder
from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Op, toposort
from hemstitch.kernel_ir.lifetime import in_place, task_lifetimes
from hemstitch.kernel_ir.nodes import Role
from hemstitch.options import Options
from hemstitch.planning.clusters import MOST_MEMBERS, Clustering
from hemstitch.planning.materialisation import materialisation
from hemstitch.planning.plan import LibraryFormStep
from hemstitch.planning.trials import Trials
from hemstitch.planning.work import Work
from hemstitch.stitching.group import is_member
from hemstitch.targets.cpu.scratch_layout import scratch_layout
from tests.papers.harness import (
    CONSERVATIVE,
    CPU,
    GPU,
    agree,
    both_targets,
    evaluations,
    graphs_of,
    nests,
    plan,
    planned,
    random,
    scratch,
)
from tests.papers.touched import is_read_exactly
from tests.programs import Program
from tests.test_kernel_counts import check_numbers


def softmax_of_transposed(x):
    return torch.softmax(x.transpose(-1, -2) * 0.125, -1)


@both_targets
def test_F1_1_elementwise_views_and_reductions_are_one_kernel(machine, measured):
    x = random(8, 12, 64, 128)
    ours = plan(softmax_of_transposed, x, machine=machine)
    plain = plan(softmax_of_transposed, x, machine=machine, options=CONSERVATIVE)
    assert len(ours.kernels) == 1 and len(plain.kernels) >= 3
    assert (ours.bytes_read, ours.bytes_written) == (x.nbytes, x.nbytes)
    few = x[:1].clone()
    found = plan(softmax_of_transposed, few, machine=machine).run([few])
    agree(found, [softmax_of_transposed(few.double())], 1e-12)
    check_numbers(softmax_of_transposed, (x,))
    measured(f"1 kernel, conservative {len(plain.kernels)}; {x.nbytes} bytes in, as many out")


def softmax_product(scores, values):
    return torch.softmax(scores, -1).reshape(24, 32, 32) @ values


def test_F1_2_a_small_product_inside_by_a_switch(measured):
    scores, values = random(2, 12, 32, 32), random(24, 32, 64)
    ours = plan(softmax_product, scores, values, machine=GPU)
    assert (len(ours.kernels), ours.library_calls) == (1, 0)
    assert ours.signature == sorted([scores.nbytes, values.nbytes, 24 * 32 * 64 * 4])
    assert scratch(ours.kernel, Role.SHARED, ours.sizes) == 0
    agree(ours.run([scores, values]), [softmax_product(scores.double(), values.double())], 1e-12)
    off = Options(products=False)
    apart = plan(softmax_product, scores, values, machine=GPU, options=off)
    assert (len(apart.kernels), apart.library_calls) == (1, 1)
    measured("gpu: 1 kernel, the weights are no parameter; switched off 1 kernel + 1 call")


def dropped(scores, values):
    return F.dropout(torch.softmax(scores, -1), 0.25) @ values


def test_F1_3_softmax_dropout_product(measured):
    scores, values = random(96, 32, 32), random(96, 32, 64)
    ours = plan(dropped, scores, values, machine=GPU)
    assert (len(ours.kernels), ours.library_calls) == (1, 1), "the call draws the seed"
    seed = 8
    assert ours.signature == sorted([seed, scores.nbytes, values.nbytes, 96 * 32 * 64 * 4])
    # In training, as machine code of this processor: the mask, drawn again from the seed, is the
    # same in backward, and keeps what it should.
    x = torch.zeros(1000, 1000, requires_grad=True)
    compiled = torch.compile(lambda x: F.dropout(torch.softmax(x, -1), 0.25), backend="hemstitch")
    result = compiled(x)
    result.backward(torch.ones_like(result) * torch.arange(1000.0))
    kept = (result != 0).double()
    weights = torch.softmax(x.double(), -1)
    given = kept / 0.75 * torch.arange(1000.0)
    expected = weights * (given - (given * weights).sum(-1, keepdim=True))
    agree([x.grad], [expected], 1e-5)
    rate, sigma = float(kept.mean()), (0.75 * 0.25 / kept.numel()) ** 0.5
    assert abs(rate - 0.75) < 4 * sigma
    measured(f"gpu: 1 kernel, neither weights nor mask in memory; kept {rate:.4f} of 0.75")


def steps(weights, gradients):
    return torch._foreach_sub(weights, torch._foreach_mul(gradients, 0.1))


@cache
def updates(*shapes):
    """The graph of 64 tensors, of these shapes in turn."""
    weights, gradients = ([random(*shapes[k % len(shapes)]) for k in range(64)] for _ in range(2))
    (graph,) = graphs_of(steps, weights, gradients)
    return graph


@both_targets
def test_F1_4_independent_operations_share_launches(machine, measured):
    def launches(graph, machine, **options):
        found = planned(graph, machine, Options(**options))
        assert found.library_calls == 0
        return len(found.kernels)

    alike, most = updates((64, 48)), machine.most_packed
    same = launches(alike, machine)
    mixed = launches(updates((64, 48), (300,), (7, 11, 13)), machine)
    assert same == mixed == -(-64 // most)
    assert launches(alike, machine, pack=False) == 64
    assert launches(alike, replace(machine, most_packed=most // 2)) == 2 * same
    measured(f"64 updates: {same} launches of at most {most}, of one shape or three; apart 64")


def bert_layer():
    layer = bert_encoder(1, 0.1, hidden=128)
    return lambda hidden: layer(hidden_states=hidden), random(2, 64, 128).requires_grad_()


def test_F1_7_heuristics_bound_the_space(measured, monkeypatch):
    attempt = Trials._attempt
    tried: list[int] = []

    def counting(self, group, *known):
        tried.append(len(group.members))
        return attempt(self, group, *known)

    monkeypatch.setattr(Trials, "_attempt", counting)
    function, hidden = bert_layer()
    graphs = graphs_of(function, hidden, backward=True)
    nodes = sum(sum(map(is_member, toposort(graph.roots))) for graph in graphs)
    for machine in (CPU, GPU):
        tried.clear()
        for graph in graphs:
            planned(graph, machine)
        assert len(tried) <= 10 * nodes and max(tried) <= MOST_MEMBERS
    measured(f"gpu: {len(tried)} trials for {nodes} nodes, at most {max(tried)} nodes in one")


CHUNKS = {
    "elementwise": (lambda x: x * 2, (12, 40)),
    "transpose": (lambda x: (x.transpose(0, 1) * 2).contiguous(), (12, 40)),
    "reduce rows": (lambda x: x.sum(1), (24, 40)),
    "reduce columns": (lambda x: x.sum(0), (24, 40)),
    "reduce the middle": (lambda x: x.sum(1), (6, 5, 12)),
    "reshape": (lambda x: x.reshape(8, 60) * 2, (12, 40)),
    "broadcast": (lambda x: x[:, None].expand(40, 9).square(), (40,)),
    "softmax": (lambda x: torch.softmax(x * 0.1, -1), (12, 40)),
    "reduce, then transpose": (lambda x: (x.sum(2) * 2).transpose(0, 1).contiguous(), (6, 5, 12)),
}


@both_targets
def test_F1_10_what_each_task_reads_is_what_its_results_need(machine, measured):
    """Index propagation against brute force: the elements with a nonzero derivative."""
    for name, (function, shape) in CHUNKS.items():
        x = random(*shape)
        assert is_read_exactly(plan(function, x, machine=machine), function, x), name
    once = plan(lambda x: x.exp() + x.exp().T, random(24, 24), machine=machine)
    assert [refusal.check for _, refusal in once.plan.refusals] == ["axes"]
    measured(f"{len(CHUNKS)} kinds of access exact for every task; y + y.T refused")


@both_targets
def test_F1_11_any_program_has_a_plan_and_two_roots_agree(machine, measured):
    count = alone = 0
    for seed in range(60):
        program = Program(Random(seed), steps=8)
        found = planned(program.graph, machine, Options(pack=False))
        assert not any(isinstance(step, LibraryFormStep) for step in found.plan.steps), seed
        count += 1
        work = Work(program.graph, materialisation(program.graph))
        clustering = Clustering(work, Trials(machine))
        for cluster in clustering.clusters:
            alone += 1
            assert clustering.refusal_of(cluster) is None, seed
    both = plan(lambda x: (x.exp(), x.exp().sum(1)), random(64, 128), machine=machine)
    (nest,) = nests(both.kernel)
    rows = [evaluate(axis.extent, both.sizes) for axis in nest.rows]
    assert 64 % rows[0] == 0, "tasks get whole rows of both results"
    measured(f"{count} random programs, {alone} single nodes: all kernels; roots share {rows} rows")


def remade_or_kept(x):
    """A value of six cheap operations and two expensive ones, all read by two loops of the row."""
    cheap, exp, log = (((x * 3 + 1) * x + 2) * x + 3) * x, x.exp(), (x * x + 1).log()
    total = (cheap * exp * log).sum(1, keepdim=True)
    return (cheap - total) * exp + log


def test_F1_12_what_does_not_fit_on_chip_is_made_again(measured):
    x = random(16, 1024)
    found = []
    for budget in (1 << 20, 16 << 10, 8 << 10, 1 << 10):
        machine = replace(CPU, l2_bytes=budget)
        each = plan(remade_or_kept, x, machine=machine)
        rows = [b for b in each.kernel.buffers if b.role is Role.TASK]
        assert sum(evaluate(b.size, each.sizes) * b.dtype.bytes for b in rows) <= budget // 2
        agree(each.run([x]), [remade_or_kept(x.double())], 1e-12)
        found.append((len(rows), evaluations(each.kernel, Op.EXP, each.sizes) // x.numel()))
    kept, made = zip(*found)
    assert list(kept) == sorted(kept, reverse=True) and list(made) == sorted(made)
    assert any(k < kept[0] and m == 1 for k, m in found), "cheap values are given up first"
    measured("; ".join(f"{k} rows kept, exp {m} times" for k, m in found))


def softmax_chain(x):
    y = torch.softmax(x, -1)
    return torch.softmax(y * 40, -1)


def test_F1_13_row_buffers_share_memory_by_liveness(measured):
    """Of machine code for processors; on a GPU a row buffer is a tile in registers."""
    once = plan(lambda x: torch.softmax(x, -1), random(64, 1024), machine=CPU).kernel
    twice = plan(softmax_chain, random(64, 1024), machine=CPU).kernel
    lives = task_lifetimes(twice)
    for buffer in in_place(twice, lives):  # it begins where the one it replaces ends
        lives[buffer] = (lives[buffer][0] + 1, lives[buffer][1])
    moments = {moment for life in lives.values() for moment in life}
    live = max(
        sum(evaluate(b.size, {}) * b.dtype.bytes for b, (a, z) in lives.items() if a <= t <= z)
        for t in moments
    )
    bytes_ = [evaluate(scratch_layout(kernel, 1).total, {"threads": 1}) for kernel in (once, twice)]
    assert bytes_[1] == live and len(lives) > len(task_lifetimes(once))
    measured(f"{len(lives)} buffers of {1024 * 4} bytes in {bytes_[1]}, the most that live at once")


@both_targets
def test_F1_14_a_buffered_exponential_is_computed_once(machine, measured):
    x = random(64, 1024)
    found = plan(lambda x: torch.softmax(x, -1), x, machine=machine)
    assert evaluations(found.kernel, Op.EXP, found.sizes) == x.numel()
    measured(f"{x.numel()} exponentials of {x.numel()} elements with two users")
