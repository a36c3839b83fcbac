"""AStitch 2022: rows AS-1 to AS-19, AS-24 and AS-25. Its schemes: regional is `Scheme.REGIONAL`,
global `SHARED` and `PARTIAL`; what is local has no scheme."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.lifetime import phase_lifetimes
from hemstitch.kernel_ir.nodes import Begin, Role
from hemstitch.latency.architecture import AMPERE, HOPPER
from hemstitch.latency.occupancy import Limiter, occupancy
from hemstitch.options import Options
from hemstitch.stitching.schedule import Scheme
from hemstitch.targets.cpu.scratch_layout import scratch_layout
from tests.compiled import Simulation
from tests.papers.harness import (
    CONSERVATIVE,
    CPU,
    GPU,
    PROGRAMS,
    agree,
    both_targets,
    evaluations,
    graphs_of,
    grid,
    machine_code,
    plan,
    planned,
    random,
    scratch,
    text_of,
    triton_program,
)
from tests.papers.touched import is_read_exactly
from tests.test_kernel_counts import check_numbers

# Only for its numbers: compute capability 7.0 of the CUDA Programming Guide; a V100 has 80 SMs.
VOLTA = replace(AMPERE, target="sm_70", product="V100", sms=80, shared_bytes=96 << 10)


class Layer(nn.Module):
    """A transformer layer with its norms before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        heads = self.mixed(self.first(x)).view(*x.shape[:2], 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(-1, -2) * 0.125 + mask, -1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.second(x))))


@both_targets
def test_AS_1_one_kernel_for_each_region_between_products(machine, measured):
    layer = Layer(128, 4)
    arguments = random(2, 64, 128), random(2, 1, 1, 64)
    (graph,) = graphs_of(layer, *arguments, grad=False)
    found = planned(graph, machine, Options(products=False))
    regions = 6  # norm; heads for scores; softmax; heads merged; residual and norm; GELU; residual
    assert found.library_calls == 6, "four linear layers and two batched products"
    assert len(found.kernels) <= regions + 1
    measured(f"{len(found.kernels)} kernels between and after {found.library_calls} products")


@both_targets
def test_AS_2_norms_without_a_path_share_a_launch(machine, measured):
    def apart(x, y):
        return torch.softmax(x, -1), F.layer_norm(y, (300,))

    def behind(x, weight):
        return F.layer_norm(torch.softmax(x, -1) @ weight, (300,))

    x = random(64, 200)
    together = plan(apart, x, random(128, 300), machine=machine)
    off = Options(products=False)
    path = plan(behind, x, random(200, 300), machine=machine, options=off)
    assert len(together.kernels) == 1
    assert (len(path.kernels), path.library_calls) == (2, 1)
    measured("two norms 1 kernel; with a product between them 2")


def figure_7(parameter_1, parameter_2, parameter_3):
    """Its operations and how they are connected; what flows in is our own choice. A power that took
    long would be a kernel of its own on processors (F2-6), since all rows share it."""
    add_1 = parameter_1 + parameter_2
    reduce_1 = add_1.sum(1, keepdim=True)
    power_1 = (parameter_2 / parameter_3) ** 2
    divide_2 = add_1 / reduce_1
    reduce_2 = (divide_2 * power_1).sum(0)
    return divide_2 * reduce_2


def arguments_7():
    return random(512, 256).abs(), random(256).abs(), random(256, seed=1).abs() + 1


@both_targets
def test_AS_3_figure_7_is_one_kernel(machine, measured):
    arguments = arguments_7()
    found = plan(figure_7, *arguments, machine=machine)
    plain = plan(figure_7, *arguments, machine=machine, options=CONSERVATIVE)
    assert len(found.kernels) == 1 and len(plain.kernels) >= 3
    (schedule,) = found.schedules
    reduce_1, reduce_2 = schedule.schemes.values()
    assert reduce_1.value in ("regional", "shared") and reduce_2 is Scheme.PARTIAL
    agree(found.run(arguments), [figure_7(*(x.double() for x in arguments))], 1e-10)
    check_numbers(figure_7, arguments)
    count = f"1 kernel, conservative {len(plain.kernels)}"
    measured(f"{count}; reduce.1 {reduce_1.value}, reduce.2 {reduce_2.value}")


@both_targets
def test_AS_4_dominants_are_merged_where_rows_agree(machine, measured):
    """Roots that fit the rows of the largest follow it, so what they share is loaded once."""

    def two_sums(x, scale):
        return (x * scale).sum(1), (x / scale).amax(1), (x - scale).exp()

    arguments = random(512, 256), random(256).abs() + 1
    (schedule,) = plan(two_sums, *arguments, machine=machine).schedules
    assert len(schedule.mappings) == 1 and len(schedule.places) == 5
    (crossing,) = plan(figure_7, *arguments_7(), machine=machine).schedules
    assert len(crossing.mappings) == 1
    roots, reductions = len(crossing.places), len(crossing.schemes)
    measured(f"5 roots follow 1 mapping; figure 7: {roots} roots, {reductions} reductions, 1")


LOCAL = {
    "norm": (lambda x: F.layer_norm(x.exp(), (40,)).tanh(), (24, 40)),
    "blocks of rows": (lambda x: torch.softmax(x.view(24, 2, 20), -1).view(24, 40), (24, 40)),
    "transposed in and out": (
        lambda x: torch.softmax(x.transpose(0, 1), -1).transpose(0, 1).contiguous() + 0,
        (24, 40),
    ),
    "row sum, broadcast, slice": (lambda x: (x - x.mean(1, keepdim=True))[:, 3:], (24, 40)),
}


@both_targets
def test_AS_5_indices_propagate_both_ways(machine, measured):
    """From the mapping of a group to all that it reads and all that it writes."""
    for name, (function, shape) in LOCAL.items():
        x = random(*shape)
        assert is_read_exactly(plan(function, x, machine=machine), function, x), name
    measured(f"{len(LOCAL)} groups: each task reads what its results need, and no more")


@both_targets
def test_AS_6_the_same_rows_stay_local_and_shifted_rows_do_not(machine, measured):
    def same(x):
        return x - x.sum(1, keepdim=True)

    def shifted(x):
        return x[1:] - x.sum(1, keepdim=True)[:-1]

    x = random(512, 300)
    near, far = (plan(function, x, machine=machine) for function in (same, shifted))
    assert (near.schemes, near.kernel.barriers) == ([Scheme.REGIONAL], 0)
    assert (far.schemes, far.kernel.barriers) == ([Scheme.SHARED], 1)
    agree(far.run([x]), [shifted(x.double())], 1e-12)
    measured("the same rows: regional, no barrier; shifted by one: shared, 1 barrier")


@both_targets
def test_AS_7_elementwise_groups_follow_the_reduction(machine, measured):
    def norm(x, bias):
        return (x / x.sum(1, keepdim=True)).exp() + bias

    arguments = random(512, 1000).abs(), random(1000)
    (alone,) = plan(lambda x: x.sum(1), arguments[0], machine=machine).schedules
    (schedule,) = plan(norm, *arguments, machine=machine).schedules
    rows = [[evaluate(a.extent, {}) for a in found.mappings[0].rows] for found in (alone, schedule)]
    assert len(schedule.mappings) == 1 and rows[0] == rows[1]
    assert list(schedule.schemes.values()) == [Scheme.REGIONAL]
    measured(f"rows {rows[0]} of the sum alone and with its consumers, which are regional")


def row_sum(x):
    return x.sum(1)


def tile_rows(program):
    """Rows of a tile, as printed."""
    head = next(line for line in program.text.splitlines() if "tiles of" in line)
    return int(head.partition("tiles of ")[2].split()[0])


def test_AS_8_short_rows_share_a_block(measured):
    found = plan(row_sum, random(750000, 32), machine=GPU)
    (step,) = found.steps
    program = triton_program(step)
    threads = 32 * program.warps
    rows = tile_rows(program)
    assert rows >= 32 and threads > 32
    processor = plan(row_sum, random(750000, 32), machine=CPU)
    assert len(processor.kernels) == 1
    measured(f"gpu: {rows} rows in a tile of a block of {threads} threads")


def test_AS_9_a_launch_is_one_wave_of_blocks_that_loop(measured):
    """The paper's numbers from our occupancy; and what our own launch does with them."""
    held = occupancy(VOLTA, registers=32, shared_bytes=0, warps=32).blocks * VOLTA.sms
    tiles = -(-750000 // 32)
    assert (held, -(-tiles // held)) == (160, 147)
    (step,) = plan(lambda x: x - x.sum(0), random(75000, 32), machine=GPU).steps
    program = triton_program(step)
    assert program.barriers and "programs)" in program.text
    grids = [grid(program, resident) for resident in (160, 264, 1 << 20)]
    assert grids[0] == 160 and grids[1] == 264 and grids[2] < 1 << 20
    measured(f"V100: {held} blocks, {-(-tiles // held)} tiles each; ours: grids of {grids[:2]}")


@both_targets
def test_AS_10_few_long_rows_are_split(machine, measured):
    crowd = replace(machine, threads=132)
    x = random(4, 300000)

    def blocks(rows, length):
        (schedule,) = plan(row_sum, random(rows, length), machine=crowd).schedules
        rows_of = [evaluate(axis.extent, {}) for axis in schedule.mappings[0].rows]
        return torch.tensor(rows_of).prod().item(), list(schedule.schemes.values())

    split, whole, between = (blocks(64, length) for length in (300000, 1000, 30000))
    assert split[0] > 64 and split[1] == [Scheme.PARTIAL]
    assert whole == between == (64, [Scheme.REGIONAL])
    shares = plan(lambda x: x / x.sum(1, keepdim=True), x, machine=crowd)
    assert len(shares.kernels) == 1 and shares.schemes == [Scheme.PARTIAL]
    agree(shares.run([x]), [x.double() / x.double().sum(1, keepdim=True)], 1e-9)
    words = f"<64,300000>: {split[0]} blocks, <64,30000> and <64,1000>: {whole[0]}"
    measured(f"{words}; with a consumer 1 kernel")


def in_the_middle(x):
    centred = x - x.sum(0)
    return centred * centred.sum(1, keepdim=True) * 0.5


@both_targets
def test_AS_11_columns_in_the_middle(machine, measured):
    x = random(512, 300)
    found = plan(in_the_middle, x, machine=machine)
    assert len(found.kernels) == 1
    assert found.kernel.barriers >= 1 and Scheme.PARTIAL in found.schemes
    assert scratch(found.kernel, Role.SHARED, found.sizes) > 0
    agree(found.run([x]), [in_the_middle(x.double())], 1e-10)
    check_numbers(in_the_middle, (x,))
    plain = plan(in_the_middle, x, machine=machine, options=CONSERVATIVE)
    measured(f"1 kernel, {found.kernel.barriers} barriers; conservative {len(plain.kernels)}")


@pytest.mark.needs_gpu("10,000 launches beside a second stream")
def test_AS_12_the_barrier_is_safe(measured):
    x = random(512, 256)
    (step,) = plan(in_the_middle, x, machine=GPU).steps
    program = triton_program(step)
    assert program.text.count("device.grid_barrier(semaphore, programs)") == program.barriers > 0
    assert grid(program, 132) <= 132
    # The same phases as machine code of this processor, as often as the row asks.
    compiled = torch.compile(in_the_middle, backend="hemstitch", options={"strict": True})
    expected = compiled(x)
    launches = 10_000
    assert all(torch.equal(compiled(x), expected) for _ in range(launches))
    measured(f"cpu: {launches} launches equal; gpu: cooperative, no more programs than resident")


def test_AS_13_resident_blocks_and_what_limits_them(measured):
    """A kernel's grid follows from what was compiled, so nothing has to be assumed and relaxed; the
    numbers are the paper's."""

    def held(known, registers, shared=0):
        found = occupancy(known, registers=registers, shared_bytes=shared, warps=32)
        return found.blocks * known.sms, found.limiters

    counts = [held(known, 32)[0] for known in (VOLTA, AMPERE, HOPPER)]
    assert counts == [160, 216, 264]
    # Where shared memory lets in one block only, twice the registers are free.
    most = max(r for r in range(32, 256) if held(HOPPER, r, 120 << 10)[0] == 132)
    assert most == 64 and Limiter.SHARED in held(HOPPER, 64, 120 << 10)[1]
    known = machine_code(plan(in_the_middle, random(4096, 1024), machine=GPU))[0]
    assert known.spills == 0
    numbers = ", ".join(map(str, counts))
    measured(f"V100, A100, H100: {numbers} blocks; 64 registers beside 120 KiB; 0 spills")


def test_AS_14_what_does_not_fit_is_given_up_one_by_one(measured):
    """Values kept for later loops of a row: what does not fit is made again, in one kernel."""

    def function(x):
        first, second, third = x.exp(), (x * x + 1).log(), x.tanh()
        total = (first * second * third).sum(1, keepdim=True)
        return (first - total, second * total, third / total)

    x, found = random(16, 1024), []
    row_bytes = 4 * 1024
    for budget in range(4 * row_bytes, -1, -row_bytes):
        each = plan(function, x, machine=replace(CPU, l2_bytes=2 * budget))
        agree(each.run([x]), function(x.double()), 1e-12)
        rows = [b for b in each.kernel.buffers if b.role is Role.TASK]
        found.append(len(rows))
    assert found == sorted(found, reverse=True) and set(found) == set(range(max(found) + 1))
    measured(f"rows kept as the budget falls by one row at a time: {found}; 1 kernel each")


def one_after_another(x):
    """Six sums of columns, each of what the one before has to be known for."""
    total = x.sum(0)
    for _ in range(5):
        total = (x * total).sum(0) / len(x)
    return x - total


def most_alive(kernel, sizes):
    """Bytes of what tasks share, in the phase that has most of it."""
    bytes_ = {b: evaluate(b.size, sizes) * b.dtype.bytes for b in kernel.buffers}
    lives = [(bytes_[b], life) for b, life in phase_lifetimes(kernel).items() if is_shared(b)]
    phases = range(len(kernel.phases))
    return max(sum(size for size, (a, z) in lives if a <= phase <= z) for phase in phases)


def is_shared(buffer):
    return buffer.role is Role.SHARED


@both_targets
def test_AS_15_scratch_between_phases_is_as_much_as_lives_at_once(machine, measured):
    x = random(512, 320)
    found = plan(one_after_another, x, machine=machine)
    kernel = found.kernel
    buffers = sum(map(is_shared, kernel.buffers))
    all_ = scratch(kernel, Role.SHARED, found.sizes)
    if machine is CPU:
        layout = scratch_layout(kernel, machine.threads)
        bytes_ = layout.total - layout.stride * machine.threads
    else:
        bytes_ = triton_program(found.steps[0]).scratch_layout(found.sizes)[1]
    assert kernel.barriers >= 6 and buffers >= 6
    assert bytes_ == most_alive(kernel, found.sizes) < all_ / 2
    agree(found.run([x]), [one_after_another(x.double())], 1e-9)
    check_numbers(one_after_another, (x,))
    measured(f"{buffers} buffers of {all_} bytes in {bytes_}, the most that live at once")


@both_targets
def test_AS_16_one_element_for_many_readers_is_computed_once(machine, measured):
    def function(p, x):
        return (p**3.5)[:, None] + x

    arguments = random(2).abs(), random(2, 128)
    found = plan(function, *arguments, machine=machine)
    assert evaluations(found.kernel, Op.POW, found.sizes) in (2, 4)
    agree(found.run(arguments), [function(*(x.double() for x in arguments))], 1e-12)
    made = evaluations(found.kernel, Op.POW, found.sizes)
    measured(f"power computed {made} times for 256 elements")


@both_targets
def test_AS_17_what_several_read_is_computed_and_loaded_once(machine, measured):
    def function(x, w):
        shared = (x * w).exp()
        return torch.softmax(shared, -1), shared.tanh() * w

    arguments = random(64, 1000), random(1000)
    found = plan(function, *arguments, machine=machine)
    softmax = plan(lambda x: torch.softmax(x, -1), arguments[0], machine=machine)
    own = evaluations(softmax.kernel, Op.EXP, found.sizes)
    made = evaluations(found.kernel, Op.EXP, found.sizes) - own
    assert made == 64 * 1000
    assert found.bytes_read == sum(x.nbytes for x in arguments)
    plain = plan(function, *arguments, machine=machine, options=CONSERVATIVE)
    assert plain.bytes_read > 2 * found.bytes_read
    measured(f"{made} elements made once; {found.bytes_read} bytes read, apart {plain.bytes_read}")


ROWS, LENGTHS = (1, 7, 64, 750000), (1, 31, 32, 33, 1024, 1025, 30000)
TYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_ELEMENTS = 1 << 21  # of arguments that are really made


def normalised(x):
    return torch.softmax(x, -1) + x.sum(-1, keepdim=True) * 2**-10


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_AS_18_rows_of_any_number_and_length(dtype, measured):
    worst = largest = numbers = 0
    for rows in ROWS:
        for length in LENGTHS:
            is_made = rows * length <= MOST_ELEMENTS
            x = random(rows, length, dtype=dtype) if is_made else _stub(rows, length, dtype)
            found = plan(normalised, x, machine=GPU)
            (step,) = found.steps
            program = triton_program(step)
            programs = grid(program, PROGRAMS if program.barriers else None)
            assert 0 < programs < 1 << 31 and 32 * program.warps <= 1024
            largest = max(largest, programs)
            if is_made:
                torch._dynamo.reset()
                result = torch.compile(normalised, backend="hemstitch")(x).double()
                exact, eager = normalised(x.double()), normalised(x).double()
                error, other = (float((y - exact).abs().max()) for y in (result, eager))
                assert error <= 2 * other + 1e-6, (rows, length)
                worst, numbers = max(worst, error), numbers + 1
    words = f"{numbers} shapes within twice eager's error, at most {worst:.1e}"
    measured(f"{words}; {largest} programs at most")


def _stub(rows, length, dtype):
    """As large as it says, and not there."""
    with FakeTensorMode():
        return torch.empty(rows, length, dtype=dtype)


@both_targets
def test_AS_19_sums_repeat(machine, measured):
    def function(x):
        return x.sum(), x.sum(0), (x - x.mean(0)).square().mean()

    x = random(700, 257)
    found = plan(function, x, machine=machine)
    for step in found.steps:
        text = text_of(step, machine)
        assert "atomic_add" not in text and "atomicrmw fadd" not in text
    orders = [list(range(7)), list(range(7))[::-1], [3, 1, 6, 0, 2, 5, 4]]
    runs = [
        Simulation({}, 7, order, precise=False).run(found.graph, found.plan, [x])
        for order in orders
    ]
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run, runs[0]))
    measured(f"{len(found.kernels)} kernel, equal bits in {len(orders)} orders of tasks")


def across(x):
    """Sums of rows that softmax takes for columns."""
    return torch.softmax(x + x.sum(1), -1)


@both_targets
def test_AS_24_programs_wait_only_where_the_model_says_so(machine, measured):
    """The same reduction with barriers that are dear; and with all of them switched off."""
    crowd = replace(machine, threads=132)
    x = random(4, 300000)
    usual = plan(row_sum, x, machine=crowd)
    dear = plan(row_sum, x, machine=replace(crowd, barrier_seconds=1e-2))
    off = plan(row_sum, x, machine=crowd, options=Options(global_stitching=False))
    assert len(usual.kernel.phases) == 2
    assert len(dear.kernel.phases) == len(off.kernel.phases) == 1
    # One task goes on alone where that takes no longer than telling all.
    few, many = (plan(lambda x: x.sum(0), random(4096, n), machine=GPU) for n in (8, 4096))
    begins = [[p.begin for p in each.kernel.phases[1:]] for each in (few, many)]
    assert begins[0] == [Begin.LAST_BLOCK] and Begin.LAST_BLOCK not in begins[1]
    # Of two kernels only one is made where waiting takes no longer than launching.
    apart, together = (
        plan(across, random(512, 512), machine=replace(GPU, barrier_seconds=seconds))
        for seconds in (2e-6, 1e-6)
    )
    assert [len(each.kernels) for each in (apart, together)] == [2, 1]
    measured(
        "<4,300000> split; not with barriers of 10 ms, nor switched off; ticket or barrier; "
        "rows and columns in two kernels where a barrier takes 2 us, in one where it takes 1 us"
    )


def test_AS_25_only_the_backend_is_named(measured, monkeypatch):
    monkeypatch.setenv("HEMSTITCH_STRICT", "1")
    torch.manual_seed(0)
    model, x = Layer(64, 4), random(2, 16, 64)
    mask = torch.zeros(2, 1, 1, 16)
    compiled = torch.compile(model, backend="hemstitch")
    errors = {}
    for precision in (torch.float32, torch.bfloat16):
        gradients = []
        for function in (model, compiled):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
                loss = function(x, mask).float().square().mean()
            loss.backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*gradients))
        errors[str(precision)[6:]] = worst
    assert errors["float32"] < 1e-3 and errors["bfloat16"] < 0.2
    with torch.no_grad():
        agree([compiled(x, mask)], [model(x, mask)], 1e-5)
    monkeypatch.setenv("HEMSTITCH_PLANNER", "conservative")
    torch._dynamo.reset()
    with torch.no_grad():
        agree([torch.compile(model, backend="hemstitch")(x, mask)], [model(x, mask)], 1e-5)
    words = ", ".join(f"{name} {error:.0e}" for name, error in errors.items())
    measured(f"training, inference, autocast; gradients differ from eager's by {words}")
