"""The numbers of the hardware say what they are of, in which unit, and who says so."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from hemstitch.machine.cpu_numbers import CPU, CPUNumbers
from hemstitch.machine.gpu_numbers import GPU, GPUNumbers
from hemstitch.machine.matmul_rates import TRANSPOSED_ROWS
from hemstitch.machine.record import Machine, MatrixUnits

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {page.name for place in (".", "compiler", "design") for page in (DOCS / place).glob("*.md")}
OTHER_SOURCES = ("x86-64", "CUDA", "ROCm", "exactness")


@pytest.mark.parametrize("record", [CPUNumbers, GPUNumbers, Machine, MatrixUnits])
def test_each_number_has_a_unit_and_a_meaning(record: type) -> None:
    numbers = [field for field in fields(record) if field.type in ("int", "float")]
    assert numbers
    assert [f.name for f in numbers if not (f.metadata["unit"] and f.metadata["meaning"])] == []


def test_each_source_of_a_default_is_there() -> None:
    sources = {
        field.metadata["source"]
        for field in fields(Machine)
        if field.metadata and field.default is not MISSING
    }
    assert sources - PAGES == set()


def test_matmuls_are_transposed_as_they_are_measured() -> None:
    assert CPU.transposed_rows == TRANSPOSED_ROWS


@pytest.mark.parametrize("record", [CPU, GPU])
def test_each_source_is_there(record: CPUNumbers | GPUNumbers) -> None:
    sources = {field.metadata["source"] for field in fields(record)} - {*OTHER_SOURCES}
    assert sources - PAGES == set()
