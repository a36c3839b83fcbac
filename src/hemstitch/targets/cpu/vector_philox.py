"""Random numbers on vectors: Philox4x32-7, element by element as `hemstitch.ir.philox` says.

Words of 32 bits live in 64-bit lanes, where the product of two of them has room. What is above
the low 32 bits of a lane is not cleared: every product masks its operand, which costs nothing.
"""

from __future__ import annotations

import math

from hemstitch.ir.graph import Op
from hemstitch.ir.philox import KEY_STEPS, MULTIPLIERS, ROUNDS
from hemstitch.targets.cpu.emitter import Emitter, Value, as_f32
from hemstitch.targets.cpu.register_transpose import interleaved
from hemstitch.targets.cpu.vector_arithmetic import f32, i32, multiply

ORDERINGS = frozenset({Op.LT, Op.LE, Op.GT, Op.GE})


def words(e: Emitter, seed: Value, index: Value) -> Value:
    """i32 for the elements with these linear indices."""
    wide = _philox(e, seed, e.binary("lshr", index, e.constant(2, "i64")))
    four = [e.convert("trunc", word, "i32") for word in wide]
    odd = e.convert("trunc", index, "i1")
    upper = e.convert("trunc", e.binary("lshr", index, e.constant(1, "i64")), "i1")
    low, high = e.select(odd, four[1], four[0]), e.select(odd, four[3], four[2])
    return e.select(upper, high, low)


def words4(e: Emitter, seed: Value, first: Value) -> list[Value]:
    """For the elements first .. first + 4 W - 1, `first` a multiple of 4: one Philox for all."""
    # Arithmetic: the first of them may lie before the tensor, where nothing reads what is drawn.
    counter = e.splat(e.binary("ashr", first, e.i64(2)))
    wide = _philox(e, seed, e.binary("add", counter, e.lane_numbers()))
    halves = interleaved(e, _pair(e, *wide[:2]), _pair(e, *wide[2:]))
    return [part for half in halves for part in _split(e, half)]


def to_uniform(e: Emitter, word: Value) -> Value:
    """f32 in [0, 1): a multiple of 2^-24."""
    top = e.convert("sitofp", e.binary("lshr", word, i32(e, 8)), "float")
    return multiply(e, top, f32(e, 2.0**-24))


def compare_words(
    e: Emitter, op: Op, drawn: list[Value], bound: float | None
) -> list[Value] | None:
    """What `op` says of the numbers that are made of these words and of one that is known, by the
    words themselves: the numbers, if nothing else asks for them, are then never computed. None
    where no word is the border."""
    if bound is None or not 0 < bound < 1:
        return None
    steps = as_f32(bound) * 2.0**24
    border = math.ceil(steps) if op in (Op.LT, Op.GE) else math.floor(steps) + 1
    if border == 1 << 24:
        return None
    predicate = "ult" if op in (Op.LT, Op.LE) else "uge"
    sign = (1 << 32) if border >= 1 << 23 else 0  # words have none, LLVM's i32 do
    limit = i32(e, (border << 8) - sign)
    return [e.compare(predicate, word, limit) for word in drawn]


def _pair(e: Emitter, low: Value, high: Value) -> Value:
    """Two words in one lane."""
    low = e.binary("and", low, e.constant(0xFFFFFFFF, "i64"))
    return e.binary("or", low, e.binary("shl", high, e.constant(32, "i64")))


def _split(e: Emitter, pairs: Value) -> list[Value]:
    """The words of all lanes one after the other, as two vectors of i32."""
    type_ = f"<{2 * e.width} x i32>"
    words = e.define(type_, f"bitcast {pairs} to {type_}")
    vectors = []
    for first in (0, e.width):
        order = ", ".join(f"i32 {lane}" for lane in range(first, first + e.width))
        shuffle = f"shufflevector {words}, {type_} poison, <{e.width} x i32> <{order}>"
        vectors.append(e.define(e.vector("i32"), shuffle))
    return vectors


def _philox(e: Emitter, seed: Value, counter: Value) -> list[Value]:
    """The four output words of each lane's counter."""
    half, zero = e.constant(32, "i64"), e.constant(0, "i64")
    words = [counter, e.binary("lshr", counter, half), zero, zero]
    keys = [e.splat(seed), e.splat(e.binary("lshr", seed, e.i64(32)))]
    for round_ in range(ROUNDS):
        if round_:
            keys = [
                e.binary("add", key, e.constant(step, "i64")) for key, step in zip(keys, KEY_STEPS)
            ]
        products = [_product(e, words[2 * k], MULTIPLIERS[k]) for k in range(2)]
        high = [e.binary("lshr", product, half) for product in products]
        words = [
            e.binary("xor", e.binary("xor", high[1], words[1]), keys[0]),
            products[1],
            e.binary("xor", e.binary("xor", high[0], words[3]), keys[1]),
            products[0],
        ]
    return words


def _product(e: Emitter, word: Value, multiplier: int) -> Value:
    low = e.binary("and", word, e.constant(0xFFFFFFFF, "i64"))
    return e.binary("mul", low, e.constant(multiplier, "i64"))
