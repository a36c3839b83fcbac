"""Loads and stores of a block under a mask. Masked-off lanes touch no memory and are loaded as 0.

AVX2 masks elements of 32 bits and more; of smaller ones LLVM makes a branch for each lane, and that
took most of a kernel's time to build. Those are in a function of their own, compiled once a module,
where whole blocks pass by the branches. A masked store of larger ones takes a Zen 3 as long as
several others: the first lanes, if it is known how many, are stored in parts of a power of two.
"""

from __future__ import annotations

from hemstitch.targets.cpu.emitter import BITS, Emitter, Value, mangle

TRUE, FALSE = "i1 true", "i1 false"
_LOAD = """\
define internal {type} @{name}(ptr %place, {mask} %mask) #0 {{
  %whole = call i1 @{reduce}({mask} %mask)
  br i1 %whole, label %block, label %lanes
block:
  %everything = load {type}, ptr %place, align {align}
  ret {type} %everything
lanes:
  %some = call {type} @{access}(ptr %place, i32 {align}, {mask} %mask, {type} zeroinitializer)
  ret {type} %some
}}"""
_STORE = """\
define internal void @{name}({type} %value, ptr %place, {mask} %mask) #0 {{
  %whole = call i1 @{reduce}({mask} %mask)
  br i1 %whole, label %block, label %lanes
block:
  store {type} %value, ptr %place, align {align}
  ret void
lanes:
  call void @{access}({type} %value, ptr %place, i32 {align}, {mask} %mask)
  ret void
}}"""


def load(e: Emitter, type_: str, pointer: Value, align: int, mask: Value) -> Value:
    nothing = Value("zeroinitializer", type_)
    if _is_scalarised(e, nothing):
        name = _function(e, _LOAD, "load", type_, align)
        return e.define(type_, f"call {type_} @{name}({pointer}, {mask})")
    symbol = f"llvm.masked.load.{mangle(type_)}.p0"
    return e.call(symbol, type_, pointer, Value(str(align), "i32"), mask, nothing)


def store(e: Emitter, value: Value, pointer: Value, align: int, mask: Value) -> None:
    count = first_lanes(mask)
    if count is not None and not e.features.avx512:
        _store_parts(e, value, pointer, align, count)
        return
    if _is_scalarised(e, value):
        name = _function(e, _STORE, "store", value.type, align)
        e.line(f"call void @{name}({value}, {pointer}, {mask})")
        return
    symbol = f"llvm.masked.store.{mangle(value.type)}.p0"
    e.call(symbol, "void", value, pointer, Value(str(align), "i32"), mask)


def first_lanes(mask: Value) -> int | None:
    """How many lanes a constant mask lets through, if those are the first ones."""
    lanes = mask.text.strip("<>").split(", ")
    used = lanes.count(TRUE)
    is_known = lanes == [TRUE] * used + [FALSE] * (len(lanes) - used)
    return used if is_known else None


def _store_parts(e: Emitter, value: Value, pointer: Value, align: int, count: int) -> None:
    done = 0
    while done < count:
        size = 1 << ((count - done).bit_length() - 1)
        type_ = f"<{size} x {value.element}>"
        order = ", ".join(f"i32 {done + lane}" for lane in range(size))
        part = e.define(type_, f"shufflevector {value}, {value}, <{size} x i32> <{order}>")
        place = e.define("ptr", f"getelementptr {value.element}, {pointer}, i64 {done}")
        e.line(f"store {part}, {place}, align {align}")
        done += size


def _is_scalarised(e: Emitter, block: Value) -> bool:
    return not e.features.avx512 and BITS[block.element] < 32


def _function(e: Emitter, text: str, access: str, type_: str, align: int) -> str:
    """The name of the module's function for such an access."""
    mask = e.vector("i1")
    name, symbol = f"masked_{access}_{mangle(type_)}", f"llvm.masked.{access}.{mangle(type_)}.p0"
    reduce = f"llvm.vector.reduce.and.{mangle(mask)}"
    result, operands = (type_, "") if access == "load" else ("void", f"{type_}, ")
    rest = f", {type_}" if access == "load" else ""
    e.declarations[reduce] = f"declare i1 @{reduce}({mask})"
    e.declarations[symbol] = f"declare {result} @{symbol}({operands}ptr, i32, {mask}{rest})"
    e.declarations[name] = text.format(
        name=name, type=type_, mask=mask, reduce=reduce, access=symbol, align=align
    )
    return name
