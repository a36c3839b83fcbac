"""Which ATen ops AOTAutograd breaks up while it traces, and into what."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count, repeat
from typing import Any

import torch
from torch._decomp import (
    _core_aten_decompositions_post_autograd,
    decomposition_table,
    get_decompositions,
)
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import (
    free_unbacked_symbols,
    guard_or_true,
    statically_known_true,
)

from hemstitch.capture import checked_ops
from hemstitch.capture.result_layouts import as_in_eager, packet_of
from hemstitch.capture.rules import RULES
from hemstitch.capture.static_moves import moved_by_views

aten = torch.ops.aten
SIXTH = 11184811 / 2**26  # rounded to f32
CHANNELS_OF_A_BLOCK = 16  # of oneDNN, with AVX-512; 8 with AVX2
Decompositions = dict[Any, Callable[..., Any]]

# Expanded already in the trace, so that the partitioner sees what is cheap to compute again.
EXPANDED = (
    *("native_layer_norm", "_log_softmax"),
    *("_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
    *("_native_batch_norm_legit_no_training", "native_batch_norm", "batch_norm_backward"),
    *("_batch_norm_with_update", "_batch_norm_with_update_functional", "_batch_norm_no_update"),
    *("native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
    *("nll_loss2d_backward", "linalg_vector_norm", "upsample_bilinear2d.vec"),
)

# Eager looks at their operands, torch's decompositions do not.
CHECKING: Decompositions = {
    aten.bernoulli.default: checked_ops.bernoulli,
    aten.binary_cross_entropy.default: checked_ops.binary_cross_entropy,
    aten.binary_cross_entropy_with_logits.default: checked_ops.with_logits,
    **dict.fromkeys((aten.mse_loss.default, aten.smooth_l1_loss.default), checked_ops.of_floats),
    **dict.fromkeys(
        (aten.huber_loss.default, aten.soft_margin_loss.default), checked_ops.of_first_type
    ),
    # The incoming gradient has the type of the loss, and what is given back too.
    aten.huber_loss_backward.default: checked_ops.of_first_type,
    aten.soft_margin_loss_backward.default: checked_ops.of_first_type,
    aten.binary_cross_entropy_backward.default: checked_ops.of_first_type,
}
# Gradients of a part: zeros, of which the library would make a copy with the part in it.
PARTS = ("slice_backward", "select_backward", "diagonal_backward", "unfold_backward")
MOVED = ("channel_shuffle", "native_channel_shuffle")

# One library call is better than what they would become.
KEPT = (
    *("baddbmm", "addmm", "convolution_backward", "native_dropout"),
    *("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
    *("index_copy", "index_fill", "max_unpool2d", "max_unpool3d"),  # with checks of their own
)
KEPT_PREFIXES = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")


def decompositions() -> Decompositions:
    """A fresh table for one compile."""
    return {**_always(), **_random()}


@cache
def _always() -> Decompositions:
    """The same for every compile. Of composite ops only those that are composed in Python: others
    are broken up before a trace sees them, and to list them takes a third of a second."""
    core = {**_core_aten_decompositions_post_autograd(), **get_decompositions(_composed_here())}
    table = {op: function for op, function in core.items() if op not in RULES and not _is_kept(op)}
    expanded = [getattr(aten, name) for name in map(_packet, EXPANDED) if hasattr(aten, name)]
    table.update(get_decompositions(expanded))
    table[aten.native_group_norm.default] = _group_norm
    inference = aten._native_batch_norm_legit_no_training.default
    table[inference] = partial(_batch_norm_no_training, table[inference])
    table[aten._softmax.default] = _of_something(_softmax)
    logarithm = aten._log_softmax.default
    table[logarithm] = _of_something(table[logarithm])
    table[aten.hardtanh_backward.default] = _hardtanh_backward
    table[aten.hardsigmoid_backward.default] = _hardsigmoid_backward
    table[aten.threshold_backward.default] = _threshold_backward
    table[aten.smooth_l1_loss_backward.default] = _smooth_l1_loss_backward
    for op in (op for op in table if op in CHECKING):
        table[op] = partial(CHECKING[op], table[op])
    table.update(moved_by_views(table))
    table.update(as_in_eager(table))
    for name in PARTS:
        op = getattr(aten, name).default
        table[op] = partial(_of_reals, table[op])
    for op in (op for op in table if packet_of(op) in MOVED):
        table[op] = partial(_moved, table[op])
    table[aten.roll.default] = partial(_rolled, table[aten.roll.default])
    table[aten.convolution.default] = _convolution
    table[aten.convolution_backward.default] = _convolution_backward
    table[aten.as_strided.default] = _as_strided
    table[aten.as_strided_scatter.default] = _as_strided_scatter
    # `torch.tensor` in a decomposition ends with it; below autograd it does nothing.
    table[aten.detach_.default] = lambda x: x
    return table


def _composed_here() -> list[Any]:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return [op for op in decomposition_table if key in getattr(op, "py_kernels", {})]


def _packet(name: str) -> str:
    return name.partition(".")[0]


def _moved(usual: Callable[..., Any], x: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
    """Never a view of `x`, also where nothing moves."""
    return usual(x, *arguments, **keywords).clone(memory_format=suggest_memory_format(x))


def _rolled(
    usual: Callable[..., Any], x: torch.Tensor, shifts: Any, dims: Sequence[int] = ()
) -> Any:
    """Contiguous where an axis stays as it is: eager joins two parts, and one has no elements."""
    if not dims:
        return _moved(usual, x.flatten(), shifts, [0]).view(x.shape)
    known = [(x.shape[axis], shift) for axis, shift in zip(dims, shifts)]
    known = [(size, shift) for size, shift in known if isinstance(size, int) and size]
    stays = any(isinstance(shift, int) and not shift % size for size, shift in known)
    layout = torch.contiguous_format if stays else suggest_memory_format(x)
    return usual(x, shifts, dims).clone(memory_format=layout)


def _is_kept(op: Any) -> bool:
    name = packet_of(op)
    return name in KEPT or name.startswith(KEPT_PREFIXES)


def _group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """torch's own ends in as_strided, which nothing can be fused across."""
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    grouped = x.to(wide).reshape(batch, groups, channels // groups, area)
    variance, mean = torch.var_mean(grouped, (2, 3), correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    result = ((grouped - mean) * scale).reshape(x.shape)
    per_channel = (channels, *(1,) * (x.dim() - 2))
    if weight is not None:
        result = result * weight.reshape(per_channel)
    if bias is not None:
        result = result + bias.reshape(per_channel)
    mean, scale = (statistic.reshape(batch, groups).to(x.dtype) for statistic in (mean, scale))
    return result.to(x.dtype), mean, scale


def _batch_norm_no_training(
    usual: Callable[..., Any],
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_variance: torch.Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """One multiplication and one addition an element, as eager has it on processors. `usual`, which
    is torch's, subtracts, multiplies twice and adds, as eager does on GPUs."""
    if x.device.type != "cpu":
        return usual(x, weight, bias, running_mean, running_variance, momentum, eps)
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    factor = torch.rsqrt(running_variance.to(wide) + eps)
    factor = factor if weight is None else factor * weight.to(wide)
    mean = running_mean.to(wide) * factor
    addend = -mean if bias is None else bias.to(wide) - mean
    per_channel = (x.shape[1], *(1,) * (x.dim() - 2))
    result = x.to(wide) * factor.reshape(per_channel) + addend.reshape(per_channel)
    return result.to(x.dtype), x.new_zeros((0,)), x.new_zeros((0,))


def _of_reals(usual: Callable[..., Any], gradient: torch.Tensor, *arguments: Any) -> Any:
    """What no kernel computes with stays one call."""
    return NotImplemented if gradient.is_complex() else usual(gradient, *arguments)


def _of_something(usual: Callable[..., Any]) -> Callable[..., Any]:
    """`usual` takes the greatest of each row, where a row whose length is read from data may have
    none: this is left to a rule."""

    def decomposed(x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
        if x.dim() and free_unbacked_symbols(x.shape[dim]):
            return NotImplemented
        return usual(x, dim, half_to_float)

    return decomposed


def _softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    """torch's own divides each element. The sum is at least 1, so its reciprocal costs half a unit
    in the last place, and a division as much as half an exp."""
    if not x.is_floating_point():
        return NotImplemented  # eager refuses it
    wide = torch.promote_types(x.dtype, torch.float32)
    numbers = x.to(wide).contiguous()  # as in eager, whatever the operand's layout
    if not statically_known_true(x.numel() == 0):
        numbers = numbers - numbers.amax(dim, keepdim=True)
    weights = numbers.exp()
    result = weights * weights.sum(dim, keepdim=True).reciprocal()
    return result if half_to_float else result.to(x.dtype)


def _hardtanh_backward(gradient: torch.Tensor, x: torch.Tensor, low: Any, high: Any) -> Any:
    """torch's own lets NaN through."""
    compared = _compared(x, low, high)
    return torch.where((compared > low) & (compared < high), gradient, 0.0)


def _hardsigmoid_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Eager's sixth is one of f32, for f64 too."""
    return torch.where((x > -3) & (x < 3), gradient * SIXTH, 0.0)


def _threshold_backward(gradient: torch.Tensor, x: torch.Tensor, threshold: Any) -> torch.Tensor:
    return torch.where(_compared(x, threshold) <= threshold, 0, gradient)


def _smooth_l1_loss_backward(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """torch's own is 0 for NaN."""
    wide = torch.promote_types(x.dtype, torch.float32)
    gradient = gradient.to(wide)
    if reduction == 1:
        gradient = gradient * (1.0 / x.numel())
    difference = x.to(wide) - target.to(wide)
    slope = torch.where(difference.abs() >= beta, difference.sign(), difference / beta)
    return (slope * gradient).to(x.dtype)


def _compared(x: torch.Tensor, *bounds: Any) -> torch.Tensor:
    """Eager's gradients compare half types with bounds that are not rounded to them."""
    is_half = x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if is_half and any(map(math.fmod, bounds, repeat(1.0))) else x


def _convolution(x: Any, weight: torch.Tensor, bias: Any, *how: Any) -> Any:
    spread = _for_each_axis(how, weight.dim() - 2)
    return NotImplemented if spread is None else aten.convolution.default(x, weight, bias, *spread)


def _convolution_backward(
    gradient: Any, x: Any, weight: torch.Tensor, bias_sizes: Any, *how: Any
) -> Any:
    spread = _for_each_axis(how, weight.dim() - 2)
    if spread is not None:
        return aten.convolution_backward.default(gradient, x, weight, bias_sizes, *spread)
    if _overruns(weight, *how):
        return _of_pixels_read(gradient, x, weight, bias_sizes, *how)
    return NotImplemented


def _overruns(
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    mask: Sequence[bool],
) -> bool:
    """If oneDNN may write past its memory (its issue 6035): for the gradient of weights of 1 x 1,
    of an image by channels, fewer than a block of them, some pixels of which are not read."""
    is_pointwise = all(size == 1 for size in weight.shape[2:]) and not any(padding)
    is_thin = guard_or_true(weight.shape[1] < CHANNELS_OF_A_BLOCK)
    return mask[1] and not transposed and max(stride) > 1 and is_pointwise and is_thin


def _of_pixels_read(
    gradient: torch.Tensor, x: torch.Tensor, weight: Any, bias_sizes: Any, *how: Any
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of weights and bias, of an image that has no other pixels."""
    (stride, *rest), mask = how[:-1], how[-1]
    of_image = None
    if mask[0]:
        alone = [True, False, False]
        of_image = aten.convolution_backward.default(
            gradient, x, weight, bias_sizes, stride, *rest, alone
        )[0]
    for axis, step in enumerate(stride, 2):
        x = aten.slice.Tensor(x, axis, None, None, step)
    of_others = aten.convolution_backward.default(
        gradient, x, weight, bias_sizes, [1] * len(stride), *rest, [False, *mask[1:]]
    )
    return of_image, *of_others[1:]


def _for_each_axis(how: Sequence[Any], rank: int) -> list[Any] | None:
    """One number stands for all axes, as where the padding is called valid; None if none does."""
    short = [isinstance(part, (list, tuple)) and len(part) == 1 < rank for part in how]
    if not any(short):
        return None
    return [[*part] * rank if is_one else part for part, is_one in zip(how, short)]


def _as_strided(x: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """All of a tensor in its order is a view with a name: so is flattened what lies by channels."""
    return x.reshape(size) if _shows_all(x, size, stride, storage_offset) else NotImplemented


def _as_strided_scatter(
    x: torch.Tensor, source: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None
) -> Any:
    is_all = _shows_all(x, size, stride, storage_offset)
    return source.reshape(x.shape) if is_all else NotImplemented


def _shows_all(x: torch.Tensor, size: Any, stride: Any, storage_offset: Any) -> bool:
    numbers = [*x.shape, *size, *stride, x.storage_offset(), storage_offset or 0]
    if not all(isinstance(number, int) for number in numbers) or not x.is_contiguous():
        return False
    meant = torch.empty_strided(size, stride, device="meta")
    is_whole = meant.is_contiguous() and meant.numel() == x.numel()
    return is_whole and x.storage_offset() == 0 == (storage_offset or 0)


def _random() -> Decompositions:
    """Dropout and coin flips as functions of a seed, with a seed of its own for each call site."""
    slots = count()

    def uniform(x: torch.Tensor) -> torch.Tensor:
        seed = torch.ops.hemstitch.draw_seed(next(slots), device=x.device)
        numbers: torch.Tensor = torch.ops.hemstitch.uniform(seed, x.shape)
        return numbers

    def native_dropout(
        x: torch.Tensor, p: float, train: bool | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if train is False or p == 0:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        if p == 1:
            return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
        mask = uniform(x) >= p
        return x * (mask * (1 / (1 - p))).to(x.dtype), mask

    def bernoulli(x: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
        is_plain = generator is None and 0 <= p <= 1
        return (uniform(x) < p).to(x.dtype) if is_plain else NotImplemented

    return {aten.native_dropout.default: native_dropout, aten.bernoulli.p: bernoulli}
