"""Which library calls are written with matmuls, and how: the first pattern of the list that knows a
call has it. A new pattern is a row here, and a module beside this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hemstitch.exactness import EXACT, FINITE, Exactness
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Call
from hemstitch.ir.graph import Node
from hemstitch.machine.record import Machine
from hemstitch.matmul.patterns.attention import attention_of
from hemstitch.matmul.patterns.convolutions import convolution_of
from hemstitch.matmul.patterns.direct_convolution import direct_convolution_of
from hemstitch.matmul.patterns.inlined import MatmulPattern
from hemstitch.matmul.patterns.weight_gradients import weight_gradient_of
from hemstitch.matmul.patterns.winograd import winograd_of

# None of the machine: patterns that weigh themselves are left out.
Recognise = Callable[[Builder, Call, Sequence[Node], Machine | None], MatmulPattern | None]


@dataclass(frozen=True, slots=True)
class PatternRow:
    recognise: Recognise
    exactness: Exactness = EXACT


PATTERNS = (
    PatternRow(lambda builder, call, operands, _: convolution_of(builder, call, operands)),
    PatternRow(lambda builder, call, operands, _: winograd_of(builder, call, operands), FINITE),
    PatternRow(
        lambda builder, call, operands, _: direct_convolution_of(builder, call, operands), FINITE
    ),
    PatternRow(lambda builder, call, operands, _: attention_of(builder, call, operands)),
    PatternRow(weight_gradient_of),
)


def pattern_of(
    builder: Builder,
    call: Call,
    operands: Sequence[Node],
    machine: Machine | None = None,
    *,
    exact: bool = False,
) -> MatmulPattern | None:
    """None: no pattern knows the call. `exact`: those alone that are."""
    rows = (row for row in PATTERNS if row.exactness is EXACT or not exact)
    patterns = (row.recognise(builder, call, operands, machine) for row in rows)
    return next((pattern for pattern in patterns if pattern is not None), None)
