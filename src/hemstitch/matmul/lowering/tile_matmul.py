"""A product of tiles, as printers find it: loops that do nothing else, which `blocking.py`
makes."""

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
    """What `contract` multiplies."""

    contract: Contract
    left: Load
    right: Load

    @staticmethod
    def of(contract: Contract) -> MatmulOperands | None:
        match contract.body:
            case (Load() as left, Load() as right):
                return MatmulOperands(contract, left, right)
            case _:
                return None


@dataclass(frozen=True, slots=True)
class TileMatmul:
    """What `Loop(rows, Loop(lanes, (contract, store)))` says: store[row, lane] is the sum over the
    contract's axis of left[row, step] * right[step, lane], all f32. The lanes of `right`, or the
    steps of both operands, lie side by side, and so do the lanes of the store. `strips`: of which
    these are lanes, where `right` is packed; in the loop over rows is one over strips then.

    `together`: 2 where the operands are bf16 and the body `(contract, contract, add, store)`: the
    axis counts pairs of steps, and `factors` are those of each first one. The second lies behind it
    in both operands. Several `factors`: their products are added up, in f32."""

    rows: Axis
    panels: Axis | None
    lanes: Axis
    operands: Sequence[MatmulOperands]
    store: Store
    k_pack: int = 1

    @staticmethod
    def of(loop: Loop) -> TileMatmul | None:
        match loop.body:
            case (Loop(panels, (Loop() as inside,)),):
                return _tile_matmul(loop.axis, panels, inside)
            case (Loop() as inside,) if inside.axis.outer is not loop.axis:
                return _tile_matmul(loop.axis, None, inside)
            case _:
                return None

    @property
    def contract(self) -> Contract:
        """The first of them."""
        return self.operands[0].contract

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Of its loops."""
        k_axes = (pair.contract.axis for pair in self.operands)
        axes = (self.rows, self.panels, self.lanes, *k_axes)
        return tuple(axis for axis in axes if axis is not None)

    def panel(self, right: Load) -> tuple[int, Dim] | None:
        """Its columns, and how far it is from one strip to the next."""
        width = self.lanes.extent
        if self.panels is None or not isinstance(width, int):
            return None
        return width, right.index.coefficient(self.panels)

    @property
    def max_rows(self) -> int | None:
        return self.rows.extent if isinstance(self.rows.extent, int) else None

    @property
    def band(self) -> tuple[Index, int, int, int, int] | None:
        """The index that is negative where nothing is wanted (see `Contract`); what a row, a column
        and a step count in it, -1, 0 or 1 each; and `together`. None: all is."""
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
    """Vectors run along `lanes`, all terms count, and all steps go by at once."""
    return all(
        pair.right.index.coefficient(lanes) == 1
        and pair.contract.band is None
        and isinstance(pair.contract.axis.extent, int)
        for pair in operands
    )


def _are_pairs(operands: Sequence[MatmulOperands]) -> bool:
    match operands:
        case [first, second]:
            return _is_next_in_memory(first.left, second.left) and _is_next_in_memory(
                first.right, second.right
            )
        case _:
            return False


def _is_next_in_memory(first: Load, second: Load) -> bool:
    return first.buffer is second.buffer and first.index.shifted(1) == second.index
