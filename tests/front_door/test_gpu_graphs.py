"""Graphs on a GPU that is not there: what they are planned for, and what stays with the library."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import BackendCompilerFailed
from torch._subclasses.fake_tensor import FakeTensorMode

import hemstitch
from hemstitch.errors import GraphWarning, UnsupportedError

STRICT = {"strict": True, "check": True}


def fake(*shapes, device="cuda", mode=None, **keywords):
    with mode or FakeTensorMode():
        return [torch.empty(shape, device=device, **keywords) for shape in shapes]


def explain(function, *arguments, **options):
    with torch.no_grad():
        return hemstitch.explain(function, *arguments, options={**STRICT, **options})


def norm(x, weight):
    return F.layer_norm(x, x.shape[-1:], weight)


def test_a_graph_on_a_gpu_becomes_triton() -> None:
    report = explain(norm, *fake((64, 256), (256,)))
    (kernel,) = report.kernels
    assert kernel.target == "cuda"
    assert "@triton.jit" in kernel.source
    assert kernel.ir.startswith(f"kernel {kernel.name}")
    assert (kernel.bytes_read, kernel.bytes_written) == (4 * (64 + 1) * 256, 4 * 64 * 256)


def test_the_target_of_a_processor() -> None:
    x = torch.randn(64, 256), torch.randn(256)
    assert explain(norm, *x).kernels[0].target == "cpu"
    assert "define " in explain(norm, *x).kernels[0].source


def test_phases_read_anew() -> None:
    def centred(x):
        return torch.softmax(x - x.mean(0), -1)

    (kernel,) = explain(centred, *fake((4096, 1024))).kernels
    assert kernel.barriers == 2  # columns are summed, and these sums combined
    assert kernel.reads["in0"] == 2 * 4 * 4096 * 1024


def test_the_schemes_of_a_kernel_are_those_of_its_reductions() -> None:
    def schemes(function):
        kernels = explain(function, *fake((1024, 1024))).kernels
        return kernels[0].schemes

    assert schemes(torch.relu) == ()
    assert schemes(lambda x: torch.softmax(x, -1)) == ("regional",)
    assert schemes(lambda x: torch.softmax(x - x.mean(0), -1)) == ("partial", "regional")
    assert "shared" in schemes(lambda x: torch.softmax(x, -1) * x.sum(1))


def test_a_loss_ends_with_a_ticket() -> None:
    def loss(x, y):
        return ((x - y) ** 2).mean()

    report = explain(loss, *fake((4096, 1024), (4096, 1024)))
    (kernel,) = report.kernels
    assert (kernel.barriers, kernel.tickets, kernel.schemes) == (0, 1, ("partial",))
    assert "a ticket" in str(report)


def test_a_number_on_the_processor_is_brought_once() -> None:
    mode = FakeTensorMode()
    (x,), (step,) = fake((64, 256), mode=mode), fake((), device="cpu", mode=mode)
    report = explain(lambda x, step: (x * step).exp() + step, x, step)
    assert report.library_calls == ["aten._to_copy.default"]
    assert report.kernel_count == 1


def test_work_on_the_processor_stays_with_the_library() -> None:
    mode = FakeTensorMode()
    (x,), (y,) = fake((64, 256), mode=mode), fake((8,), device="cpu", mode=mode)
    report = explain(lambda x, y: (x.sigmoid() * 2, y.sin(), x.sum().cpu()), x, y)
    assert report.kernel_count == 1
    assert sorted(report.library_calls) == ["aten._to_copy.default", "aten.sin.default"]


def test_a_counter_on_the_processor_is_replaced_by_the_library() -> None:
    mode = FakeTensorMode()
    (x,), (step,) = fake((64, 256), mode=mode), fake((), device="cpu", mode=mode)
    report = explain(lambda x, step: (step.add_(1), x * step)[1], x, step)
    assert report.kernel_count == 1
    assert "aten.add.Tensor" in report.library_calls


def test_seeds_are_drawn_on_the_gpu() -> None:
    report = explain(lambda x: F.dropout(F.dropout(x, 0.5) * 2, 0.1), *fake((64, 256)))
    assert report.library_calls == ["hemstitch.draw_seeds"]
    assert report.kernel_count == 1


def test_symbolic_sizes() -> None:
    with torch.no_grad():
        x = fake((64, 256), (256,))
        report = hemstitch.explain(norm, *x, options=STRICT, dynamic=True)
    assert report.kernel_count == 1


def test_two_gpus_are_an_error_or_one_warning() -> None:
    mode = FakeTensorMode()
    x, y = (fake((4, 4), device=f"cuda:{k}", mode=mode)[0] for k in range(2))
    with pytest.raises(BackendCompilerFailed, match=r"H002.* tensors on cuda:0 and on cuda:1"):
        explain(lambda x, y: (x + 1, y + 1), x, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = explain(lambda x, y: (x + 1, y + 1), x, y, strict=False)
    assert [w.category for w in caught if w.category is GraphWarning] == [GraphWarning]
    assert report.kernel_count == 0


@pytest.mark.parametrize("target", ["cpu", "interpret"])
def test_a_target_that_the_graph_is_not_on(target: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=rf"H002.* 'target|{target}.* on cuda:0"):
        explain(norm, *fake((64, 256), (256,)), target=target)


def test_cuda_wants_tensors_there() -> None:
    with pytest.raises(BackendCompilerFailed, match=r"'cuda', and this graph is on cpu"):
        explain(norm, torch.randn(4, 8), torch.randn(8), target="cuda")


def test_without_triton_the_message_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendCompilerFailed, match=r"H002.* Triton(.|\n)*pip install"):
        explain(norm, torch.randn(4, 8), torch.randn(8), target="interpret")


def test_without_the_emulator_the_message_says_where_it_is(monkeypatch) -> None:
    monkeypatch.setattr("hemstitch.driver.external_targets._REGISTERED", {})
    with pytest.raises(BackendCompilerFailed, match=r"H002.* emulator(.|\n)*testing.interpret"):
        explain(norm, torch.randn(4, 8), torch.randn(8), target="interpret")


def test_gradients_need_a_build_that_knows_the_device() -> None:
    if torch.accelerator.current_accelerator() is not None:
        pytest.skip("this build knows one")
    arguments = fake((4, 8), (8,), requires_grad=True)
    with pytest.raises(UnsupportedError, match="no autograd for fake tensors on cuda"):
        hemstitch.explain(norm, *arguments, backward=True)


def test_where_the_user_allows_tf32_the_library_multiplies() -> None:
    def linear(x, weight):
        return torch.relu(x @ weight)

    def calls():
        torch._dynamo.reset()
        return len(explain(linear, *fake((4096, 64), (64, 256))).library_calls)

    before = torch.get_float32_matmul_precision()
    exact = calls()
    torch.set_float32_matmul_precision("high")
    try:
        assert (exact, calls()) == (0, 1)
    finally:
        torch.set_float32_matmul_precision(before)
    newer = torch.backends.cuda.matmul
    kept, newer.fp32_precision = newer.fp32_precision, "tf32"
    try:
        assert calls() == 1
    finally:
        newer.fp32_precision = kept
