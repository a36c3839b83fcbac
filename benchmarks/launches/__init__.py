"""Fifty programs that Inductor needs several kernels for, or several walks through memory, where a
compiler that stitches needs few: by family, each with why it is hard."""

from __future__ import annotations

from benchmarks.launches.independent import INDEPENDENT
from benchmarks.launches.layouts import LAYOUTS
from benchmarks.launches.norms import NORMS
from benchmarks.launches.products import PRODUCTS
from benchmarks.launches.program import Stitchable
from benchmarks.launches.reductions import REDUCTIONS
from benchmarks.launches.training import TRAINING

FAMILIES: dict[str, tuple[Stitchable, ...]] = {
    "reductions of reductions": REDUCTIONS,
    "normalisations": NORMS,
    "independent": INDEPENDENT,
    "layouts": LAYOUTS,
    "products": PRODUCTS,
    "training": TRAINING,
}
PROGRAMS = [program for family in FAMILIES.values() for program in family]
