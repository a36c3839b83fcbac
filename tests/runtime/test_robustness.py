"""What may go wrong around a compiled function, and that it works on afterwards."""

from __future__ import annotations

import gc
import threading
import warnings

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from hemstitch.driver import cpu_kernels as native
from hemstitch.errors import KernelBuildWarning
from hemstitch.planning import trials as trial
from hemstitch.stitching.refusal import Refused
from hemstitch.toolchain.llvm_workers import Helpers

OPTIONS = {"strict": True, "check": True}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def compiled(function, **options):
    return torch.compile(function, backend="hemstitch", options={**OPTIONS, **options})


def program(x, weight):
    hidden = torch.softmax(x @ weight, -1)
    return (hidden - hidden.mean(0)).tanh() @ weight.t(), hidden.sum(1)


# --- threads


def test_eight_threads_call_one_function():
    function = compiled(program)
    weight = torch.randn(64, 48)
    function(torch.randn(96, 64), weight)
    wrong: list[object] = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(10):
            x = torch.randn(96, 64, generator=generator)
            try:
                torch.testing.assert_close(function(x, weight), program(x, weight))
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_inside_a_call():
    """A custom operation that calls the very function it is in the middle of."""
    depth = 0

    @torch.library.custom_op("hemstitch_test::again", mutates_args=())
    def again(x: torch.Tensor) -> torch.Tensor:
        nonlocal depth
        depth += 1
        result = function(x * 0.5) if depth < 3 else x.clone()
        depth -= 1
        return result

    @again.register_fake
    def _(x):
        return torch.empty_like(x)

    def body(x):
        before = torch.softmax(x, -1) * 3
        return torch.ops.hemstitch_test.again(before).cumsum(0) + before.sum(0)

    function = compiled(body)
    x = torch.randn(16, 24)
    found = function(x)
    function = body
    torch.testing.assert_close(found, body(x))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_may_change(threads):
    function = compiled(lambda x: (torch.softmax(x, -1), x.sum(0), x.sum()))
    x = torch.randn(300, 700)
    before = torch.get_num_threads()
    try:
        for count in (threads, 3 - threads, threads):
            torch.set_num_threads(count)
            expected = torch.softmax(x, -1), x.sum(0), x.sum()
            torch.testing.assert_close(function(x), expected, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


def test_whichever_thread_comes_last_gives_the_same_sum():
    total, x = compiled(lambda x: x.sum()), torch.randn(512, 512)
    sums = {total(x).item() for _ in range(300)}
    assert len(sums) == 1
    torch.testing.assert_close(sums.pop(), x.double().sum().item(), rtol=1e-4, atol=1e-3)


# --- sizes


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 5), (5, 0), (3, 0, 2), (1, 1)])
def test_empty_and_small_tensors(shape):
    def body(x):
        return x.exp() * 2, x.sum(), (x + 1).reshape(-1), x - x.mean() if x.numel() else x.clone()

    x = torch.randn(shape)
    torch.testing.assert_close(compiled(body)(x), body(x))


def test_a_reduction_over_nothing():
    def body(x):
        return x.sum(1), x.prod(1), x.new_ones(4, 1) + x.sum(1, keepdim=True)

    x = torch.randn(4, 0)
    torch.testing.assert_close(compiled(body)(x), body(x))


def dynamic(x, weight):
    hidden = torch.softmax(x, -1) * weight
    return hidden.view(x.shape[0], 4, -1).sum(1), x.flatten().cumsum(0)


def test_no_more_recompiles_than_without_a_compiler():
    counts = {}
    for backend in ("aot_eager", "hemstitch"):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend(backend)
        function = torch.compile(dynamic, backend=counter)
        for rows in (3, 5, 2, 17, 8, 31):
            x = torch.randn(rows, 24)
            torch.testing.assert_close(function(x, torch.ones(24)), dynamic(x, torch.ones(24)))
        counts[backend] = counter.frame_count
    assert counts["hemstitch"] <= counts["aot_eager"] == 2


# --- errors


def test_an_index_out_of_range_is_an_error_and_no_more():
    def body(table, index):
        return torch.nn.functional.embedding(index, table).tanh() * 2

    function, table = compiled(body), torch.randn(10, 8)
    good = torch.tensor([0, 9, 3])
    torch.testing.assert_close(function(table, good), body(table, good))
    for bad in (10, -11, 1 << 40):
        with pytest.raises(IndexError):
            function(table, torch.tensor([0, bad, 3]))
        torch.testing.assert_close(function(table, good), body(table, good))


def refuse(helpers, text):
    raise RuntimeError("no code today")


@pytest.fixture
def _no_kernels(monkeypatch):
    native.LOADED.clear()
    monkeypatch.setattr(Helpers, "compiled", refuse)
    yield
    native.LOADED.clear()


def in_place_and_softmax(x, y):
    x.mul_(2)
    return torch.softmax(x * y, -1)


@pytest.mark.usefixtures("_no_kernels")
def test_a_kernel_that_cannot_be_built_runs_through_the_library():
    x, y = torch.randn(9, 11), torch.randn(9, 11)
    exact = x.clone()
    expected = in_place_and_softmax(exact, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = compiled(in_place_and_softmax, strict=False)(x, y)
    (warning,) = [w.message for w in caught if isinstance(w.message, KernelBuildWarning)]
    assert "no code today" in str(warning) and "softmax" in warning.kernel
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(x, exact)


@pytest.mark.usefixtures("_no_kernels")
def test_strict_says_so():
    with pytest.raises(Exception, match=r"H006.*no code today"):
        compiled(lambda x: x.exp() + 1)(torch.randn(4))


@pytest.fixture
def _no_stitching(monkeypatch):
    def refuse_all(*_):
        raise Refused("test", "no stitching today")

    monkeypatch.setattr(trial, "stitch", refuse_all)


@pytest.mark.usefixtures("_no_stitching")
def test_what_is_no_kernel_even_alone_runs_through_the_library():
    x, y = torch.randn(9, 11), torch.randn(9, 11)
    exact = x.clone()
    expected = in_place_and_softmax(exact, y)
    with pytest.warns(KernelBuildWarning, match="no stitching today"):
        found = compiled(in_place_and_softmax, strict=False)(x, y)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(x, exact)


@pytest.mark.usefixtures("_no_stitching")
def test_strict_refuses_what_is_no_kernel_even_alone():
    with pytest.raises(Exception, match=r"H006.*no stitching today"):
        compiled(lambda x: x.exp() + 1)(torch.randn(4))


def test_an_interrupted_compile_leaves_nothing_behind(monkeypatch):
    def interrupt(helpers, text):
        raise KeyboardInterrupt

    function = compiled(lambda x: x.exp() * 2 + x.sum(0))
    x = torch.randn(6, 7)
    native.LOADED.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Helpers, "compiled", interrupt)
        with pytest.raises(KeyboardInterrupt):
            function(x)
    torch.testing.assert_close(function(x), x.exp() * 2 + x.sum(0))


def test_machine_code_lives_as_long_as_its_function():
    function, x = compiled(lambda x: torch.softmax(x.sin(), -1)), torch.randn(6, 7)
    expected = function(x)
    native.LOADED.clear()
    gc.collect()
    assert torch.equal(function(x), expected)


@pytest.mark.skipif(
    torch.__version__.startswith("2.11"), reason="its AOTAutograd drops the check of cholesky"
)
def test_an_error_of_the_library_goes_through():
    def body(x, positive):
        return torch.linalg.cholesky(x * 1.0).sum(0) * positive

    function = compiled(body)
    good, bad = torch.eye(5) * 4, -torch.eye(5)
    for x in (good, bad, good):
        if x is bad:
            with pytest.raises(torch.linalg.LinAlgError):
                function(x, torch.ones(5))
        else:
            torch.testing.assert_close(function(x, torch.ones(5)), body(x, torch.ones(5)))


def test_strides_may_be_anything():
    def body(x):
        return torch.softmax(x, -1), x.sum(0)

    function = compiled(body)
    wide = torch.randn(20, 31, 3)
    for x in (wide[:, :, 1], wide[:, :, 1].t(), wide[0].t()[1:2].expand(7, 31), wide[:, 4]):
        torch.testing.assert_close(function(x), body(x))
