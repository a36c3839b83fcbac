"""The option `freeze`: what weights alone decide is computed once, and anew when they change."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hemstitch
from hemstitch.driver import cpu_kernels as native
from hemstitch.driver.verified import difference
from hemstitch.errors import OptionError
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep
from hemstitch.runtime.prepacked import PrepackedWeights

STRICT = {"freeze": True, "strict": True, "check": True}
FEATURES, HIDDEN, ROWS = 24, 80, 10

pytestmark = pytest.mark.usefixtures("kernels_multiply")


class Perceptron(nn.Module):
    """Products, a normalisation whose scale follows from buffers, and a cast."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.second = nn.Linear(HIDDEN, FEATURES)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.register_buffer("scale", torch.rand(FEATURES, dtype=torch.float64) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.second(torch.tanh(self.first(x))))
        return y * self.scale.float()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def model() -> Perceptron:
    made = Perceptron().eval()
    with torch.no_grad():
        made.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr,operator]
        made.norm.running_mean.normal_()  # type: ignore[union-attr,operator]
    return made


def compiled(made: nn.Module, **more: object) -> Callable[[Tensor], Tensor]:
    function = torch.compile(made, backend="hemstitch", options={**STRICT, **more})

    def without_gradients(x: Tensor) -> Tensor:
        with torch.no_grad():
            return function(x)

    return without_gradients


def agrees(function: Callable[[Tensor], Tensor], made: nn.Module, rows: int = ROWS) -> None:
    x = torch.randn(rows, FEATURES)
    with torch.no_grad():
        assert difference(function(x), made(x)) < 1e-5


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each time that something is computed once."""
    found: list[int] = []
    original = PrepackedWeights._computed

    def counting(self: PrepackedWeights, arguments: list[object]) -> tuple[object, ...]:
        found.append(len(arguments))
        return original(self, arguments)

    monkeypatch.setattr(PrepackedWeights, "_computed", counting)
    return found


def test_later_calls_find_what_the_first_computed(computed: list[int]) -> None:
    made = model()
    function = compiled(made)
    for _ in range(3):
        agrees(function, made)
    assert len(computed) == 1


def test_calls_neither_pack_nor_cast_nor_normalise_weights() -> None:
    with torch.no_grad():
        each = hemstitch.explain(model(), torch.randn(ROWS, FEATURES))
        frozen = hemstitch.explain(model(), torch.randn(ROWS, FEATURES), options=STRICT)
    assert not each.once and sum("packed" in name for name in frozen.once) == 2
    assert "  once      packed0 x 1" in str(frozen) and "once" not in str(each)
    assert "rsqrt" in {op for kernel in each.kernels for op in kernel.ops}
    assert "rsqrt" not in {op for kernel in frozen.kernels for op in kernel.ops}
    assert sum(k.barriers for k in frozen.kernels) < sum(k.barriers for k in each.kernels)
    assert frozen.bytes_read + frozen.bytes_written < each.bytes_read + each.bytes_written


def _written(made: Perceptron) -> None:
    with torch.no_grad():
        made.first.weight.mul_(2)


def _replaced(made: Perceptron) -> None:
    made.second.weight = nn.Parameter(torch.randn(FEATURES, HIDDEN))


def _moved(made: Perceptron) -> None:
    made.second.weight.data = torch.randn(FEATURES, HIDDEN)


def _loaded(made: Perceptron) -> None:
    made.load_state_dict(model().state_dict())


def _buffer_written(made: Perceptron) -> None:
    made.norm.running_var.fill_(3.0)  # type: ignore[union-attr,operator]


def _part_written(made: Perceptron) -> None:
    """Views count with what they look at."""
    with torch.no_grad():
        made.first.weight[3].zero_()


@pytest.mark.parametrize(
    "change", [_written, _replaced, _moved, _loaded, _buffer_written, _part_written]
)
def test_a_weight_that_changes_is_seen(change: Callable[[Perceptron], None]) -> None:
    made = model()
    function = compiled(made)
    agrees(function, made)
    change(made)
    agrees(function, made)


def test_modules_that_share_a_graph_have_results_each(computed: list[int]) -> None:
    """As the layers of a model do that are compiled one by one."""
    one, other = model(), model()
    functions = [compiled(one), compiled(other)]
    for _ in range(3):
        for function, made in zip(functions, (one, other)):
            agrees(function, made)
    assert len(computed) == 2


def test_results_live_no_longer_than_the_weights() -> None:
    made, known = model(), list[PrepackedWeights]()
    original = PrepackedWeights.__init__

    def noting(self: PrepackedWeights, *arguments: object) -> None:
        known.append(self)
        original(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrepackedWeights, "__init__", noting)
        agrees(compiled(made), made)
    (once,) = known
    assert len(once._known) == 1
    weight = weakref.ref(made.first.weight)
    torch._dynamo.reset()
    del made
    gc.collect()
    assert weight() is None and len(once._known) == 0


def test_a_buffer_that_the_program_writes_to_is_not_frozen() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(FEATURES))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x * self.calls.exp()

    ours, theirs = Counting(), Counting()
    function = compiled(ours)
    x = torch.randn(ROWS, FEATURES)
    for _ in range(3):
        torch.testing.assert_close(function(x), theirs(x))
    assert torch.equal(ours.calls, theirs.calls)


def test_what_the_program_gets_is_its_own() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(FEATURES))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            table = self.weight.exp()
            return table, x + table

    made = Table()
    function = compiled(made)
    x = torch.randn(ROWS, FEATURES)
    for _ in range(2):
        table, total = function(x)
        torch.testing.assert_close(total, x + made.weight.detach().exp())
        table.zero_()


def test_training_is_as_without() -> None:
    made = model()
    function = torch.compile(made, backend="hemstitch", options=STRICT)
    for _ in range(2):
        x = torch.randn(ROWS, FEATURES)
        found = torch.autograd.grad(function(x).square().sum(), [*made.parameters()])
        wanted = torch.autograd.grad(made(x).square().sum(), [*made.parameters()])
        for ours, theirs in zip(found, wanted):
            assert difference(ours, theirs) < 1e-4
        _written(made)


def test_sizes_that_only_a_call_knows(computed: list[int]) -> None:
    made = model()
    function = torch.compile(made, backend="hemstitch", options=STRICT, dynamic=True)
    for rows in (7, 10, 33):
        with torch.no_grad():
            agrees(function, made, rows)
    assert len(computed) == 1


def test_in_inference_mode_and_outside() -> None:
    made = model()
    function = torch.compile(made, backend="hemstitch", options=STRICT)
    x = torch.randn(ROWS, FEATURES)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            assert difference(function(x), made(x)) < 1e-5


def test_weights_that_were_made_in_inference_mode() -> None:
    with torch.inference_mode():
        made = model()
        function = torch.compile(made, backend="hemstitch", options=STRICT)
        x = torch.randn(ROWS, FEATURES)
        for _ in range(2):
            assert difference(function(x), made(x)) < 1e-5


def test_half_precision() -> None:
    made, x = model(), torch.randn(ROWS, FEATURES)
    function = compiled(made)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            found, eager = function(x), made(x)
        exact = made.double()(x.double())
        made.float()
        assert (found - exact).norm() <= 2 * (eager - exact).norm()


@pytest.mark.parametrize("option", ["verify", "asynchronous"])
def test_with_other_options(option: str) -> None:
    made = model()
    function = compiled(made, **{option: True})
    for _ in range(2):
        agrees(function, made)


def test_emulated() -> None:
    pytest.importorskip("triton")
    made = model()
    function = compiled(made, target="interpret")
    agrees(function, made)
    _buffer_written(made)
    agrees(function, made)


def test_not_with_cuda_graphs() -> None:
    with pytest.raises(OptionError, match='"freeze" and "cuda_graphs" exclude each other'):
        Options.parse({"freeze": True, "cuda_graphs": True})


def test_what_cannot_pack_before_packs_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    original = native.program_of

    def fails(step: KernelStep, *rest: object) -> object:
        if step.stitched.kernel.name.startswith("packed"):
            raise RuntimeError("on purpose")
        return original(step, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(native, "program_of", fails)
    made = model()
    function = compiled(made)
    agrees(function, made)
    _written(made)
    agrees(function, made)


def test_a_sparse_weight_is_no_weight_here() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.eye(FEATURES).to_sparse_csr())
            self.weight = nn.Parameter(torch.randn(FEATURES))

        def forward(self, x: Tensor) -> Tensor:
            return torch.mm(self.adjacency, x.t()).t() * self.weight.exp()

    made = Sparse()
    agrees(compiled(made), made)
