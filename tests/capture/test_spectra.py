"""Eigenvalues and singular values: without the vectors, where nobody reads them."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hemstitch.joint.singular_values import drop_unread_vectors
from tests.compiled import watched

aten = torch.ops.aten
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "svd": lambda x: torch.linalg.svdvals(x) + torch.linalg.cond(x)[:, None],
    "nuclear": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "eigh": lambda x: torch.linalg.eigvalsh(x) - torch.linalg.eigvalsh(x, UPLO="U"),
    "eig": lambda x: torch.linalg.eigvals(x).abs().sum(-1),
    "vectors": lambda x: torch.linalg.svd(x)[0].abs() + torch.linalg.eigh(x)[1].abs(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str) -> None:
    program, x = PROGRAMS[name], torch.randn(3, 4, 4, dtype=torch.float64)
    compiled, _ = watched(program)
    torch.testing.assert_close(compiled(x), program(x))
    x.requires_grad_()
    if name != "vectors":  # whose signs are anyone's
        ours, eager = (torch.autograd.grad(f(x).sum(), x) for f in (compiled, program))
        torch.testing.assert_close(ours, eager)


def test_calls_say_so() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 3, 3, device="meta")
    calls = [
        graph.call_function(aten._linalg_svd.default, (x,), {"driver": None}),
        graph.call_function(aten._linalg_eigh.default, (x, "U")),
        graph.call_function(aten.linalg_eig.default, (x,)),
        graph.call_function(aten._linalg_svd.default, (x, True)),
    ]
    read = [(calls[0], 1), (calls[1], 0), (calls[2], 0), (calls[3], 1), (calls[3], 2)]
    parts = [graph.call_function(operator.getitem, pair) for pair in read]
    graph.output(parts)
    drop_unread_vectors(graph)
    assert calls[0].args == (x, False, False) and calls[0].kwargs == {"driver": None}
    assert calls[1].args == (x, "U", False)
    assert parts[2].target is aten._linalg_eigvals.default and parts[2].args == (x,)
    assert calls[3].args == (x, True)
