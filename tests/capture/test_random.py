"""Dropout from a seed: its statistics, its mask in backward, and torch's generator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from hemstitch.capture.decompositions import decompositions
from hemstitch.capture.seeded_random import draw_at_once, draw_seeds
from hemstitch.ir.graph import Op, toposort
from hemstitch.ir.philox import philox_reference
from tests.capture.helpers import InterpretBackend, library_names


def test_dropout_scales_and_uses_its_mask_again_in_backward() -> None:
    torch._dynamo.reset()
    backend = InterpretBackend()
    run = torch.compile(lambda x: F.dropout(x, 0.3), backend=backend)
    x = torch.ones(100, 200, requires_grad=True)
    result = run(x)
    result.sum().backward()
    assert abs((result == 0).float().mean() - 0.3) < 0.02
    assert torch.allclose(result[result != 0], torch.tensor(1 / 0.7))
    assert torch.equal(x.grad, result.detach())


def test_the_mask_is_not_kept_for_backward() -> None:
    torch._dynamo.reset()
    backend = InterpretBackend()
    run = torch.compile(lambda x: F.dropout(x, 0.5) * 2, backend=backend)
    run(torch.ones(64, 64, requires_grad=True)).sum().backward()
    forward, backward = (captured.graph for captured in backend.captured)
    assert all(
        output.value.type.dtype.is_float or output.value.type.rank == 0
        for output in forward.outputs
    )
    assert any(node.op is Op.PHILOX for node in toposort(backward.roots))


def test_torch_seeds_it_and_every_call_draws_anew() -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda x: F.dropout(x, 0.5), backend=InterpretBackend())
    x = torch.ones(1000)
    torch.manual_seed(7)
    first, second = run(x), run(x)
    torch.manual_seed(7)
    assert torch.equal(run(x), first)
    assert not torch.equal(first, second)


def test_each_call_site_has_a_mask_of_its_own_from_one_draw() -> None:
    torch._dynamo.reset()
    backend = InterpretBackend()
    run = torch.compile(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)), backend=backend)
    one, other = run(torch.ones(1000))
    assert not torch.equal(one, other)
    (captured,) = backend.captured
    assert library_names(captured) == ["hemstitch.draw_seeds"]
    assert len(captured.graph.effects) == 1


def test_dropout_of_nothing_and_of_everything() -> None:
    torch._dynamo.reset()
    run = torch.compile(
        lambda x: (F.dropout(x, 0.0), F.dropout(x, 1.0)), backend=InterpretBackend()
    )
    x = torch.randn(10)
    kept, dropped = run(x)
    assert torch.equal(kept, x)
    assert torch.equal(dropped, torch.zeros(10))


def test_whole_channels_are_dropped_from_a_seed() -> None:
    torch._dynamo.reset()
    backend = InterpretBackend()
    result = torch.compile(lambda x: F.dropout2d(x, 0.5), backend=backend)(torch.ones(8, 32, 3, 3))
    channels = result.flatten(2)
    assert torch.equal(channels.amin(2), channels.amax(2))
    assert 0.3 < (channels[..., 0] == 0).float().mean() < 0.7
    assert library_names(backend.captured[0]) == ["hemstitch.draw_seeds"]


@pytest.mark.parametrize("seed", [0, 7, 0x123456789ABCDEF, 2**62 - 1])
@pytest.mark.parametrize("count", [0, 1, 5, 4096])
def test_the_operation_is_the_reference(seed: int, count: int) -> None:
    found = torch.ops.hemstitch.uniform(torch.tensor(seed), (count,))
    np.testing.assert_array_equal(found, philox_reference(seed, np.arange(count)))


def test_a_trace_draws_its_seeds_at_once() -> None:
    """Where it drew the first, so that what the library draws in between comes after."""

    def program(x: torch.Tensor) -> torch.Tensor:
        first = torch.native_dropout(x, 0.5, True)[0]
        return first + torch.randn(3) + torch.native_dropout(x, 0.5, True)[0]

    traced = make_fx(program, decompositions(), tracing_mode="fake")(torch.ones(3))
    draw_at_once(traced)
    traced.graph.lint()
    calls = [node for node in traced.graph.nodes if node.target is draw_seeds]
    assert [node.args[0] for node in calls] == [2]
    torch.manual_seed(1)
    found = traced(torch.ones(3))
    torch.manual_seed(1)
    seeds, noise = draw_seeds(2, torch.device("cpu")), torch.randn(3)
    masks = [torch.ops.hemstitch.uniform(seed, (3,)) >= 0.5 for seed in seeds]
    torch.testing.assert_close(found, masks[0] * 2.0 + noise + masks[1] * 2.0)
