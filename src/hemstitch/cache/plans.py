"""Cached fusion plans on disk. Takes what planning takes, gives its plan, without a search if a
process of this user has planned the graph before."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from hemstitch.cache.records import evict_oldest, folder, load_record, source_digest, store_record
from hemstitch.ir.graph import Graph
from hemstitch.ir.printer import show
from hemstitch.machine.record import Machine
from hemstitch.matmul.inlining import multiplied
from hemstitch.options import Options
from hemstitch.planning.cached_plan import CachedPlan
from hemstitch.planning.plan import Plan
from hemstitch.planning.planner import make_plan

MAX_CACHE_BYTES = 64 << 20  # bytes of all files: some thousand graphs


def planned(graph: Graph, machine: Machine, options: Options) -> Plan:
    """As `make_plan`, with the cache."""
    if not options.cache:
        return make_plan(graph, machine, options)
    path = folder("plans") / _key(graph, machine, options)
    cached = CachedPlan.parse(load_record(path))
    plan = make_plan(graph, machine, options, cached)
    if plan.cached_plan is not None and plan.cached_plan != cached:
        store_record(path, plan.cached_plan.record)
        evict_oldest(path.parent, MAX_CACHE_BYTES)
    return plan


def _key(graph: Graph, machine: Machine, options: Options) -> str:
    """A digest of all that a plan depends on."""
    dtypes = multiplied(graph) if options.inlines_matmuls else set()
    rates = [
        (dtype, machine.matrix_units[dtype]) for dtype in machine.matrix_units if dtype in dtypes
    ]
    rest = replace(machine, matrix_units={}, measured=None)
    decides = (
        *(options.planner, options.pack, options.inlines_matmuls),
        *(options.exact, options.tune),
    )
    facts = (source_digest(), show(graph), repr(rest), repr(rates), repr(decides))
    return sha256("\n".join(facts).encode()).hexdigest()
