"""A product of tiles, as printers find it: loops that do nothing else, which `blocking.py`
makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hemstitch.ir.dims import Dim, known, quotient
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index
from hemstitch.kernel_ir.nodes import Contract, Load, Loop, Store
from hemstitch.matmul.lowering.batch_reduce import totals


@dataclass(frozen=True, slots=True)
class Factors:
    """What `contract` multiplies."""

    contract: Contract
    left: Load
    right: Load

    @staticmethod
    def of(contract: Contract) -> Factors | None:
        match contract.body:
            case (Load() as left, Load() as right):
                return Factors(contract, left, right)
            case _:
                return None


@dataclass(frozen=True, slots=True)
class TileProduct:
    """What `Loop(rows, Loop(lanes, (contract, store)))` says: store[row, lane] is the sum over the
    contract's axis of left[row, step] * right[step, lane], all f32. The lanes of `right`, or the
    steps of both operands, lie side by side, and so do the lanes of the store. `strips`: of which
    these are lanes, where `right` is packed; in the loop over rows is one over strips then.

    `together`: 2 where the operands are bf16 and the body `(contract, contract, add, store)`: the
    axis counts pairs of steps, and `factors` are those of each first one. The second lies behind it
    in both operands. Several `factors`: their products are added up, in f32."""

    rows: Axis
    strips: Axis | None
    lanes: Axis
    factors: Sequence[Factors]
    store: Store
    together: int = 1

    @staticmethod
    def of(loop: Loop) -> TileProduct | None:
        match loop.body:
            case (Loop(strips, (Loop() as inside,)),):
                return _tile_product(loop.axis, strips, inside)
            case (Loop() as inside,) if inside.axis.outer is not loop.axis:
                return _tile_product(loop.axis, None, inside)
            case _:
                return None

    @property
    def contract(self) -> Contract:
        """The first of them."""
        return self.factors[0].contract

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Of its loops."""
        steps = (each.contract.axis for each in self.factors)
        found = (self.rows, self.strips, self.lanes, *steps)
        return tuple(axis for axis in found if axis is not None)

    def strip(self, right: Load) -> tuple[int, Dim] | None:
        """Its columns, and how far it is from one strip to the next."""
        columns = self.lanes.extent
        if self.strips is None or not isinstance(columns, int):
            return None
        return columns, right.index.coefficient(self.strips)

    @property
    def most_rows(self) -> int | None:
        return self.rows.extent if isinstance(self.rows.extent, int) else None

    @property
    def wanted(self) -> tuple[Index, int, int, int, int] | None:
        """The index that is negative where nothing is wanted (see `Contract`); what a row, a column
        and a step count in it, -1, 0 or 1 each; and `together`. None: all is."""
        index, together = self.contract.wanted, self.together
        if index is None:
            return None
        axes = (self.rows, self.lanes, self.contract.axis)
        row, column, steps = (index.coefficient(axis) for axis in axes)
        step = quotient(steps, together)
        if self.strips and index.coefficient(self.strips) != column * self.lanes.extent:
            return None
        if not {row, column, step} <= {-1, 0, 1}:
            return None
        return index, known(row), known(column), known(step), together

    @property
    def columns(self) -> Dim:
        limit = self.lanes.limit if self.strips is not None else None
        return self.lanes.extent if limit is None else limit


def _tile_product(rows: Axis, strips: Axis | None, loop: Loop) -> TileProduct | None:
    match loop.body:
        case (*body, Store() as store) if len(found := totals(body)) == 1:
            (total,) = found
        case _:
            return None
    factors = [each for each in map(Factors.of, total.products) if each is not None]
    is_all = total.name == store.value and not total.others(body)
    if not is_all or len(factors) < len(total.products):
        return None
    made = TileProduct(rows, strips, loop.axis, factors, store)
    types = {each.contract.source for each in factors}
    if types == {DType.BF16}:
        return replace(made, together=2, factors=factors[:1]) if _are_pairs(factors) else None
    is_one = len(factors) == 1 or _may_add_up(factors, loop.axis)
    return made if types == {DType.F32} and is_one else None


def _may_add_up(factors: Sequence[Factors], lanes: Axis) -> bool:
    """Vectors run along `lanes`, all terms count, and all steps go by at once."""
    return all(
        each.right.index.coefficient(lanes) == 1
        and each.contract.wanted is None
        and isinstance(each.contract.axis.extent, int)
        for each in factors
    )


def _are_pairs(factors: Sequence[Factors]) -> bool:
    match factors:
        case [first, second]:
            return _follows(first.left, second.left) and _follows(first.right, second.right)
        case _:
            return False


def _follows(first: Load, second: Load) -> bool:
    return first.buffer is second.buffer and first.index.shifted(1) == second.index
