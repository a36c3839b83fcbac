"""Solves 0/1 programs with HiGHS, in a worker process: JSON in, JSON out. Imports nothing of this
package, so that it starts without PyTorch."""

from __future__ import annotations

import json
import math
from typing import Any

import highspy
import numpy as np

LARGEST_COST = 2.0**20  # above, the solver's absolute tolerances are too fine for its costs


def solve(
    costs: list[float], rows: list[tuple[int | None, int | None, list[list[int]]]], seconds: float
) -> dict[str, Any]:
    """The `chosen` columns, those that are 1, or None if there is no solution at the time limit;
    and whether they are optimal."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in {
        "output_flag": False,
        "threads": 1,
        "time_limit": seconds,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 0.0,
    }.items():
        solver.setOptionValue(option, value)
    solver.passModel(_model(costs, rows))
    solver.run()
    is_optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    is_feasible = solver.getInfo().primal_solution_status == highspy.kSolutionStatusFeasible
    values = solver.getSolution().col_value if is_feasible else ()
    chosen = [column for column, value in enumerate(values) if value > 0.5] if is_feasible else None
    return {"chosen": chosen, "is_optimal": is_optimal and is_feasible}


def _model(
    costs: list[float], rows: list[tuple[int | None, int | None, list[list[int]]]]
) -> highspy.HighsLp:
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(costs), len(rows)
    largest = max(map(abs, costs), default=0.0)
    scale = 2.0 ** -max(0, math.frexp(largest / LARGEST_COST)[1])  # exact: a power of two
    model.col_cost_ = np.array(costs) * scale
    model.col_lower_, model.col_upper_ = np.zeros(len(costs)), np.ones(len(costs))
    model.integrality_ = [highspy.HighsVarType.kInteger] * len(costs)
    model.row_lower_ = np.array([-highspy.kHighsInf if low is None else low for low, _, _ in rows])
    model.row_upper_ = np.array([highspy.kHighsInf if up is None else up for _, up, _ in rows])
    terms = [term for _, _, row_terms in rows for term in row_terms]
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.num_col_, matrix.num_row_ = len(costs), len(rows)
    matrix.start_ = np.cumsum([0, *(len(row_terms) for _, _, row_terms in rows)])
    matrix.index_ = np.array([column for column, _ in terms], dtype=np.int32)
    matrix.value_ = np.array([coefficient for _, coefficient in terms], dtype=np.float64)
    return model


def answer(question: bytes) -> bytes:
    """The entry point of the worker process."""
    return json.dumps(solve(**json.loads(question))).encode()
