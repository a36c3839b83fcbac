"""Tile matmuls: the loops of blocked matmuls (`blocking.py`) as printers recognise them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hemstitch.ir.dims import Dim, known, quotient
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index
from hemstitch.kernel_ir.nodes import Contract, Load, Loop, Store
from hemstitch.matmul.lowering.batch_reduce import batch_reductions


@dataclass(frozen=True, slots=True)
class MatmulOperands:
    """The loads of both operands of `contract`."""

    contract: Contract
    left: Load
    right: Load

    @staticmethod
    def of(contract: Contract) -> MatmulOperands | None:
        """The operands, or None if the body has other statements."""
        match contract.body:
            case (Load() as left, Load() as right):
                return MatmulOperands(contract, left, right)
            case _:
                return None


@dataclass(frozen=True, slots=True)
class TileMatmul:
    """`Loop(rows, Loop(lanes, (contract, store)))`: store[row, lane] = the sum over K of left[row,
    k] * right[k, lane], in f32. The lanes of the store are contiguous. So are the lanes of `right`,
    or K in both operands.

    `panels`: the axis of packed panels, in a loop between those over rows and lanes. `k_pack`: 2
    for bf16, with the body `(contract, contract, add, store)`. Then the axis counts pairs of K, and
    `operands` are those of the first contraction; the second element of a pair follows in memory.
    Several `operands`: a batch reduction in f32.
    """

    rows: Axis
    panels: Axis | None
    lanes: Axis
    operands: Sequence[MatmulOperands]
    store: Store
    k_pack: int = 1

    @staticmethod
    def of(loop: Loop) -> TileMatmul | None:
        """The tile matmul that a loop is, or None."""
        match loop.body:
            case (Loop(panels, (Loop() as inside,)),):
                return _tile_matmul(loop.axis, panels, inside)
            case (Loop() as inside,) if inside.axis.outer is not loop.axis:
                return _tile_matmul(loop.axis, None, inside)
            case _:
                return None

    @property
    def contract(self) -> Contract:
        """The first contraction."""
        return self.operands[0].contract

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the loops and contractions."""
        k_axes = (pair.contract.axis for pair in self.operands)
        axes = (self.rows, self.panels, self.lanes, *k_axes)
        return tuple(axis for axis in axes if axis is not None)

    def panel(self, right: Load) -> tuple[int, Dim] | None:
        """The columns of a panel, and the distance between panels; None if `right` is not
        packed."""
        width = self.lanes.extent
        if self.panels is None or not isinstance(width, int):
            return None
        return width, right.index.coefficient(self.panels)

    @property
    def max_rows(self) -> int | None:
        """The extent of the rows, if it is known."""
        return self.rows.extent if isinstance(self.rows.extent, int) else None

    @property
    def band(self) -> tuple[Index, int, int, int, int] | None:
        """The band of the contraction (see `Contract`): its index, its coefficients of row, column
        and K (-1, 0 or 1), and `k_pack`. None: no band."""
        index, k_pack = self.contract.band, self.k_pack
        if index is None:
            return None
        axes = (self.rows, self.lanes, self.contract.axis)
        row, column, packed_k = (index.coefficient(axis) for axis in axes)
        k = quotient(packed_k, k_pack)
        if self.panels and index.coefficient(self.panels) != column * self.lanes.extent:
            return None
        if not {row, column, k} <= {-1, 0, 1}:
            return None
        return index, known(row), known(column), known(k), k_pack

    @property
    def columns(self) -> Dim:
        """The number of columns (N)."""
        limit = self.lanes.limit if self.panels is not None else None
        return self.lanes.extent if limit is None else limit


def _tile_matmul(rows: Axis, panels: Axis | None, loop: Loop) -> TileMatmul | None:
    match loop.body:
        case (*body, Store() as store) if len(reductions := batch_reductions(body)) == 1:
            (reduction,) = reductions
        case _:
            return None
    pairs = map(MatmulOperands.of, reduction.contracts)
    operands = [pair for pair in pairs if pair is not None]
    is_all = reduction.name == store.value and not reduction.rest_of(body)
    if not is_all or len(operands) < len(reduction.contracts):
        return None
    tile = TileMatmul(rows, panels, loop.axis, operands, store)
    types = {pair.contract.source for pair in operands}
    if types == {DType.BF16}:
        return replace(tile, k_pack=2, operands=operands[:1]) if _are_pairs(operands) else None
    is_batch_reduce = len(operands) == 1 or _can_batch_reduce(operands, loop.axis)
    return tile if types == {DType.F32} and is_batch_reduce else None


def _can_batch_reduce(operands: Sequence[MatmulOperands], lanes: Axis) -> bool:
    """Vectors run along `lanes`, no operand has a band, and K is known."""
    return all(
        pair.right.index.coefficient(lanes) == 1
        and pair.contract.band is None
        and isinstance(pair.contract.axis.extent, int)
        for pair in operands
    )


def _are_pairs(operands: Sequence[MatmulOperands]) -> bool:
    """The second operands follow the first ones in memory."""
    match operands:
        case [first, second]:
            return _is_next_in_memory(first.left, second.left) and _is_next_in_memory(
                first.right, second.right
            )
        case _:
            return False


def _is_next_in_memory(first: Load, second: Load) -> bool:
    return first.buffer is second.buffer and first.index.shifted(1) == second.index
