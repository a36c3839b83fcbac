"""Code for Arm: 32 registers of 128 bits. Any host prints it whose LLVM knows the target."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm
import pytest
import torch

from hemstitch.targets.cpu.description import Target, generic_cpu
from hemstitch.targets.cpu.instruction_sets import instruction_set_of
from tests.compiled import plans_of
from tests.lowered import llvm as printed

NEON = instruction_set_of("neoverse-n1", {"neon": True})


def machine_code(function: Callable[..., torch.Tensor], *arguments: torch.Tensor) -> str:
    try:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM does not print for Arm")
    machine = target.create_target_machine(cpu="neoverse-n1", opt=3)
    ((_, plan),) = plans_of(function, arguments, generic_cpu(1, NEON.lanes))
    program = printed(plan.kernels[0].stitched.kernel, Target(NEON.lanes, 1, False, NEON.features))
    module = llvm.parse_assembly(program.text)
    module.triple = machine.triple
    return str(machine.emit_assembly(module))


def test_it_is_selected() -> None:
    assert (NEON.name, NEON.lanes, NEON.features.many_registers) == ("NEON", 4, True)


def test_a_softmax_is_in_vectors_of_four() -> None:
    text = machine_code(lambda x: x.softmax(-1), torch.zeros(64, 128))
    assert "fmla" in text and ".4s" in text
