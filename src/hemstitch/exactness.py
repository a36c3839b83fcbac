"""What a rewrite keeps of a program's meaning. Stages, rules and matmul patterns say it; the option
`exact` leaves out what is not exact."""

from __future__ import annotations

from enum import Enum


class Exactness(Enum):
    """Sums may be added up in another order in any case, as a library's kernels do."""

    EXACT = "exact"  # the same for every input, infinities and NaN among them
    ROUNDING = "up to rounding"  # intermediate values are rounded otherwise
    FINITE = "assumes finite"  # as well, and infinities and NaN may spread elsewhere, or vanish


EXACT, ROUNDING, FINITE = Exactness
