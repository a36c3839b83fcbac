"""Which row of the table a processor is described by."""

from __future__ import annotations

import pytest

from hemstitch.targets.cpu.instruction_sets import INSTRUCTION_SETS, instruction_set_of

BY_NAME = {row.name: row for row in INSTRUCTION_SETS}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_row_describes_the_processors_that_have_no_more_than_it_needs(name: str) -> None:
    flags = dict.fromkeys(BY_NAME[name].needs, True) | {"unknown": True}
    assert instruction_set_of("", flags) == BY_NAME[name]


def test_what_a_processor_lacks_is_not_used() -> None:
    described = instruction_set_of("", {"avx2": True, "avx512f": False, "avx512vl": False})
    assert described == BY_NAME["AVX2"]


def test_a_processor_may_divide_fast() -> None:
    flags = dict.fromkeys(BY_NAME["AVX-512"].needs, True)
    assert not instruction_set_of("skylake-avx512", flags).features.fast_division
    assert instruction_set_of("znver4", flags).features.fast_division
