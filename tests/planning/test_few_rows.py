"""Products of few rows, which read a matrix once: of one, as sums; of some, by vectors of steps.
And attention of one row: what models do for each token that they generate."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.nodes import Contract, Let, Load, Loop, Role, statements, walk
from hemstitch.kernel_ir.printer import show
from hemstitch.kernel_ir.verifier import verify
from hemstitch.machine.cpu_numbers import CPU as NUMBERS
from hemstitch.matmul.lowering.blocking import block_matmuls
from hemstitch.matmul.lowering.tile_matmul import TileMatmul
from hemstitch.planning.plan import LibraryStep
from hemstitch.report.explain import explain
from hemstitch.runtime import interpreter as interpret
from tests.compiled import assert_close, execute, plans_of
from tests.effort import IS_WHOLE
from tests.planning.test_cpu_products import ALWAYS, CPU, steps_of, zeros
from tests.planning.test_paired_products import assert_blocks_mean_the_same, without_bf16

TYPES = (torch.float32, torch.bfloat16, torch.float16)
F32, BF16 = torch.float32, torch.bfloat16


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def linear(x, weight, bias):
    return F.silu(F.linear(x, weight, bias))


def times(x, matrix):
    return torch.tanh(x @ matrix)


def assert_as_exact(function, *arguments, dynamic=False):
    """As eager is, or as half types can be."""
    options = {"strict": True, "check": True}
    compiled = torch.compile(function, backend="hemstitch", options=options, dynamic=dynamic)
    with torch.no_grad():
        found, eager = compiled(*arguments), function(*arguments)
        exact = function(*(x.double() for x in arguments))
    assert found.dtype is eager.dtype and found.stride() == eager.stride()
    floor = (2e-6 if found.dtype is F32 else 4e-3) * exact.norm()
    assert (found - exact).norm() <= 2 * (eager - exact).norm() + floor


def launches(function, *arguments):
    with torch.no_grad():
        report = explain(function, *arguments, options={"check": True})
    return report.kernel_count, len(report.library_calls)


# --- a single row or column


VECTORS = {
    "a row": (linear, [(1, 70), (45, 70), (45,)]),
    "a row that lies otherwise": (times, [(1, 70), (70, 45)]),
    "a column": (times, [(45, 70), (70, 1)]),
    "both": (times, [(1, 70), (70, 1)]),
    "nothing to add up": (times, [(33, 1), (1, 45)]),
    "rows of a batch": (lambda x, y: torch.relu(torch.bmm(x, y)), [(5, 1, 70), (5, 70, 45)]),
    "columns of a batch": (lambda x, y: torch.relu(torch.bmm(x, y)), [(5, 45, 70), (5, 70, 1)]),
}


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_times_a_matrix_is_a_sum(name, dtype):
    function, shapes = VECTORS[name]
    arguments = [torch.randn(shape, dtype=dtype) for shape in shapes]
    assert launches(function, *arguments) == (1, 0)
    assert_as_exact(function, *arguments)


@pytest.mark.usefixtures("kernels_multiply")
def test_a_vector_of_sizes_that_calls_know():
    for steps, columns in ((70, 45), (33, 90), (64, 1024)):
        arguments = torch.randn(1, steps), torch.randn(steps, columns)
        assert_as_exact(times, *arguments, dynamic=True)


def test_the_matrix_is_read_once_and_the_vector_computed_once():
    def normalised(x, weight, matrix):
        return F.linear(F.rms_norm(x, (64,), weight), matrix)

    *before, last = steps_of(normalised, zeros(1, 64), zeros(64), zeros(48, 64), machine=ALWAYS)
    assert before
    kernel = last.stitched.kernel
    loaded = [s for s in statements(kernel) if isinstance(s, Load)]
    assert sum(s.buffer.size == 48 * 64 for s in loaded) == 1
    assert not any(isinstance(s, Let) and s.op is Op.RSQRT for s in statements(kernel))


def test_slices_of_a_row_are_slices_of_the_sums():
    """The gates of a recurrent cell that has one sequence."""

    def gates(x, weight):
        enter, leave = F.linear(x, weight).chunk(2, 1)
        return enter.sigmoid() * leave.tanh()

    steps = steps_of(gates, zeros(1, 40), zeros(64, 40), machine=ALWAYS)
    assert not any(isinstance(step, LibraryStep) for step in steps)


# --- up to a vector of rows


def tiles(kernel):
    loops = (s for s in statements(kernel) if isinstance(s, Loop))
    return [tile for tile in map(TileMatmul.of, loops) if tile is not None]


def kernel_of(function, *arguments):
    (step,) = steps_of(function, *arguments, machine=ALWAYS)
    kernel = block_matmuls(step.stitched.kernel, CPU.threads)
    verify(kernel)
    return kernel


def by_steps(tile):
    steps = (
        each.index.coefficient(tile.contract.axis)
        for each in (tile.operands[0].left, tile.operands[0].right)
    )
    return all(step == tile.k_pack for step in steps)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("rows", [2, 5, NUMBERS.skinny_columns])
def test_neither_operand_is_copied(rows, dtype):
    """Rows of a power of two lie in one set of a cache, and are read in order."""
    weight = zeros(96, 1024, dtype=dtype)
    kernel = kernel_of(lambda x, w: F.relu(F.linear(x, w)), zeros(rows, 1024, dtype=dtype), weight)
    (tile,) = tiles(kernel)
    assert len(kernel.phases) == 1 and by_steps(tile)
    first = tile.operands[0]
    assert first.left.buffer.role is first.right.buffer.role is Role.INPUT
    assert first.left.buffer.size == 96 * 1024 and tile.k_pack == (1 if dtype is F32 else 2)


def test_a_computed_operand_is_packed_by_columns():
    kernel = kernel_of(lambda x, w: F.linear(x * 2, w), zeros(4, 64), zeros(96, 64))
    (tile,) = tiles(kernel)
    assert by_steps(tile)
    assert tile.operands[0].right.buffer.why == "columns of an operand"


def test_operands_that_several_products_share_are_packed_once():
    def recurrent(x, y, weight):
        return torch.tanh(F.linear(x, weight)) + torch.tanh(F.linear(y, weight))

    (step,) = steps_of(recurrent, *[zeros(4, 64)] * 2, zeros(96, 64), machine=ALWAYS)
    assert not any(map(by_steps, tiles(block_matmuls(step.stitched.kernel, 2))))


def test_as_kernel_ir(golden):
    golden(show(kernel_of(linear, zeros(3, 40), zeros(30, 40), zeros(30))) + "\n")


SIZES = [
    (2, 64, 96),
    (3, 1024, 33),
    (4, 70, 17),
    (7, 33, 64),
    (8, 40, 200),
    (9, 65, 40),
    (16, 64, 130),
]


@pytest.mark.parametrize("sizes", SIZES if IS_WHOLE else SIZES[1::2], ids=str)
def test_on_any_processor(target, sizes):
    rows, steps, columns = sizes
    given = [torch.randn(rows, steps), torch.randn(columns, steps), torch.randn(columns)]
    for function in (linear, lambda x, w, b: F.linear(torch.tanh(x), w, b)):
        ((graph, _),) = plans_of(function, given, CPU)
        found = execute(graph, given, ALWAYS)
        assert_close(found, interpret.run(graph, given), 1e-5)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_in_the_interpreter(sizes):
    rows, steps, columns = sizes
    given = [torch.randn(rows, steps), torch.randn(columns, steps), torch.randn(columns)]
    assert_blocks_mean_the_same(linear, given)


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("is_native", [True, False], ids=["as the host", "in f32"])
@pytest.mark.parametrize("sizes", SIZES if IS_WHOLE else SIZES[::3], ids=str)
def test_bf16(monkeypatch, sizes, is_native):
    if not is_native:
        without_bf16(monkeypatch)
    rows, steps, columns = sizes
    shapes = (rows, steps), (columns, steps), (columns,)
    assert_as_exact(linear, *(torch.randn(shape, dtype=BF16) for shape in shapes))


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_steps_whose_number_calls_know(dtype):
    """Some whole vectors and a part of one, or none at all."""

    def scores(x, keys):
        return torch.relu(x @ keys.t())

    options = {"strict": True, "check": True}
    compiled = torch.compile(scores, backend="hemstitch", options=options)
    for rows, steps in ((40, 64), (33, 70), (50, 1024), (3, 10)):
        x, keys = torch.randn(rows, steps, dtype=dtype), torch.randn(5, steps, dtype=dtype)
        for tensor, axis in ((x, 0), (x, 1), (keys, 1)):
            torch._dynamo.mark_dynamic(tensor, axis)
        found, eager = compiled(x, keys), scores(x, keys)
        exact = scores(x.double(), keys.double())
        floor = (2e-6 if dtype is F32 else 4e-3) * exact.norm()
        assert (found - exact).norm() <= 2 * (eager - exact).norm() + floor


@pytest.mark.usefixtures("kernels_multiply")
def test_infinities_and_nans_stay_in_their_rows():
    x, weight = torch.randn(4, 64), torch.randn(96, 64)
    x[1, 5], weight[7, 9], weight[8, 3] = torch.inf, torch.nan, -torch.inf
    found = torch.compile(F.linear, backend="hemstitch", options={"strict": True})(x, weight)
    torch.testing.assert_close(found, F.linear(x, weight), equal_nan=True)


# --- attention of one row


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("is_masked", [False, True])
def test_attention_of_one_row_reads_keys_and_values_where_they_lie(is_masked, dtype):
    """Heads share keys and values, which nobody copies."""

    def attention(q, k, v, mask):
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask if is_masked else None)

    q, mask = torch.randn(3, 4, 1, 16, dtype=dtype), torch.randn(1, 1, 1, 45, dtype=dtype)
    k, v = (torch.randn(3, 2, 45, 16, dtype=dtype) for _ in range(2))
    with torch.no_grad():
        report = explain(attention, q, k, v, mask, options={"check": True})
    assert report.library_calls == []
    (kernel,) = report.kernels
    assert sorted(kernel.reads.values())[-2:] == [k.nbytes, v.nbytes]
    assert list(kernel.writes.values()) == [q.nbytes]
    assert_as_exact(attention, q, k, v, mask)


@pytest.mark.usefixtures("kernels_multiply")
def test_heads_that_the_library_shares_keys_among():
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    for rows, calls in ((1, 0), (7, 1)):
        q, (k, v) = torch.randn(3, 6, rows, 16), (torch.randn(3, 2, 45, 16) for _ in range(2))
        with torch.no_grad():
            report = explain(attention, q, k, v, options={"check": True})
        assert len(report.library_calls) == calls
        assert_as_exact(attention, q, k, v)
        torch._dynamo.reset()


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("dynamic", [False, True])
def test_keys_and_values_that_grow(groups, dynamic):
    """Those of the token are computed, kept for the next one, and read like the others."""

    def attention(q, x, weight, keys, values):
        new = F.linear(x, weight).reshape(3, 1, groups, 16).transpose(1, 2)
        keys, values = torch.cat((keys, torch.sin(new)), 2), torch.cat((values, new), 2)
        found = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        return found, keys, values

    options = {"strict": True, "check": True}
    compiled = torch.compile(attention, backend="hemstitch", options=options, dynamic=dynamic)
    weight = torch.randn(groups * 16, 24)
    keys, values = (torch.randn(3, groups, 40, 16) for _ in range(2))
    for _ in range(3):
        q, x = torch.randn(3, 4, 1, 16), torch.randn(3, 24)
        with torch.no_grad():
            found = compiled(q, x, weight, keys, values)
            expected = attention(q, x, weight, keys, values)
        torch.testing.assert_close(found, expected)
        _, keys, values = expected


@pytest.mark.usefixtures("kernels_multiply")
def test_a_computed_row_is_computed_once():
    def attention(q, k, v):
        return F.scaled_dot_product_attention(torch.sin(q), k, v)

    q, k, v = (torch.randn(3, 4, rows, 16) for rows in (1, 45, 45))
    with torch.no_grad():
        ((_, plan),) = plans_of(attention, (q, k, v), CPU)
    kernels = [step.stitched.kernel for step in plan.kernels]
    inside = [s for k in kernels for p in k.phases for n in p.nests for s in n.body]
    loops = [s for s in inside if isinstance(s, Loop) and not s.lanes]
    assert loops and not any(
        isinstance(s, Let) and s.op is Op.SIN for loop in loops for s in walk([loop])
    )
    assert_as_exact(attention, q, k, v)


def test_contractions_are_those_of_some_rows():
    """A vector has none: it is no tile."""
    (step,) = steps_of(times, zeros(1, 64), zeros(64, 48), machine=ALWAYS)
    assert not any(isinstance(s, Contract) for s in statements(step.stitched.kernel))
