"""Random programs around products of matrices as Triton kernels, emulated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from hemstitch.runtime import interpret
from tests.compiled import assert_close, execute
from tests.fusion.test_products import GPU, SEEDS, Around

pytest.importorskip("triton")


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_kernels_mean_what_the_graph_means(seed):
    program = Around(seed)
    found = execute(program.graph, program.arguments, GPU, target="interpret")
    assert_close(found, interpret.run(program.graph, program.arguments), 1e-4)
