"""How values are rounded to half types, which are kept as f32.

A function whose result is rounded at once need be no better than that. Sums and products of two
bf16, rounded to bf16, are one instruction for two elements, since f32 has more than twice as many
bits: to round twice is to round once. LLVM finds them by itself, as long as it sees that the
operands are bf16. What is rounded by an instruction of our own choice hides that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set

import numpy as np

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.nodes import Constant, Let, Load, Nest, Stmt, walk
from hemstitch.kernel_ir.rewriter import used

NEAREST, PACKED = "device.nearest_bfloat16", "device.packed_bfloat16"
_NARROW = (Op.ADD, Op.SUB, Op.MUL)
_LARGE = 2.0**127


def only_rounded_values(nest: Nest) -> set[str]:
    """Values that are rounded to a half type, and not used otherwise."""
    uses = Counter(name for statement in _parts(nest) for name in used(statement))
    roundings = Counter(
        let.operands[0] for let in _casts(nest) if let.dtype in (DType.BF16, DType.F16)
    )
    return {name for name, count in roundings.items() if uses[name] == count}


def roundings(nest: Nest, only_rounded: Set[str]) -> Mapping[str, str]:
    """The function by which a cast to bf16, by its name, rounds f32; none where it is a sum or a
    product that LLVM makes one of bf16. `only_rounded`: values that are rounded and not
    used otherwise."""
    casts = {let.name: let for let in _casts(nest)}
    known = _known_bfloat16(nest)
    narrow = [
        let
        for let in _lets(nest)
        if let.op in _NARROW and let.name in only_rounded and known.issuperset(let.operands)
    ]
    sums = {let.name for let in narrow}
    read = {name for let in narrow for name in let.operands}
    read |= {casts[name].operands[0] for name in read & casts.keys()}  # what was widened for it
    return {
        name: PACKED if name in read else NEAREST
        for name, let in casts.items()
        if let.dtype is DType.BF16 and let.source is DType.F32 and let.operands[0] not in sums
    }


def _known_bfloat16(nest: Nest) -> set[str]:
    """Values that LLVM knows to be bf16."""
    names: set[str] = set()
    for statement in walk(_parts(nest)):
        match statement:
            case Load(name, buffer) if buffer.dtype is DType.BF16:
                names.add(name)
            case Constant(name, value) if _is_bfloat16(value):
                names.add(name)
            case Let(name, Op.CAST, _, source, dtype) if DType.BF16 in (source, dtype):
                names.add(name)
            case Let(name, Op.NEG, values) | Let(name, Op.WHERE, (_, *values)):
                if names.issuperset(values):
                    names.add(name)
            case _:
                pass
    return names


def _parts(nest: Nest) -> tuple[Stmt, ...]:
    return (*nest.prologue, *nest.body, *nest.epilogue)


def _lets(nest: Nest) -> Iterator[Let]:
    return (s for s in walk(_parts(nest)) if isinstance(s, Let))


def _casts(nest: Nest) -> Iterator[Let]:
    return (let for let in _lets(nest) if let.op is Op.CAST)


def _is_bfloat16(value: float) -> bool:
    if not -_LARGE < value < _LARGE:
        return False
    number = np.float32(value)
    return float(number) == value and not number.view(np.uint32) & 0xFFFF
