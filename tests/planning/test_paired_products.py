"""Products of bf16 on processors: two steps at once, by the processor's instruction or without."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.nodes import Loop, statements
from hemstitch.kernel_ir.printer import show
from hemstitch.kernel_ir.verifier import verify
from hemstitch.matmul.lowering.blocking import block_matmuls
from hemstitch.matmul.lowering.tile_matmul import TileMatmul
from hemstitch.runtime import interpreter as interpret
from hemstitch.toolchain import jit
from tests.compiled import Simulation, assert_close, plans_of
from tests.planning.test_cpu_products import (
    ALWAYS,
    CPU,
    assert_as_exact,
    plan_in_blocks,
    steps_of,
    zeros,
)

pytestmark = pytest.mark.usefixtures("kernels_multiply")

BF16 = torch.bfloat16


def linear(x, weight, bias):
    return F.gelu(F.linear(x, weight, bias))


def of_any_order(a, b):
    return torch.relu(a @ b)


def tiles(kernel):
    loops = (s for s in statements(kernel) if isinstance(s, Loop))
    return [tile for tile in map(TileMatmul.of, loops) if tile is not None]


def arguments(*shapes, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(shape, dtype=BF16) for shape in shapes]


def without_bf16(monkeypatch):
    host = jit.host_target()
    target = replace(host, features=replace(host.features, bf16=False))
    monkeypatch.setattr(jit, "host_target", lambda: target)


@pytest.fixture(params=["as the host", "in f32"])
def instructions(request, monkeypatch):
    """That of the processor, and what stands for it where there is none."""
    if request.param == "in f32":
        without_bf16(monkeypatch)


def test_pairs_as_kernel_ir(golden):
    (step,) = steps_of(linear, *(zeros(*s, dtype=BF16) for s in ((40, 64), (48, 64), (48,))))
    kernel = block_matmuls(step.stitched.kernel, 2)
    verify(kernel)
    golden(show(kernel) + "\n")


@pytest.mark.parametrize(("steps", "k_pack"), [(64, 2), (63, 1), (2, 2)])
def test_an_odd_step_is_multiplied_in_f32_as_all_are(steps, k_pack):
    x, y = zeros(20, steps, dtype=BF16), zeros(steps, 40, dtype=BF16)
    (step,) = steps_of(of_any_order, x, y, machine=ALWAYS)
    (tile,) = tiles(block_matmuls(step.stitched.kernel, 2))
    assert tile.k_pack == k_pack


def test_other_half_types_are_multiplied_in_f32():
    x, y = zeros(20, 64, dtype=torch.float16), zeros(64, 40, dtype=torch.float16)
    (step,) = steps_of(of_any_order, x, y, machine=ALWAYS)
    (tile,) = tiles(block_matmuls(step.stitched.kernel, 2))
    assert tile.k_pack == 1


def assert_blocks_mean_the_same(function, given):
    """In the interpreter, which knows nothing of pairs, nor of vectors."""
    ((graph, _),) = plans_of(function, given, CPU)
    found = Simulation({}, CPU.threads, order=(1, 0)).run(graph, plan_in_blocks(graph), given)
    assert_close(found, interpret.run(graph, given, precise=True), 1e-9)


@pytest.mark.parametrize(
    ("rows", "steps", "columns"), [(40, 64, 48), (7, 34, 5), (33, 800, 70), (2, 2, 3)]
)
def test_pairs_mean_what_the_graph_means(rows, steps, columns):
    assert_blocks_mean_the_same(linear, arguments((rows, steps), (columns, steps), (columns,)))


@pytest.mark.parametrize(
    ("rows", "steps", "columns"),
    [(40, 64, 48), (7, 34, 5), (33, 800, 70), (2, 2, 3), (100, 1538, 33), (64, 96, 2000)],
)
def test_operands_of_any_size_and_order(instructions, rows, steps, columns):
    x, y = arguments((rows, steps), (steps, columns))
    assert_as_exact(of_any_order, x, y)
    assert_as_exact(lambda a, b: of_any_order(a, b.t()), x, y.t().contiguous())
    assert_as_exact(lambda a, b: of_any_order(a.t(), b), x.t().contiguous(), y)
    wide, long = arguments((rows, 2 * steps + 1), (2 * steps, columns))
    assert_as_exact(lambda a, b: of_any_order(a[:, 1 : steps + 1], b[::2]), wide, long)
    assert_as_exact(lambda a, b: of_any_order(a[:, 1::2], b[:steps]), wide, long)


def test_operands_that_are_computed(instructions):
    x, y = arguments((40, 64), (64, 48))
    assert_as_exact(lambda a, b: of_any_order(a.sigmoid(), b * 2), x, y)
    assert_as_exact(lambda a, b: of_any_order(a.softmax(-1), b.exp()), x, y)


def test_weights_of_autocast_are_rounded_where_they_are_packed(instructions):
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 48), torch.randn(40, 64)

    def run(function):
        with torch.no_grad(), torch.autocast("cpu", BF16):
            return function(x)

    torch._dynamo.reset()
    found = run(torch.compile(layer, backend="hemstitch", options={"strict": True}))
    torch.testing.assert_close(found, run(layer), rtol=2e-2, atol=1e-2)


def test_infinities_and_nans_are_eagers(instructions):
    x, y = arguments((20, 16), (16, 19))
    x[1, 2], x[3, 4], y[5, 18] = float("inf"), float("nan"), -float("inf")
    assert torch.equal(
        torch.compile(of_any_order, backend="hemstitch")(x, y).isnan(), of_any_order(x, y).isnan()
    )


def test_one_kernel_has_only_so_many_products():
    """Rounded sums of bf16 cannot become one product, and would otherwise all be in one."""

    def gradient(x, *weights):
        total = x @ weights[0]
        for weight in weights[1:]:
            total = total + x @ weight
        return total

    given = [zeros(40, 64, dtype=BF16), *(zeros(64, 48, dtype=BF16) for _ in range(40))]
    steps = steps_of(gradient, *given, machine=ALWAYS)
    groups = [group for step in steps for group in step.groups]
    counts = [sum(node.op is Op.DOT for node in group.members) for group in groups]
    assert sum(counts) == 40
    assert max(counts) == 16
