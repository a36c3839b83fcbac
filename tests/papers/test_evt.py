"""EVT's rows about graph passes: the joint graph, the loss, the table of decompositions, sums that
need not be added up, a user's rewrites. Its rows about the integer program are in
test_search_evt.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hemstitch.joint.partition as splitting
from hemstitch.backend import compile_with
from hemstitch.joint.joint_graph import JointGraph
from hemstitch.options import Options
from hemstitch.report.explain import Report, explain

aten = torch.ops.aten
ROWS, CLASSES = 48, 100
Program = Callable[..., Tensor]


def relative(found: Tensor, expected: Tensor) -> float:
    scale = expected.double().norm().item()
    return (found.double() - expected.double()).norm().item() / (scale or 1.0)


def compiled(program: Program, **options: Any) -> Program:
    torch._dynamo.reset()
    return torch.compile(program, backend="hemstitch", options={"strict": True, **options})


def both(program: Program, arguments: Sequence[Tensor]) -> list[Tensor]:
    """The result, and the gradients of everything that has one."""
    trained = [x for x in arguments if x.requires_grad]
    result = program(*arguments)
    torch.manual_seed(1)
    return [result, *torch.autograd.grad(result, trained, torch.randn_like(result))]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def classes() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, CLASSES, requires_grad=True), torch.randint(CLASSES, (ROWS,))


def operations(report: Report, graph: str) -> list[str]:
    return [op for kernel in report.kernels if kernel.graph == graph for op in kernel.ops]


def test_EV_1_one_line_and_forward_and_backward_are_one_graph(monkeypatch, measured) -> None:
    """A perceptron learns as in eager; what is split has the operations of both passes."""
    seen: list[set[str]] = []
    asked = splitting.question

    def spy(joint: JointGraph, *rest: Any) -> Any:
        seen.append({str(node.target) for node in joint.traced.nodes if node.op == "call_function"})
        return asked(joint, *rest)

    monkeypatch.setattr(splitting, "question", spy)
    curves = []
    for backend in ("eager", "hemstitch"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10))
        torch._dynamo.reset()
        step = torch.compile(lambda x, y, m=model: F.cross_entropy(m(x), y), backend=backend)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
        x, y = torch.randn(64, 32), torch.randint(10, (64,))
        losses = []
        for _ in range(20):
            optimiser.zero_grad()
            loss = step(x, y)
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        curves.append(torch.stack(losses))
    error = relative(curves[1], curves[0])
    assert error < 1e-5 and curves[1][-1] < 0.5 * curves[1][0]
    [joint] = seen
    assert {"aten.gelu.default", "aten.gelu_backward.default"} <= joint
    measured(f"20 steps follow eager within {error:.0e}")


def test_EV_2_the_loss_is_computed_when_it_is_asked_for() -> None:
    logits, labels = classes()
    expected = both(cross_entropy, (logits, labels))
    usual = both(compiled(cross_entropy), (logits, labels))
    torch.testing.assert_close(usual, expected)
    never = both(compiled(cross_entropy, loss_every=0), (logits, labels))
    assert never[0].isnan() and relative(never[1], expected[1]) < 1e-6
    step = compiled(cross_entropy, loss_every=2)
    values = [both(step, (logits, labels))[0] for _ in range(4)]
    assert [bool(value.isnan()) for value in values] == [False, True, False, True]
    report = explain(cross_entropy, logits, labels, backward=True, options={"loss_every": 0})
    assert operations(report, "forward") == []


def test_EV_2_binary_cross_entropy() -> None:
    logits, labels = torch.randn(ROWS, 8, requires_grad=True), torch.rand(ROWS, 8).round()
    loss = F.binary_cross_entropy_with_logits
    [_, expected] = both(loss, (logits, labels))
    [value, found] = both(compiled(loss, loss_every=0), (logits, labels))
    assert value.isnan() and relative(found, expected) < 1e-6


def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def doubles(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


LABELS = torch.arange(ROWS) * 7 % CLASSES
TABLE: dict[str, tuple[Program, list[tuple[int, ...]]]] = {
    "log softmax": (lambda x: F.log_softmax(x, -1), [(ROWS, CLASSES)]),
    "softmax": (lambda x: F.softmax(x, -1), [(ROWS, CLASSES)]),
    "negative log likelihood": (lambda x: F.nll_loss(x, LABELS), [(ROWS, CLASSES)]),
    "cross entropy, some ignored": (
        lambda x: F.cross_entropy(x, LABELS, ignore_index=7),
        [(ROWS, CLASSES)],
    ),
    "product plus bias": (F.linear, [(6, 8), (5, 8), (5,)]),
    "relu": (F.relu, [(33, 17)]),
    "batch norm": (normed, [(6, 4, 5, 5), (4,), (4,)]),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (17,), w, b), [(33, 17), (17,), (17,)]),
    "max pool": (lambda x: F.max_pool2d(x, 2), [(2, 3, 8, 8)]),
    "transposed": (lambda x, y: (x.t() @ y).t() + 1, [(6, 4), (6, 5)]),
    "gelu": (F.gelu, [(33, 17)]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), [(2, 3, 8, 8), (4, 3, 3, 3)]),
}


@pytest.mark.parametrize("name", TABLE)
def test_EV_3_each_decomposition_alone(name: str) -> None:
    program, shapes = TABLE[name]
    arguments = doubles(*shapes)
    for found, expected in zip(both(compiled(program), arguments), both(program, arguments)):
        assert relative(found, expected) < 1e-12


def test_EV_3_dropout_scales_what_it_keeps_and_backward_has_its_mask() -> None:
    [x] = doubles((64, 128))
    result = compiled(lambda x: F.dropout(x, 0.25))(x)
    [gradient] = torch.autograd.grad(result.sum(), [x])
    kept = result != 0
    assert abs(kept.double().mean().item() - 0.75) < 4 * (0.25 * 0.75 / x.numel()) ** 0.5
    torch.testing.assert_close(result[kept], x[kept] / 0.75, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, kept.double() / 0.75, rtol=1e-6, atol=0)


def test_EV_3_relu_has_no_gradient_at_zero() -> None:
    x = torch.tensor([-1.0, 0.0, -0.0, 2.0], dtype=torch.float64, requires_grad=True)
    [gradient] = torch.autograd.grad(compiled(F.relu)(x).sum(), [x])
    assert gradient.tolist() == [0, 0, 0, 1]


def test_EV_4_statistics_of_a_large_mean_are_as_exact_as_eagers() -> None:
    """Not by the squares' mean less the mean's square, which the paper's table has: it cancels."""
    x = (1e3 + 0.1 * torch.randn(64, 8, 10, 10)).requires_grad_()
    weight, bias = (torch.randn(8, requires_grad=True) for _ in range(2))
    exact = both(normed, [a.detach().double().requires_grad_() for a in (x, weight, bias)])
    ours, eager = (both(each, (x, weight, bias)) for each in (compiled(normed), normed))
    for found, base, expected in zip(ours, eager, exact):
        assert relative(found, expected) <= 2 * relative(base, expected) + 1e-6


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias))


def test_EV_5_a_users_rewrite_sees_the_graph_and_wrong_ones_are_refused() -> None:
    def pattern(bias: Any, x: Any, y: Any) -> Any:
        return aten.addmm.default(bias, x, y)

    def replacement(bias: Any, x: Any, y: Any) -> Any:
        return aten.add.Tensor(aten.mm.default(x, y), bias)

    given = [torch.randn(s, requires_grad=True) for s in ((5, 8), (6, 8), (6,))]
    options = {"rewrites": [(pattern, replacement)]}
    report = explain(linear, *given, backward=True, options=options)
    assert "aten.addmm.default" not in report.library_calls
    found, expected = both(compiled(linear, **options), given), both(linear, given)
    for ours, eager in zip(found, expected):
        assert relative(ours, eager) < 1e-5
    with pytest.raises(Exception, match="takes 3 arguments, its replacement"):
        compiled(linear, rewrites=[(pattern, lambda x: x)])(*given)


def test_EV_6_a_sum_that_is_known_is_not_added_up(measured) -> None:
    """The gradient of cross entropy sums its one-hot rows; tests/rewrites/test_reassociate.py has
    26 such sums, and 8 that stay."""
    logits, labels = classes()
    usual = explain(cross_entropy, logits, labels, backward=True)
    report = explain(cross_entropy, logits, labels, backward=True, options={"reassociate": True})
    before, after = (operations(each, "backward").count("sum") for each in (usual, report))
    assert after < before
    expected = both(cross_entropy, (logits, labels))
    for found, wanted in zip(
        both(compiled(cross_entropy, reassociate=True), (logits, labels)), expected
    ):
        assert relative(found, wanted) < 1e-6
    measured(f"{before} sums, then {after}")


def test_EV_7_softmax_and_cross_entropy_are_one_kernel_of_softmax(measured) -> None:
    logits, labels = classes()
    options = {"loss_every": 0, "reassociate": True}
    report = explain(cross_entropy, logits, labels, backward=True, options=options)
    found = operations(report, "backward")
    assert operations(report, "forward") == []
    assert len([kernel for kernel in report.kernels if kernel.graph == "backward"]) == 1
    assert "log" not in found and found.count("exp") == 1
    measured(f"one kernel, {len(found)} operations, no log, one exp")


def test_EV_7_half_precision_is_as_exact_as_eager() -> None:
    logits = torch.randn(ROWS, CLASSES, dtype=torch.float16, requires_grad=True)
    _, labels = classes()
    [_, exact] = both(cross_entropy, (logits.detach().double().requires_grad_(), labels))
    [_, eager] = both(cross_entropy, (logits, labels))
    [_, ours] = both(compiled(cross_entropy, loss_every=0, reassociate=True), (logits, labels))
    assert relative(ours, exact) <= 2 * relative(eager, exact)


def test_EV_8_equal_values_factors_constants_and_what_nobody_needs() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        unused = torch.exp(x)  # noqa: F841
        twice = torch.tanh(x) * y + y * torch.tanh(x)
        return twice * 2.0 * 3.0 + x * torch.ones(()) * 0.0 * 0.0

    given = [torch.randn(8, 16) for _ in range(2)]
    found = operations(explain(program, *given, options={"reassociate": True}), "inference")
    assert found.count("tanh") == 1 and "exp" not in found
    torch.testing.assert_close(compiled(program, reassociate=True)(*given), program(*given))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.int64], ids=str
)
def test_EV_35_every_type_is_split_and_computed(dtype: torch.dtype) -> None:
    """The artifact's partitioner knows no bf16 and no f64."""
    x = torch.randn(ROWS, 32, requires_grad=True)
    other = (torch.randn(ROWS, 32) * 3).to(dtype)

    def program(x: Tensor, other: Tensor) -> Tensor:
        return (torch.tanh(x) * other).float().pow(2).sum(-1)

    results = zip(both(compiled(program), (x, other)), both(program, (x, other)))
    for found, expected in results:
        assert relative(found, expected) < 1e-5


def test_EV_25_masks_are_independent_and_backward_has_the_same(measured) -> None:
    """The artifact's blocks all draw the same numbers."""
    x = torch.ones(512, 1024, requires_grad=True)
    program = compiled(lambda x: F.dropout(torch.tanh(x), 0.5))
    masks = []
    for _ in range(2):
        result = program(x)
        [gradient] = torch.autograd.grad(result.sum(), [x])
        assert torch.equal(gradient != 0, result != 0)
        masks.append(result.detach() != 0)
    assert abs((masks[0] == masks[1]).double().mean().item() - 0.5) < 0.01
    tiles = masks[0].double().reshape(64, -1) - 0.5
    alike = (tiles @ tiles.t() / tiles.shape[1] * 4).fill_diagonal_(0).abs().max().item()
    assert alike < 5 * tiles.shape[1] ** -0.5
    deviation = abs(masks[0].double().mean().item() - 0.5) / (0.5 / masks[0].numel() ** 0.5)
    assert deviation < 4
    measured(f"mean within {deviation:.1f} sigma, tiles correlate at most {alike:.3f}")


def test_EV_33_one_compile_for_many_batch_sizes(measured) -> None:
    graphs: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Any:
        return compile_with(
            gm, inputs, Options(cache=False, strict=True), lambda kind, _: graphs.append(kind)
        )

    weight, bias = torch.randn(24, 16, requires_grad=True), torch.randn(24, requires_grad=True)
    step = torch.compile(linear, backend=backend, dynamic=True)
    for batch in (7, 8, 13, 64, 100, 511, 512):
        given = (torch.randn(batch, 16, requires_grad=True), weight, bias)
        for found, expected in zip(both(step, given), both(linear, given)):
            assert relative(found, expected) < 1e-5
    assert sorted(graphs) == ["backward", "forward"]
    measured("7 batch sizes, one compile")


SWITCHES: list[dict[str, Any]] = [
    {"loss_every": 0},
    {"reassociate": True},
    {"planner": "conservative"},
    {"planner": "ilp"},
    {"memory_budget": 0.0},
    {"products": False},
]


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_EV_36_each_part_can_be_switched(options: dict[str, Any]) -> None:
    def program(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        hidden = F.layer_norm(F.gelu(x @ weight), (CLASSES,))
        return F.cross_entropy(hidden, labels)

    _, labels = classes()
    given = [torch.randn(s, requires_grad=True) for s in ((ROWS, 32), (32, CLASSES))]
    expected = both(program, [*given, labels])
    for found, wanted in zip(
        both(compiled(program, **options), [*given, labels])[1:], expected[1:]
    ):
        assert relative(found, wanted) < 1e-5
