"""Loads and stores of vectors: from storage type to compute type and back, for any stride.

Masked-off lanes touch no memory; when loaded they are zero or false.
"""

from __future__ import annotations

from collections.abc import Sequence

from hemstitch.ir.types import DType
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.targets.cpu import masked_access
from hemstitch.targets.cpu.conversions import COMPUTE, STORAGE, from_storage, to_storage
from hemstitch.targets.cpu.emitter import Emitter, Value, mangle
from hemstitch.targets.cpu.register_transpose import interleaved, transposed
from hemstitch.targets.cpu.vector_arithmetic import any_lane

__all__ = [
    "COMPUTE",
    "STORAGE",
    "gather",
    "load",
    "load_transposed",
    "prefetch",
    "scatter",
    "store",
    "store_first",
    "store_interleaved",
    "store_non_temporal",
    "store_transposed",
]

_NON_TEMPORAL = "!0"  # what LLVM wants to hear of a store past the caches


def load(
    e: Emitter, dtype: DType, pointer: Value, stride: Value | int, mask: Value | None
) -> Value:
    """Lane k reads element `pointer + k * stride`."""
    if stride == 1:
        return from_storage(e, _load_block(e, dtype, pointer, mask), dtype)
    if stride == 0:
        return _load_uniform(e, dtype, pointer, mask)
    if stride == -1:
        return from_storage(e, _load_reversed(e, dtype, pointer, mask), dtype)
    if stride == 2:
        return from_storage(e, _load_every_second(e, dtype, pointer, mask), dtype)
    if mask is None:
        return _load_lanes(e, dtype, _places(e, STORAGE[dtype], pointer, stride))
    return gather(e, dtype, pointer, _offsets(e, stride), mask)


def store(
    e: Emitter,
    dtype: DType,
    pointer: Value,
    stride: Value | int,
    value: Value,
    mask: Value | None,
) -> None:
    """Lane k writes element `pointer + k * stride`."""
    assert stride != 0, "all lanes would write to one place"
    if stride != 1 and mask is not None:
        scatter(e, dtype, pointer, _offsets(e, stride), value, mask)
        return
    stored, align = to_storage(e, value, dtype), dtype.bytes
    if stride != 1:
        _store_lanes(e, dtype, _places(e, stored.element, pointer, stride), stored)
        return
    _store_block(e, stored, pointer, align, mask)


def store_non_temporal(e: Emitter, dtype: DType, pointer: Value, value: Value) -> None:
    """All lanes, side by side. `pointer`: a multiple of what is stored, or a line of a cache."""
    stored = to_storage(e, value, dtype)
    e.declarations[_NON_TEMPORAL] = f"{_NON_TEMPORAL} = !{{i32 1}}"
    align = min(e.width * dtype.bytes, CPU.line_bytes)
    e.line(f"store {stored}, {pointer}, align {align}, !nontemporal {_NON_TEMPORAL}")


def store_interleaved(
    e: Emitter, dtype: DType, pointer: Value, pair: tuple[Value, Value], mask: Value | None
) -> None:
    """Lane k writes element `pointer + 2 k`, and the other into the one behind it."""
    if dtype.bytes == 2:
        low, high = (_zero_extended(e, to_storage(e, value, dtype)) for value in pair)
        word = e.binary("or", low, e.binary("shl", high, e.constant(16, "i32")))
        _store_block(e, word, pointer, dtype.bytes, mask)
        return
    halves = interleaved(e, *pair)
    masks = (None, None) if mask is None else interleaved(e, mask, mask)
    for number, (half, part) in enumerate(zip(halves, masks)):
        place = _element(e, STORAGE[dtype], pointer, e.i64(number * e.width))
        store(e, dtype, place, 1, half, part)


def load_transposed(
    e: Emitter, dtype: DType, pointer: Value, stride: Value | int, lanes: int, step: int
) -> list[Value]:
    """Vector j, lane k is element `pointer + j * step + k * stride`, of the first `lanes` lanes.
    `step`: 1 or 2."""
    type_ = e.vector(STORAGE[dtype])
    places = _places(e, STORAGE[dtype], pointer, stride)[:lanes]
    load_row = _load_block if step == 1 else _load_every_second
    rows = [load_row(e, dtype, place, None) for place in places]
    rows += [Value("zeroinitializer", type_)] * (e.width - lanes)
    return [from_storage(e, column, dtype) for column in transposed(e, rows)]


def store_transposed(
    e: Emitter,
    dtype: DType,
    pointer: Value,
    stride: Value | int,
    lanes: int,
    values: Sequence[Value],
) -> None:
    """Where `load_square` reads from."""
    rows = transposed(e, [to_storage(e, value, dtype) for value in values])
    places = _places(e, STORAGE[dtype], pointer, stride)
    for row, place in list(zip(rows, places))[:lanes]:
        e.line(f"store {row}, {place}, align {dtype.bytes}")


def store_first(e: Emitter, dtype: DType, pointer: Value, value: Value) -> None:
    """Lane 0 alone. Never a masked store of one lane: where a truncation comes before that, LLVM
    writes all the bits there were."""
    e.line(f"store {e.lane(to_storage(e, value, dtype))}, {pointer}, align {dtype.bytes}")


def prefetch(e: Emitter, dtype: DType, pointer: Value, distance: int, level: int) -> None:
    """Ask for what lies `distance` elements behind `pointer`, which need not exist."""
    place = _element(e, STORAGE[dtype], pointer, e.i64(distance))
    read, locality, data = (Value(str(number), "i32") for number in (0, 4 - level, 1))
    e.call("llvm.prefetch.p0", "void", place, read, locality, data)


def gather(e: Emitter, dtype: DType, base: Value, offsets: Value, mask: Value | None) -> Value:
    """Lane k reads element `base + offsets[k]`."""
    element, type_ = STORAGE[dtype], e.vector(STORAGE[dtype])
    if mask is not None:
        addresses = _addresses(e, element, base, offsets)
        symbol = f"llvm.masked.gather.{mangle(type_)}.{_pointers(e)}"
        align, nothing = Value(str(dtype.bytes), "i32"), Value("zeroinitializer", type_)
        return from_storage(e, e.call(symbol, type_, addresses, align, mask, nothing), dtype)
    lanes = [e.lane(offsets, lane) for lane in range(e.width)]
    return _load_lanes(e, dtype, [_element(e, element, base, lane) for lane in lanes])


def scatter(
    e: Emitter, dtype: DType, base: Value, offsets: Value, value: Value, mask: Value | None
) -> None:
    """Lane k writes element `base + offsets[k]`; of equal offsets the highest lane stays."""
    stored = to_storage(e, value, dtype)
    if mask is not None:
        addresses = _addresses(e, stored.element, base, offsets)
        symbol = f"llvm.masked.scatter.{mangle(stored.type)}.{_pointers(e)}"
        e.call(symbol, "void", stored, addresses, Value(str(dtype.bytes), "i32"), mask)
        return
    lanes = [e.lane(offsets, lane) for lane in range(e.width)]
    _store_lanes(e, dtype, [_element(e, stored.element, base, lane) for lane in lanes], stored)


def _load_block(e: Emitter, dtype: DType, pointer: Value, mask: Value | None) -> Value:
    type_ = e.vector(STORAGE[dtype])
    if mask is None:
        return e.define(type_, f"load {type_}, {pointer}, align {dtype.bytes}")
    return masked_access.load(e, type_, pointer, dtype.bytes, mask)


def _store_block(e: Emitter, stored: Value, pointer: Value, align: int, mask: Value | None) -> None:
    if mask is None:
        e.line(f"store {stored}, {pointer}, align {align}")
        return
    masked_access.store(e, stored, pointer, align, mask)


def _zero_extended(e: Emitter, x: Value) -> Value:
    """Two bytes, below two that are zero."""
    return e.convert("zext", e.convert("bitcast", x, "i16"), "i32")


def _load_reversed(e: Emitter, dtype: DType, pointer: Value, mask: Value | None) -> Value:
    """The block that ends with lane 0's element, from its end."""
    first = _element(e, STORAGE[dtype], pointer, e.i64(1 - e.width))
    order = ", ".join(f"i32 {lane}" for lane in reversed(range(e.width)))

    def reversed_lanes(x: Value) -> Value:
        return e.define(x.type, f"shufflevector {x}, {x}, <{e.width} x i32> <{order}>")

    return reversed_lanes(
        _load_block(e, dtype, first, None if mask is None else reversed_lanes(mask))
    )


def _load_every_second(e: Emitter, dtype: DType, pointer: Value, mask: Value | None) -> Value:
    """Two blocks that overlap, so that the second ends with the last element that is wanted: the
    even ones of the first, the odd ones of the second."""
    width = e.width
    last_block = _element(e, STORAGE[dtype], pointer, e.i64(width - 1))
    if mask is None:
        low = _load_block(e, dtype, pointer, None)
        high = _load_block(e, dtype, last_block, None)
    else:
        halves = interleaved(e, mask, mask)
        even, odd = (e.mask(lane % 2 == rest for lane in range(width)) for rest in range(2))
        low = _load_block(e, dtype, pointer, e.binary("and", halves[0], even))
        high = _load_block(e, dtype, last_block, e.binary("and", halves[1], odd))
    lanes = [*range(0, width, 2), *range(width + 1, 2 * width, 2)]
    order = ", ".join(f"i32 {lane}" for lane in lanes)
    return e.define(low.type, f"shufflevector {low}, {high}, <{width} x i32> <{order}>")


def _load_uniform(e: Emitter, dtype: DType, pointer: Value, mask: Value | None) -> Value:
    element = STORAGE[dtype]
    if mask is None:
        scalar = e.define(element, f"load {element}, {pointer}, align {dtype.bytes}")
        return from_storage(e, e.splat(scalar), dtype)
    element_type = f"<1 x {element}>"
    condition = e.define("<1 x i1>", f"insertelement <1 x i1> poison, {any_lane(e, mask)}, i32 0")
    align, zeros = Value(str(dtype.bytes), "i32"), Value("zeroinitializer", element_type)
    symbol = f"llvm.masked.load.{mangle(element_type)}.p0"
    scalar = e.lane(e.call(symbol, element_type, pointer, align, condition, zeros))
    splat = from_storage(e, e.splat(scalar), dtype)
    return e.select(mask, splat, Value("zeroinitializer", splat.type))


def _load_lanes(e: Emitter, dtype: DType, places: Sequence[Value]) -> Value:
    """One load a lane: faster than the hosts' gathers, where no mask asks for those."""
    element, type_ = STORAGE[dtype], e.vector(STORAGE[dtype])
    result = Value("poison", type_)
    for lane, place in enumerate(places):
        scalar = e.define(element, f"load {element}, {place}, align {dtype.bytes}")
        result = e.define(type_, f"insertelement {result}, {scalar}, i32 {lane}")
    return from_storage(e, result, dtype)


def _store_lanes(e: Emitter, dtype: DType, places: Sequence[Value], stored: Value) -> None:
    for lane, place in enumerate(places):
        e.line(f"store {e.lane(stored, lane)}, {place}, align {dtype.bytes}")


def _places(e: Emitter, element: str, pointer: Value, stride: Value | int) -> list[Value]:
    """The address of each lane's element."""
    if isinstance(stride, int):
        return [_element(e, element, pointer, e.i64(lane * stride)) for lane in range(e.width)]
    places = [pointer]
    while len(places) < e.width:
        places.append(_element(e, element, places[-1], stride))
    return places


def _offsets(e: Emitter, stride: Value | int) -> Value:
    """k * stride, as i64."""
    if isinstance(stride, int):
        lanes = ", ".join(f"i64 {lane * stride}" for lane in range(e.width))
        return Value(f"<{lanes}>", e.vector("i64"))
    return e.binary("mul", e.splat(stride), e.lane_numbers())


def _element(e: Emitter, element: str, base: Value, offset: Value) -> Value:
    return e.define("ptr", f"getelementptr {element}, {base}, {offset}")


def _addresses(e: Emitter, element: str, base: Value, offsets: Value) -> Value:
    return e.define(e.vector("ptr"), f"getelementptr {element}, {base}, {offsets}")


def _pointers(e: Emitter) -> str:
    return f"v{e.width}p0"
