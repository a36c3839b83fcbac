"""Random programs around products of matrices as Triton kernels, emulated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from hemstitch.runtime import interpreter as interpret
from tests.compiled import assert_close, execute
from tests.effort import examples
from tests.planning.test_products import GPU, SEEDS, Around

pytest.importorskip("triton")


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS)
def test_kernels_mean_what_the_graph_means(seed):
    program = Around(seed)
    results = execute(program.graph, program.arguments, GPU, target="interpret")
    exact = interpret.run(program.graph, program.arguments, precise=True)
    for new, near, true in zip(results, interpret.run(program.graph, program.arguments), exact):
        own = float((near - true).abs().max()) / max(1.0, float(true.abs().max()))  # of f32 as such
        assert_close([new], [true], 1e-4 + 4 * own)
