"""Random programs of PyTorch's functions through `torch.compile`: results and gradients are as near
to float64 as eager's, and lie in memory as eager's do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hemstitch.errors import GraphWarning, HemstitchWarning
from tests.effort import examples
from tests.frontend.test_random_views import strides_of

SIZES = (1, 2, 3, 4, 5, 8, 16, 17)
MORE = (6, 7, 9)  # of later calls
AGAIN = 2  # how often what has symbolic sizes is called with others
MOST = 20_000  # elements of a value
RESULTS = 3
# How many times eager's error, where rounding is all that is left, and what may be wrong whatever
# that is: in float32, and with half types.
EXACT = (30.0, 1e-4)
ROUNDED = (3.0, 5e-2)
Function = Callable[[Tensor, int], Tensor]
Pair = Callable[[Tensor, Tensor], Tensor]


class _Scaled(torch.autograd.Function):
    """With a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x.sigmoid() * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        y = x.sigmoid()
        return gradient * ctx.scale * y * (1 - y), None


def _weights(x: Tensor, *shape: int) -> Tensor:
    """The same for each shape."""
    count = int(torch.Size(shape).numel())
    waves = torch.arange(count, dtype=torch.float32).mul(1.7).add(shape[0]).sin().view(shape)
    return (waves * (shape[0] / count) ** 0.5).to(x.dtype)


def _halves(x: Tensor, combine: Pair) -> Tensor:
    if x.shape[-1] % 2:
        return x
    return combine(*x.chunk(2, -1))


def _attention(x: Tensor, axis: int) -> Tensor:
    heads = x.unsqueeze(1)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).squeeze(1)


def _heads(x: Tensor, axis: int) -> Tensor:
    if x.shape[-1] % 2:
        return x
    return x.unflatten(-1, (2, -1)).transpose(1, 2).softmax(-1).flatten(1, 2)


def _batch_normalised(x: Tensor, axis: int) -> Tensor:
    return F.batch_norm(x, None, None, training=True) if x.numel() > x.shape[1] else x


def _written(x: Tensor, axis: int) -> Tensor:
    y = x.clone()
    y[..., :1].mul_(0.5)
    return y


# Of any tensor with axes; `axis` is one of them.
ANY: Mapping[str, Function] = {
    "relu": lambda x, axis: F.relu(x),
    "gelu": lambda x, axis: F.gelu(x),
    "gelu by tanh": lambda x, axis: F.gelu(x, approximate="tanh"),
    "silu": lambda x, axis: F.silu(x),
    "mish": lambda x, axis: F.mish(x),
    "elu": lambda x, axis: F.elu(x),
    "leaky": lambda x, axis: F.leaky_relu(x, 0.1),
    "softplus": lambda x, axis: F.softplus(x),
    "hardswish": lambda x, axis: F.hardswish(x),
    "tanh": lambda x, axis: x.tanh(),
    "sigmoid": lambda x, axis: x.sigmoid(),
    "erf": lambda x, axis: x.erf(),
    "sin": lambda x, axis: x.sin(),
    "exp": lambda x, axis: x.clamp(max=3).exp(),
    "log": lambda x, axis: (x.abs() + 1).log(),
    "cube": lambda x, axis: x**3 * 0.1,
    "root": lambda x, axis: (x * x + 1).rsqrt(),
    "ratio": lambda x, axis: x / (x.abs() + 1),
    "softmax": lambda x, axis: x.softmax(axis),
    "log softmax": lambda x, axis: x.log_softmax(axis),
    "mean": lambda x, axis: x.mean(axis, keepdim=True),
    "sum": lambda x, axis: x.sum(axis) * 0.3,
    "most": lambda x, axis: x.amax(axis, keepdim=True),
    "variance": lambda x, axis: x.var(axis, keepdim=True, correction=0),
    "log of sums": lambda x, axis: x.logsumexp(axis, keepdim=True),
    "mean of all": lambda x, axis: x.mean(),
    "sums so far": lambda x, axis: x.cumsum(axis) * 0.3,
    "layer norm": lambda x, axis: F.layer_norm(x, x.shape[-1:]),
    "rms norm": lambda x, axis: F.rms_norm(x, x.shape[-1:]),
    "normalised": lambda x, axis: F.normalize(x, dim=axis),
    "glu": lambda x, axis: F.glu(x, -1) if x.shape[-1] % 2 == 0 else x,
    "turned": lambda x, axis: _halves(x, lambda a, b: torch.cat([-b, a], -1)),
    "gated": lambda x, axis: _halves(x, lambda a, b: a * b.sigmoid()),
    "flipped": lambda x, axis: x.flip(axis),
    "rolled": lambda x, axis: x.roll(1, axis),
    "transposed": lambda x, axis: x.transpose(0, axis),
    "contiguous": lambda x, axis: x.contiguous(),
    "padded": lambda x, axis: F.pad(x, (1, 0)),
    "half": lambda x, axis: x.narrow(axis, 0, (x.shape[axis] + 1) // 2),
    "every other": lambda x, axis: x[..., ::2],
    "twice": lambda x, axis: torch.cat([x, x * 2], axis),
    "stacked": lambda x, axis: torch.stack([x, x + 1], axis).mean(axis),
    "expanded": lambda x, axis: x.unsqueeze(0).expand(2, *x.shape).sum(0),
    "repeated": lambda x, axis: x.narrow(axis, 0, 1).expand(x.shape),
    "interleaved": lambda x, axis: x.repeat_interleave(2, axis),
    "windows": lambda x, axis: x.unfold(-1, 2, 1).mean(-1) if x.shape[-1] > 1 else x,
    "where": lambda x, axis: torch.where(x > 0.1, x, x * 0.1),
    "masked": lambda x, axis: x.masked_fill(x < -0.5, -1.0),
    "by place": lambda x, axis: x * (torch.arange(x.shape[-1]) < 3),
    "triangle": lambda x, axis: x.tril() if x.dim() > 1 else x,
    "sorted": lambda x, axis: x.sort(axis)[0],
    "largest": lambda x, axis: x.topk(1, axis)[0],
    "rows": lambda x, axis: x[torch.tensor([0, 0, 0])],
    "lines": lambda x, axis: x.index_select(axis, torch.tensor([0, 0])),
    "gathered": lambda x, axis: x.gather(0, torch.zeros_like(x, dtype=torch.long)),
    "added up": lambda x, axis: x.index_add(0, torch.zeros(x.shape[0], dtype=torch.long), x),
    "in place": lambda x, axis: x.clone().add_(1),
    "written": _written,
    "detached": lambda x, axis: x + x.detach().mean(),
    "own gradient": lambda x, axis: _Scaled.apply(x, 2.0),  # type: ignore[no-untyped-call]
    "bfloat16": lambda x, axis: x.bfloat16(),
    "float16": lambda x, axis: x.half(),
    "float32": lambda x, axis: x.float() if x.dtype != torch.float64 else x,
    "squares": lambda x, axis: (x @ x.mT) * 0.1 if x.dim() > 1 else x,
    "smooth l1": lambda x, axis: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
}
IMAGES: Mapping[str, Function] = {
    "convolved": lambda x, axis: F.conv2d(x, _weights(x, 4, x.shape[1], 3, 3), padding=1),
    "by channel": lambda x, axis: F.conv2d(
        x, _weights(x, x.shape[1], 1, 3, 3), padding=1, groups=x.shape[1]
    ),
    "mixed": lambda x, axis: F.conv2d(x, _weights(x, x.shape[1], x.shape[1], 1, 1)),
    "max pool": lambda x, axis: F.max_pool2d(x, 3, 2, 1),
    "mean pool": lambda x, axis: F.avg_pool2d(x, 2, 2, ceil_mode=True),
    "two by two": lambda x, axis: F.adaptive_avg_pool2d(x, 2),
    "group norm": lambda x, axis: F.group_norm(x, 1),
    "batch norm": _batch_normalised,
    "larger": lambda x, axis: F.interpolate(x, scale_factor=2, mode="nearest"),
    "smoother": lambda x, axis: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "channels last": lambda x, axis: x.contiguous(memory_format=torch.channels_last),
    "as sequence": lambda x, axis: x.flatten(2).transpose(1, 2),
    "pixels": lambda x, axis: F.pixel_shuffle(x, 2) if x.shape[1] % 4 == 0 else x,
    "shuffled": lambda x, axis: F.channel_shuffle(x, 2) if x.shape[1] % 2 == 0 else x,
    "excited": lambda x, axis: x * x.mean((2, 3), keepdim=True).sigmoid(),
}
SEQUENCES: Mapping[str, Function] = {
    "linear": lambda x, axis: F.linear(x, _weights(x, 6, x.shape[-1]), _weights(x, 6)),
    "attention": _attention,
    "heads": _heads,
    "products": lambda x, axis: torch.bmm(x, x.transpose(1, 2)) * 0.1,
    "einsum": lambda x, axis: torch.einsum("btd,bsd->bts", x, x) * 0.1,
    "distances": lambda x, axis: (x.unsqueeze(1) - x.unsqueeze(2)).square().sum(-1) * 0.1,
    "convolved": lambda x, axis: F.conv1d(x, _weights(x, 4, x.shape[1], 3), padding=1),
    "shifted": lambda x, axis: F.pad(x, (0, 0, 1, 0))[:, :-1],
    "loss": lambda x, axis: F.cross_entropy(
        x.flatten(0, 1), torch.zeros(x.shape[0] * x.shape[1], dtype=torch.long)
    ),
    "squared loss": lambda x, axis: F.mse_loss(x, x.roll(1, -1)),
    "masked rows": lambda x, axis: x.masked_fill(torch.arange(x.shape[1])[:, None] > 1, 0.0),
}
PAIRS: Mapping[str, Pair] = {
    "sum": lambda x, y: x + y,
    "product": lambda x, y: x * y,
    "difference": lambda x, y: x - y,
    "larger of both": torch.maximum,
    "ratio": lambda x, y: x / (1 + y * y),
    "chosen": lambda x, y: torch.where(y > 0, x, y),
    "between": lambda x, y: x.lerp(y.to(x.dtype), 0.3),
    "angle": lambda x, y: torch.atan2(x, y.abs() + 0.5),
}
NAMED = {**ANY, **{f"image {k}": f for k, f in IMAGES.items()}} | {
    f"sequence {k}": f for k, f in SEQUENCES.items()
}


class Step(NamedTuple):
    """`place`, `other`: which values it takes. A name of `PAIRS`, or of `NAMED` with an axis."""

    name: str
    place: int
    other: int | None
    axis: int


def _applied(step: Step, values: Sequence[Tensor]) -> Tensor:
    x = values[step.place]
    if step.other is not None:
        return PAIRS[step.name](x, values[step.other])
    return NAMED[step.name](x, step.axis)


@dataclass(frozen=True, slots=True)
class Program:
    steps: tuple[Step, ...]
    autocast: bool

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        return self.values(*arguments)[-RESULTS:]

    def values(self, *arguments: Tensor) -> list[Tensor]:
        """Of all steps."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            values = [*arguments]
            for step in self.steps:
                values.append(_applied(step, values))
        return values[len(arguments) :]


def program_for(random: Random, arguments: Sequence[Tensor], most: int) -> Program:
    """Of steps that the values' shapes allow."""
    steps: list[Step] = []
    values = [*arguments]
    autocast = random.random() < 0.3
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.no_grad():
        for _ in range(random.randint(2, 10)):
            step = _step(random, values)
            try:
                value = _applied(step, values)
            except RuntimeError:  # autocast has nothing for some functions of float16
                continue
            if value.numel() <= most:
                steps.append(step)
                values.append(value)
    return Program(tuple(steps), autocast)


def _step(random: Random, values: Sequence[Tensor]) -> Step:
    last = len(values) - 1
    place = last if random.random() < 0.6 else random.randint(0, last)
    x, other = values[place], random.randint(0, last)
    if x.dim() == 0:
        return Step("sum", place, 0, 0)
    if random.random() < 0.2 and _meet(x, values[other]):
        return Step(random.choice(list(PAIRS)), place, other, 0)
    kinds = {3: "sequence ", 4: "image "}
    own = [name for name in NAMED if name.startswith(kinds.get(x.dim(), "-"))]
    pool = own if own and random.random() < 0.6 else list(ANY)
    return Step(random.choice(pool), place, None, random.randrange(x.dim()))


def _meet(x: Tensor, y: Tensor) -> bool:
    pairs = zip(reversed(x.shape), reversed(y.shape))
    return all(a == b or 1 in (a, b) for a, b in pairs)


class Argument(NamedTuple):
    """`order`: of its axes, the outermost first."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    has_gaps: bool
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        back = [self.order.index(axis) for axis in range(len(self.shape))]
        x = torch.randn([self.shape[axis] for axis in self.order]).permute(back)
        x = torch.stack([x, x], -1)[..., 0] if self.has_gaps else x
        return x.to(self.dtype)

    def resized(self, sizes: Mapping[int, int]) -> Argument:
        return self._replace(shape=tuple(sizes[n] for n in self.shape))


def arguments_of(random: Random, sizes: Sequence[int]) -> list[Argument]:
    """In any order of axes, with gaps or without."""
    found = []
    for _ in range(random.randint(1, 2)):
        shape = [random.choice(sizes) for _ in range(random.choice((2, 3, 3, 4, 4)))]
        order = random.sample(range(len(shape)), len(shape))
        if random.random() < 0.5:
            order.sort()
        has_gaps = random.random() < 0.2
        dtype = torch.bfloat16 if random.random() < 0.1 else torch.float32
        found.append(Argument(tuple(shape), tuple(order), has_gaps, dtype))
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    results: list[Tensor]
    gradients: list[Tensor | None]


def run(program: Any, arguments: Sequence[Tensor], with_gradients: bool) -> Outcome:
    leaves = [x.detach().requires_grad_(with_gradients) for x in arguments]
    results = program(*leaves)
    losses = [(x.double() * _waves(x)).sum() for x in results if x.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    return Outcome([x.detach() for x in results], [x.grad for x in leaves])


def _waves(x: Tensor) -> Tensor:
    return torch.arange(x.numel(), dtype=torch.float64).cos().view(x.shape)


@settings(max_examples=examples(14), deadline=None)
@given(st.integers(0, 1 << 40))
def test_results_and_gradients(seed: int) -> None:
    check(seed)


def check(
    seed: int, *, sizes: Sequence[int] = SIZES, most: int = MOST, options: Any = None
) -> None:
    """Called again with other sizes, where these are symbols. `most`: elements of a value."""
    random = Random(seed)
    torch.manual_seed(seed)
    torch._dynamo.reset()
    described = arguments_of(random, sizes)
    arguments = [each.tensor() for each in described]
    program = program_for(random, arguments, most)
    gradients, dynamic = random.random() < 0.6, random.choice((False, False, None, True))
    compiled = torch.compile(
        program.__call__, backend="hemstitch", dynamic=dynamic, options=options
    )
    is_dynamic = dynamic is not False
    assert_as_eager(program, compiled, arguments, gradients, is_dynamic)
    for _ in range(AGAIN if is_dynamic else 0):
        others = {n: 1 if n == 1 else random.choice([*sizes, *MORE]) for n in sizes}
        arguments = [each.resized(others).tensor() for each in described]
        if _is_allowed(program, arguments, most):
            assert_as_eager(program, compiled, arguments, gradients, is_dynamic)


def _is_allowed(program: Program, arguments: Sequence[Tensor], most: int) -> bool:
    try:
        values = program.values(*arguments)
    except RuntimeError:  # shapes do not meet
        return False
    return all(value.numel() <= most for value in values)


def assert_as_eager(
    program: Program,
    compiled: Any,
    arguments: Sequence[Tensor],
    gradients: bool,
    is_dynamic: bool,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of autograd about leaves
        eager = run(program, arguments, gradients)
        wide = [x.double() for x in arguments]
        exact = run(replace(program, autocast=False), wide, gradients)
        warnings.simplefilter("error", HemstitchWarning)
        if is_dynamic:
            warnings.filterwarnings("ignore", ".* laid out as only the call knows", GraphWarning)
        found = run(compiled, arguments, gradients)
    for ours, theirs in zip(found.results, eager.results, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert strides_of(ours) == strides_of(theirs)
    seen = [*eager.results, *exact.results, *arguments]
    factor, floor = EXACT if _is_exact(program, seen) else ROUNDED
    pairs = zip(
        [*found.results, *found.gradients],
        [*eager.results, *eager.gradients],
        [*exact.results, *exact.gradients],
        strict=True,
    )
    for ours_, theirs_, wanted in pairs:
        assert (ours_ is None) == (theirs_ is None)
        if ours_ is not None and theirs_ is not None and wanted is not None:
            finite = theirs_.isfinite()  # a half type may have nothing for it
            ours_, theirs_, wanted = ours_[finite], theirs_[finite], wanted[finite]
            assert _error(ours_, wanted) <= max(factor * _error(theirs_, wanted), floor)


def _is_exact(program: Program, seen: Sequence[Tensor]) -> bool:
    """Whether nothing is rounded to half types."""
    narrow = any(x.dtype in (torch.bfloat16, torch.float16) for x in seen)
    rounds = any(step.name in ("bfloat16", "float16") for step in program.steps)
    return not (narrow or rounds or program.autocast)


def _error(x: Tensor, wanted: Tensor) -> float:
    return float((x.double() - wanted).norm() / (wanted.norm() + 1))
