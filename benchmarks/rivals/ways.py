"""What there is to choose from, in training and in inference: each way's module, what it is told,
and the packages that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Way:
    """`unanswered`: results that it does not give."""

    module: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()


EAGER, INDUCTOR, AUTOTUNE = "eager", "inductor", "max-autotune"
OURS, NO_LOSS, FROZEN = "hemstitch", "no loss", "frozen"
TUNED = {"max_autotune": True, "coordinate_descent_tuning": True}  # that mode, in options
XLA = Way("xla", packages=("jax", "torchax"))
COMMON = {EAGER: Way("compilers"), INDUCTOR: Way("inductor")}

TRAINING: Mapping[str, Way] = {
    **COMMON,
    AUTOTUNE: Way("inductor", {"options": TUNED}),
    "xla": XLA,
    OURS: Way("compilers", {"backend": "hemstitch"}),
    NO_LOSS: Way(
        "compilers",
        {"backend": "hemstitch", "options": {"loss_every": 0}},
        unanswered=("loss",),
    ),
}
INFERENCE: Mapping[str, Way] = {
    **COMMON,
    AUTOTUNE: Way("inductor", {"options": TUNED, "freezing": True}),
    "xla": XLA,
    "onnx runtime": Way("onnx_runtime", packages=("onnxruntime", "onnxscript")),
    "openvino": Way("open_vino", packages=("openvino",)),
    OURS: Way("compilers", {"backend": "hemstitch"}),
    FROZEN: Way(
        "compilers", {"backend": "hemstitch", "options": {"freeze": True}, "modules_stay": True}
    ),
}
