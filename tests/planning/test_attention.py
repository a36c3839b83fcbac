"""Attention that the library would do, as a kernel: its values, and when it stays the library's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import hemstitch
from hemstitch.capture.effects import has_effects
from hemstitch.ir.dims import known
from hemstitch.ir.graph import Op, toposort
from hemstitch.matmul.patterns.attention import LEAST_ROWS, MOST_PARTS
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

BATCH, HEADS, ROWS, KEYS, FEATURES = 2, 3, 37, 45, 16
LIBRARY = "aten._scaled_dot_product_flash_attention_for_cpu.default"
STRICT = {"strict": True, "check": True}

pytestmark = pytest.mark.usefixtures("kernels_multiply")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


attention = F.scaled_dot_product_attention


def given(keys: int = KEYS, rows: int = ROWS, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """As a model has them: heads are columns of one matrix."""
    lengths = (rows, keys, keys)
    return [torch.randn(BATCH, n, HEADS, FEATURES, dtype=dtype).transpose(1, 2) for n in lengths]


def masked_rows() -> Tensor:
    """With a row that attends to nothing."""
    mask = torch.rand(BATCH, 1, ROWS, KEYS) > 0.4
    mask[0, 0, 5] = False
    return mask


Program = Callable[..., Tensor]
PROGRAMS: dict[str, Program] = {
    "plain": attention,
    "scale": partial(attention, scale=0.3),
    "mask of rows": partial(attention, attn_mask=torch.randn(ROWS, KEYS)),
    "mask of batches": partial(attention, attn_mask=torch.randn(BATCH, 1, ROWS, KEYS)),
    "mask of keys": partial(attention, attn_mask=torch.randn(BATCH, 1, 1, KEYS)),
    "booleans": partial(attention, attn_mask=masked_rows()),
    "causal": partial(attention, is_causal=True),
    "and what follows": lambda q, k, v: torch.tanh(attention(q, k, v)).transpose(1, 2).flatten(2),
}


def doubled(program: Program, arguments: list[Tensor]) -> Tensor:
    """In float64 by its formula, since the library has other kernels for that."""
    if not isinstance(program, partial):
        return program(*(x.double() for x in arguments))
    mask = program.keywords.get("attn_mask")
    wide = mask.double() if isinstance(mask, Tensor) and mask.is_floating_point() else mask
    keywords = program.keywords | ({"attn_mask": wide} if mask is not None else {})
    return program.func(*(x.double() for x in arguments), **keywords)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_values(name: str, dynamic: bool) -> None:
    program, arguments = PROGRAMS[name], given()
    function = torch.compile(program, backend="hemstitch", options=STRICT, dynamic=dynamic)
    with torch.no_grad():
        found, eager, exact = function(*arguments), program(*arguments), doubled(program, arguments)
    assert found.stride() == eager.stride()
    assert (found - exact).norm() <= 2 * (eager - exact).norm()


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("name", ["plain", "booleans", "causal", "and what follows", "bf16 mask"])
@pytest.mark.parametrize("keys", [KEYS, KEYS + 1])
def test_values_of_bf16(name: str, keys: int) -> None:
    half, arguments = (
        torch.bfloat16,
        given(KEYS if name == "booleans" else keys, dtype=torch.bfloat16),
    )
    masked = partial(attention, attn_mask=torch.randn(BATCH, 1, 1, keys, dtype=half))
    program = masked if name == "bf16 mask" else PROGRAMS[name]
    function = torch.compile(program, backend="hemstitch", options=STRICT)
    with torch.no_grad():
        found, eager, exact = function(*arguments), program(*arguments), doubled(program, arguments)
        report = hemstitch.explain(program, *arguments)
    assert found.stride() == eager.stride() and found.dtype is half
    assert (found - exact).norm() <= 2 * (eager - exact).norm()
    assert report.kernel_count == 1 and not report.library_calls


@pytest.mark.usefixtures("kernels_multiply")
def test_training_of_bf16() -> None:
    arguments = [x.detach().requires_grad_() for x in given(dtype=torch.bfloat16)]
    function = torch.compile(attention, backend="hemstitch", options=STRICT)
    wide = [x.detach().double().requires_grad_() for x in arguments]
    found, eager, exact = (
        torch.autograd.grad(call(*given_).square().sum(), given_)
        for call, given_ in ((function, arguments), (attention, arguments), (attention, wide))
    )
    for ours, theirs, right in zip(found, eager, exact):
        assert (ours - right).norm() <= 2 * (theirs - right).norm()


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel(name: str) -> None:
    with torch.no_grad():
        report = hemstitch.explain(PROGRAMS[name], *given())
    assert report.kernel_count == 1 and not report.library_calls
    scores = 4 * BATCH * HEADS * ROWS * KEYS
    assert all(size < scores for size in report.kernels[0].writes.values())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite(value: float) -> None:
    arguments = given()
    arguments[0][0, 1, 3] = value
    function = torch.compile(attention, backend="hemstitch", options=STRICT)
    with torch.no_grad():
        found, eager = function(*arguments), attention(*arguments)
    assert torch.equal(found.isfinite(), eager.isfinite())
    finite = eager.isfinite()
    torch.testing.assert_close(found[finite], eager[finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "causal", "mask of keys"])
@pytest.mark.parametrize("rows", [ROWS, 6 * LEAST_ROWS])
def test_training(name: str, rows: int) -> None:
    """The library's gradients start from the sums of our kernel."""
    program = PROGRAMS[name]
    arguments = [x.detach().requires_grad_() for x in given(rows=rows)]
    function = torch.compile(program, backend="hemstitch", options=STRICT)
    found, wanted = (
        torch.autograd.grad(call(*arguments).square().sum(), arguments)
        for call in (function, program)
    )
    for ours, theirs in zip(found, wanted):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    report = hemstitch.explain(program, *arguments, backward=True)
    assert [call for call in report.library_calls if "backward" not in call] == []


@pytest.mark.parametrize(("rows", "keys"), [(170, 170), (391, 400), (400, 300), (131, 200)])
def test_causal_rows_in_parts(rows: int, keys: int) -> None:
    program, arguments = PROGRAMS["causal"], given(keys, rows)
    function = torch.compile(program, backend="hemstitch", options=STRICT)
    with torch.no_grad():
        found, eager, exact = function(*arguments), program(*arguments), doubled(program, arguments)
    assert found.stride() == eager.stride()
    assert (found - exact).norm() <= 2 * (eager - exact).norm()


def multiplied(name: str, rows: int) -> int:
    with torch.no_grad():
        ((_, plan),) = plans_of(PROGRAMS[name], given(rows, rows), generic_cpu(2, 16))
    products = [node for node in toposort(plan.graph.roots) if node.op is Op.DOT]
    return sum(known(each.type.size * each.inputs[0].shape[-1]) for each in products)


def test_parts_multiply_little_more_than_half() -> None:
    rows = MOST_PARTS * LEAST_ROWS
    share = multiplied("causal", rows) / multiplied("plain", rows)
    assert share == pytest.approx(1 / 2 + 1 / (2 * MOST_PARTS))


STAYING: dict[str, tuple[Program, list[Tensor], dict[str, object]]] = {
    "one key": (attention, given(keys=1), {}),
    "half precision": (attention, given(dtype=torch.float16), {}),
    "no products": (attention, given(), {"products": False}),
}


@pytest.mark.parametrize("name", STAYING)
def test_what_stays_the_librarys(name: str) -> None:
    program, arguments, options = STAYING[name]
    with torch.no_grad():
        report = hemstitch.explain(program, *arguments, options=options)
        assert LIBRARY in report.library_calls
        function = torch.compile(program, backend="hemstitch", options=options)
        torch.testing.assert_close(function(*arguments), program(*arguments))


def test_dropout_draws_and_so_is_the_librarys() -> None:
    graph = torch.fx.Graph()
    q = graph.placeholder("q")
    target = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    for arguments, keywords in (((), {}), ((0.0, True), {}), ((), {"dropout_p": 0.0})):
        assert not has_effects(graph.call_function(target, (q, q, q, *arguments), keywords))
    for arguments, keywords in (((0.1,), {}), ((), {"dropout_p": 0.1})):
        assert has_effects(graph.call_function(target, (q, q, q, *arguments), keywords))
