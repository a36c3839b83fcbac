"""The table of rules, one for each ATen overload that the IR can express: each takes the op's own
arguments as `Expr`s, gives its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hemstitch.capture.rule_context import Context, NotHandled, Rule
from hemstitch.capture.rules.activations import ACTIVATIONS
from hemstitch.capture.rules.creation import CREATION
from hemstitch.capture.rules.foreach import foreach_rules
from hemstitch.capture.rules.indexing import INDEXING
from hemstitch.capture.rules.normalization import NORMALIZATION
from hemstitch.capture.rules.pointwise import POINTWISE
from hemstitch.capture.rules.pooling import POOLING
from hemstitch.capture.rules.pooling_gradients import POOLING_GRADIENTS
from hemstitch.capture.rules.reductions import REDUCTIONS
from hemstitch.capture.rules.scattering import SCATTERING
from hemstitch.capture.rules.views import VIEWS
from hemstitch.ir.types import TypeKind

# Eager has no kernels of other types for these: they are left to the library, which says so.
LIMITED: dict[str, tuple[TypeKind, ...]] = {
    **dict.fromkeys(("abs", "ceil", "floor", "trunc", "round"), (TypeKind.INT, TypeKind.FLOAT)),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), (TypeKind.INT, TypeKind.FLOAT)),
    **dict.fromkeys(("addcmul", "fmod", "remainder"), (TypeKind.INT, TypeKind.FLOAT)),
    **dict.fromkeys(("relu", "threshold"), (TypeKind.INT, TypeKind.FLOAT)),
    **dict.fromkeys(("frac", "leaky_relu", "lerp"), (TypeKind.FLOAT,)),
    **dict.fromkeys(("logaddexp", "logaddexp2", "_softmax"), (TypeKind.FLOAT,)),
}


def _limited(rule: Rule, kinds: tuple[TypeKind, ...]) -> Rule:
    def limited(c: Context, *arguments: Any, **keywords: Any) -> Any:
        if c.dtype.kind not in kinds:
            raise NotHandled
        return rule(c, *arguments, **keywords)

    return limited


NAMED: dict[str, Rule] = {
    **POINTWISE,
    **ACTIVATIONS,
    **REDUCTIONS,
    **NORMALIZATION,
    **POOLING,
    **POOLING_GRADIENTS,
    **VIEWS,
    **INDEXING,
    **SCATTERING,
    **CREATION,
}
NAMED.update({name: _limited(NAMED[name], kinds) for name, kinds in LIMITED.items()})


def _overloads(name: str) -> Iterator[torch._ops.OpOverload]:
    """All functional overloads of "add", or the one of "max.dim"; none that this torch lacks."""
    namespace, _, operator = name.rpartition("::")
    packet_name, _, overload = operator.partition(".")
    packet = getattr(getattr(torch.ops, namespace or "aten"), packet_name, None)
    if packet is None:
        return
    for overload_name in [overload] if overload else packet.overloads():
        operation = getattr(packet, overload_name, None)
        if operation is not None and not operation._schema.is_mutable:
            yield operation


def _resolve(named: Mapping[str, Rule]) -> dict[torch._ops.OpOverload, Rule]:
    """Names with an overload come last, so that they win."""
    ordered = sorted(named, key=lambda name: "." in name)
    return {overload: named[name] for name in ordered for overload in _overloads(name)}


RULES: dict[torch._ops.OpOverload, Rule] = {
    **_resolve(foreach_rules(NAMED)),
    **_resolve(NAMED),
}
