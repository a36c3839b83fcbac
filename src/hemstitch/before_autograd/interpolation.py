"""Interpolation as one linear map for each axis, and its gradient as the transposed map.

PyTorch's decompositions read the four (bicubic: sixteen) neighbours of each result, so that the
gradient is as many sums by index. Which elements a result reads is known from the sizes alone.
Therefore the transposed map is known too: each element of the gradient reads its own few results,
and nothing is added up by index. Axes come one after the other, as in any separable filter.
Sizes that are symbols, integer types and antialiasing are left to PyTorch. Taps of weight zero are
taps like others, in the gradient too, since they make no number of an infinity.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor
from torch._prims_common import suggest_memory_format

MAX_UNROLLED = 8  # taps; more are a reduction over an axis of their own
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NOTHING = -0.0  # added to anything, also to -0.0, it changes nothing
MODES = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Taps:
    """A banded matrix: result[j] is the sum over k of weights[j, k] * x[first[j] + k].

    `size`: how many elements `x` has. `present`: which taps there are; the others multiply nothing,
    so that an infinity beside a window makes no NaN. `cancels`: which are several taps at one
    place that do make NaN of an infinity, as 0.75 and 0 do. Shapes: first [J]; all others [J, K].
    """

    size: int
    first: Array
    weights: Array
    present: Array
    cancels: Array

    @staticmethod
    def of(size: int, rows: Array, columns: Array, weights: Array, results: int) -> Taps:
        """From the matrix's elements, in any order; equal places are added up."""
        lowest = np.full(results, size)
        np.minimum.at(lowest, rows, columns)
        highest = np.full(results, -1)
        np.maximum.at(highest, rows, columns)
        lowest = np.where(highest < 0, 0, lowest)
        first = _evenly(lowest, highest)
        width = max(1, int((highest - first).max(initial=0)) + 1)
        band = np.zeros((results, width), weights.dtype)
        places = rows, columns - first[rows]
        np.add.at(band, places, weights)
        signs = np.zeros((3, results, width), bool)
        signs[(np.sign(weights).astype(np.int64) + 1, *places)] = True
        present, several = signs.any(0), signs.sum(0) > 1
        return Taps(size, first, band, np.asarray(present), several)

    def column(self, k: int) -> Taps:
        """The taps at one offset; its shapes are [J]."""
        parts = (part[:, k] for part in (self.weights, self.present, self.cancels))
        return Taps(self.size, self.first + k, *parts)

    @cached_property
    def transposed(self) -> Taps:
        rows, offsets = np.concatenate([np.nonzero(self.present), np.nonzero(self.cancels)], 1)
        weights = self.weights[rows, offsets]
        weights[np.count_nonzero(self.present) :] = 0
        columns = self.first[rows] + offsets
        return Taps.of(len(self.first), columns, rows, weights, self.size)

    @property
    def step(self) -> int | None:
        """Between the windows of neighbouring results, where it is the same everywhere."""
        steps = {int(step) for step in np.diff(self.first)} or {1}
        return steps.pop() if len(steps) == 1 and min(steps) > 0 else None


def _evenly(lowest: Array, highest: Array) -> Array:
    """Where windows begin: at equal distances if they get no more than one element longer by it."""
    count = len(lowest)
    width = int((highest - lowest).max(initial=0)) + 1
    step = max(1, round(float(lowest[-1] - lowest[0]) / max(1, count - 1))) if count else 1
    even = step * np.arange(count)
    even = even + int((lowest - even).min(initial=0 if not count else int(lowest[0])))
    is_short = int((highest - even).max(initial=0)) + 1 <= width + 1
    return even if is_short else lowest


Along = tuple[tuple[int, Taps], ...]  # an axis and its taps, the first axis first


def _apply(x: Tensor, along: Along, in_rows: bool) -> Tensor:
    """The last axis last. Where elements lie side by side along it (`in_rows`), all others are
    reductions: their results wait in a row buffer for what reads each at several places. Where
    channels lie side by side every tap is a vector, and reading it again costs less."""
    for axis, taps in along:
        is_unrolled = axis == x.dim() - 1 or not in_rows
        x = _along(x, axis, taps, MAX_UNROLLED if is_unrolled else 1)
    return x


def _along(x: Tensor, axis: int, taps: Taps, max_unrolled: int) -> Tensor:
    if taps.weights.shape[1] > max_unrolled:
        return _weighted(_windows(x, axis, taps), axis, taps).sum(axis + 1)
    parts = []
    for k, part in enumerate(_unrolled(x, axis, taps)):
        column = taps.column(k)
        if column.present.any():
            parts.append(_weighted(part, axis, column))
    return reduce(operator.add, parts)


def _unrolled(x: Tensor, axis: int, taps: Taps) -> list[Tensor]:
    """The k-th element of each window, for all k."""
    results, width = taps.weights.shape
    step = taps.step
    if step is None:
        places = np.clip(taps.first[None] + np.arange(width)[:, None], 0, taps.size - 1)
        return [x.index_select(axis, torch.tensor(place, device=x.device)) for place in places]
    begin, end = int(taps.first[0]), step * (results - 1) + 1
    behind = begin + end - 1 + width - taps.size
    padding = [0, 0] * (x.dim() - 1 - axis) + [-begin, behind]
    padded = F.pad(x, padding, value=NOTHING) if begin or behind else x
    every = (slice(None),) * axis
    return [padded[(*every, slice(k, k + end, step))] for k in range(width)]


def _weighted(windows: Tensor, axis: int, taps: Taps) -> Tensor:
    """`taps`: of all offsets in a window, or of one of them, in which case there is no axis for
    them."""
    shape = [1] * windows.dim()
    shape[axis : axis + taps.weights.ndim] = taps.weights.shape
    offsets = np.arange(taps.weights.shape[1]) if taps.weights.ndim == 2 else None
    place = taps.first if offsets is None else taps.first[:, None] + offsets
    # Where windows are gathered, the border stands for what lies beyond it.
    is_inside = (place >= 0) & (place < taps.size) | (taps.step is None)
    plain = windows
    if not (taps.weights[taps.present] == 1).all():
        weights = np.where(taps.present, taps.weights, 0)
        table = torch.tensor(weights, dtype=windows.dtype, device=windows.device)
        windows = windows * table.view(shape)
    if not taps.present[is_inside].all():
        present = torch.tensor(taps.present.copy(), device=windows.device).view(shape)
        windows = torch.where(present, windows, NOTHING)
    if taps.cancels.any():
        cancels = torch.tensor(taps.cancels.copy(), device=windows.device).view(shape)
        windows = windows + torch.where(cancels, plain * 0, NOTHING)
    return windows


def _windows(x: Tensor, axis: int, taps: Taps) -> Tensor:
    """What each result may read, along an axis behind `axis`; zeros beyond the border."""
    results, width = taps.weights.shape
    step = taps.step
    if step is None:
        places = np.clip(taps.first[:, None] + np.arange(width), 0, taps.size - 1)
        if width == 1:
            rows = torch.tensor(places[:, 0], device=x.device)
            return x.index_select(axis, rows).unsqueeze(axis + 1)
        index = torch.tensor(places, device=x.device)
        return x[(slice(None),) * axis + (index,)]
    begin = int(taps.first[0])
    behind = begin + step * (results - 1) + width - taps.size
    padding = [0, 0] * (x.dim() - 1 - axis) + [-begin, behind]
    padded = F.pad(x, padding) if begin or behind else x
    return padded.unfold(axis, width, step).movedim(-1, axis + 1)


class _Separable(torch.autograd.Function):
    """A map along some axes. Its gradient is the map `back`, whose gradient is this one again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, along: Along, back: Along, in_rows: bool) -> Tensor:
        return _apply(x, along, in_rows).contiguous(memory_format=suggest_memory_format(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.along, ctx.back, ctx.in_rows = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        # Eager adds it to zeros.
        result = _apply_separable(gradient, ctx.back, ctx.along, ctx.in_rows) + 0.0
        return result, None, None, None


def _apply_separable(x: Tensor, along: Along, back: Along, in_rows: bool) -> Tensor:
    result: Tensor = _Separable.apply(x, along, back, in_rows)  # type: ignore[no-untyped-call]
    return result


def _scale(size: int, results: int, factor: float | None, corners: bool) -> float:
    """As ATen's `area_pixel_compute_scale`."""
    if corners:
        return (size - 1) / (results - 1) if results > 1 else 0.0
    return 1.0 / factor if factor is not None and factor > 0 else size / results


def _nearest(size: int, results: int, factor: float | None, is_exact: bool) -> Taps:
    """In single precision whatever the type, as ATen's."""
    scale = np.float32(_scale(size, results, factor, corners=False))
    j = np.arange(results)
    middle = j.astype(np.float32) + np.float32(0.5 if is_exact else 0.0)
    place = np.minimum(np.floor(middle * scale).astype(np.int64), size - 1)
    return Taps.of(size, j, place, np.ones(results), results)


def _source(
    size: int, results: int, factor: float | None, corners: bool, number: type[Any]
) -> Array:
    scale, j = number(_scale(size, results, factor, corners)), np.arange(results).astype(number)
    half = number(0.5)
    source: Array = scale * j if corners else scale * (j + half) - half
    return source


def _linear(
    size: int, results: int, factor: float | None, corners: bool, number: type[Any]
) -> Taps:
    j = np.arange(results)
    if size == results:  # whatever the factor; ATen has two taps at one place
        return Taps.of(size, np.tile(j, 2), np.tile(j, 2), np.repeat(number([1, 0]), size), size)
    source = np.maximum(_source(size, results, factor, corners, number), 0)
    low = np.minimum(source.astype(np.int64), size - 1)
    right = np.clip(source - low.astype(number), 0, 1)
    high = np.minimum(low + 1, size - 1)
    weights = np.concatenate([1 - right, right])
    return Taps.of(size, np.tile(j, 2), np.concatenate([low, high]), weights, results)


def _cubic(size: int, results: int, factor: float | None, corners: bool, number: type[Any]) -> Taps:
    """Keys' kernel with a = -0.75; what lies beyond the border is the border."""
    source = _source(size, results, factor, corners, number)
    low = np.floor(source)
    t = np.clip(source - low, 0, 1)
    a = number(-0.75)

    def near(x: Array) -> Array:
        weight: Array = ((a + 2) * x - (a + 3)) * x * x + 1
        return weight

    def far(x: Array) -> Array:
        weight: Array = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return weight

    weights = np.concatenate([far(t + 1), near(t), near(1 - t), far(2 - t)])
    places = np.concatenate([low.astype(np.int64) + k for k in (-1, 0, 1, 2)])
    rows = np.tile(np.arange(results), 4)
    return Taps.of(size, rows, np.clip(places, 0, size - 1), weights.astype(number), results)


def _taps(mode: str, corners: bool, number: type[Any]) -> Callable[..., Taps]:
    if mode.startswith("nearest"):
        return partial(_nearest, is_exact=mode == "nearest-exact")
    return partial(_cubic if mode == "bicubic" else _linear, corners=corners, number=number)


def interpolate(
    input: Tensor,  # names as F.interpolate has them
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
    *,
    channels_last: bool = False,
) -> Tensor:
    """As `torch.nn.functional.interpolate`, which it calls for what it does not do itself.
    `channels_last`: images will lie so, whatever the layout they are traced in."""
    sizes = _sizes(input, size, scale_factor, bool(recompute_scale_factor))
    if sizes is None or antialias or not _is_ours(input, mode, align_corners):
        return F.interpolate(
            *(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
        )
    number = np.float64 if input.dtype is torch.float64 else np.float32
    taps = _taps(mode, bool(align_corners), number)
    is_kept = mode == "bicubic" and [results for results, _ in sizes] == [*input.shape[2:]]
    along = tuple(
        (axis, taps(input.shape[axis], results, factor))
        for axis, (results, factor) in enumerate(sizes, 2)
        if not (results == input.shape[axis] and _is_copy(mode, factor))
    )
    # ATen's gradient of bicubic interpolation is a copy there, though its result is none.
    back = () if is_kept else tuple((axis, taps.transposed) for axis, taps in along)
    layout = suggest_memory_format(input)
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    if along:
        in_rows = not channels_last and layout is torch.contiguous_format
        x = _apply_separable(x, along, back, in_rows)
    return x.to(input.dtype).contiguous(memory_format=layout)


def _is_copy(mode: str, factor: float | None) -> bool:
    """Along an axis that keeps its size, where all other ways have taps of weight zero."""
    return mode == "nearest" or (mode == "nearest-exact" and factor in (None, 1.0))


def _is_ours(x: Tensor, mode: str, corners: bool | None) -> bool:
    ranks = {"linear": (3,), "bilinear": (4,), "bicubic": (4,), "trilinear": (5,)}
    return (
        mode in MODES
        and x.dim() in ranks.get(mode, (3, 4, 5))
        and (corners is None or not mode.startswith("nearest"))
        and x.dtype in FLOATS
        and x.numel() > 0
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def _sizes(
    x: Tensor, size: Any, factor: Any, recompute: bool
) -> list[tuple[int, float | None]] | None:
    """How many results there are along each axis of the image, and the factor that the program
    names. None: what is not known, or not allowed."""
    spatial = x.shape[2:]
    if not all(type(n) is int for n in x.shape) or (size is None) == (factor is None):
        return None
    listed = size if factor is None else factor
    if not isinstance(listed, (list, tuple)):
        listed = [listed] * len(spatial)
    kind = (int,) if factor is None else (int, float)
    if len(listed) != len(spatial) or not all(type(n) in kind and n > 0 for n in listed):
        return None
    if factor is None:
        return [(n, None) for n in listed]
    results = [(int(n * by), None if recompute else float(by)) for n, by in zip(spatial, listed)]
    return results if all(n > 0 for n, _ in results) else None


def _upsample(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    *,
    channels_last: bool = False,
) -> Tensor:
    sizes = input, size, scale_factor
    return interpolate(*sizes, mode, align_corners, channels_last=channels_last)


def _upsample_nearest(
    input: Tensor, size: Any = None, scale_factor: Any = None, *, channels_last: bool = False
) -> Tensor:
    return _upsample(input, size, scale_factor, channels_last=channels_last)


def _upsample_bilinear(
    input: Tensor, size: Any = None, scale_factor: Any = None, *, channels_last: bool = False
) -> Tensor:
    return _upsample(input, size, scale_factor, "bilinear", True, channels_last=channels_last)


_OURS: dict[Any, Callable[..., Tensor]] = {
    F.interpolate: interpolate,
    F.upsample: _upsample,
    F.upsample_nearest: _upsample_nearest,
    F.upsample_bilinear: _upsample_bilinear,
}
_CONVOLUTIONS = (torch.conv2d, torch.conv3d, torch.conv_transpose2d, torch.conv_transpose3d)


def interpolate_by_axes(gm: torch.fx.GraphModule) -> None:
    """In Dynamo's graph, and in those of its checkpoints and branches. Images of a graph that
    convolves lie by channels (`joint/channels_last.py`)."""
    modules = [module for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes]
    channels_last = any(node.target in _CONVOLUTIONS for node in nodes)
    calls = [n for n in nodes if n.op == "call_function" and n.target in _OURS]
    for node in calls:
        node.target = _OURS[node.target]
        node.kwargs = {**node.kwargs, "channels_last": channels_last}
    for module in modules if calls else ():
        module.recompile()
