"""What the suite says of each program."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks.cases import bytes_of
from benchmarks.counting import Made, Program, fake, learn


@dataclass(frozen=True, slots=True)
class Stitchable(Program):
    """`why`: what stops a compiler that ends a kernel at each reduction. `ideal`: launches that one
    which stitches needs, library calls among them. `moves`: it only moves memory; what its
    kernels move can then be compared with its arguments and results."""

    ideal: int = 1
    why: str = ""
    moves: bool = True


def floor(program: Program) -> int:
    """Bytes that must move: arguments and results once; in the backward pass the gradients of
    results, the arguments again, and their gradients."""
    with fake(program):
        function, arguments = program.made()
        with torch.no_grad():
            results = bytes_of(function(*arguments))
    known = bytes_of(arguments)
    wanted = [t for t in tree_leaves(arguments) if isinstance(t, Tensor) and t.requires_grad]
    backward = results + known + bytes_of(wanted) if program.backward else 0
    return known + results + backward


def learned(workload: Made, *constant: int) -> Made:
    """With gradients for all arguments but those at these positions."""
    learn([argument for place, argument in enumerate(workload[1]) if place not in constant])
    return workload
