"""What tests/opinfo does not compare, or not in full, each with its reason."""

from __future__ import annotations

UNINITIALISED = "its result is whatever was in memory"
OWN_STREAM = (
    "draws its random numbers from Hemstitch's own generator: only shapes and types compare"
)

NOT_COMPARED: dict[str, str] = {
    "empty": UNINITIALISED,
    "empty_like": UNINITIALISED,
    "empty_permuted": UNINITIALISED,
    "empty_strided": UNINITIALISED,
    "new_empty": UNINITIALISED,
    "new_empty_strided": UNINITIALISED,
}
RANDOM: dict[str, str] = {
    "nn.functional.alpha_dropout": OWN_STREAM,
    "nn.functional.dropout": OWN_STREAM,
    "nn.functional.dropout2d": OWN_STREAM,
    "nn.functional.dropout3d": OWN_STREAM,
    "nn.functional.feature_alpha_dropout": OWN_STREAM,
    "nn.functional.multi_head_attention_forward": OWN_STREAM,
    "nn.functional.scaled_dot_product_attention": OWN_STREAM,
}
# nn.functional.max_unpool2d is not among them: its indices repeat only where its values do as well.
