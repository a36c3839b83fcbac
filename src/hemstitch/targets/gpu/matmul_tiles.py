"""Products of matrices: a tile of rows by lanes out of one of rows by steps and one of steps by
lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hemstitch.kernel_ir.dependence import backward_slice, live_ins
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import AccumulateMatmul, Contract, Load, Loop, Role, Stmt
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.targets.gpu.scope import Tile, TileValue, TritonScope
from hemstitch.targets.gpu.tiling import Tiling, max_k_tile
from hemstitch.targets.gpu.triton_types import NAMES

PRECISION = '"ieee"'  # of f32: what eager has where the user did not ask for less
Print = Callable[[Iterable[Stmt]], None]


@dataclass(frozen=True, slots=True)
class _KTile:
    """A piece of a tile of steps: where it begins, as text, how many steps it has, how many the
    whole tile, and how many of those come before it."""

    axis: Axis
    first: str
    size: int
    whole: int
    skipped: int = 0


@dataclass(slots=True)
class MatmulPrinter:
    """What the products of one nest print."""

    scope: TritonScope
    tiling: Tiling

    def contract(self, contract: Contract, statements: Print) -> None:
        """`statements` prints those of the body. A few steps at once, or a loop over blocks."""
        k_tile = self.tiling.k_tiles[contract.axis]
        if k_tile.whole:
            self._whole(contract, k_tile.size, statements)
        else:
            self._loop(contract, k_tile.size, statements)

    def _whole(self, contract: Contract, size: int, statements: Print) -> None:
        """The left tile has all steps: it may be what the row has in registers."""
        left = self._left(contract, "", size, statements)
        tile = self.scope.tile
        is_repeated = tile is not None and tile.first is not None
        piece_size = min(size, max_k_tile(contract.source, is_repeated))
        pieces = zip(
            range(0, size, piece_size), self._pieces(left, size // piece_size, contract.name)
        )
        for start, text in pieces:
            if start and isinstance(contract.axis.extent, int) and start >= contract.axis.extent:
                break  # lanes that pad the tile
            k_tile = _KTile(contract.axis, f"{start} + " if start else "", piece_size, size, start)
            right = self._right(contract, k_tile, statements)
            sum_ = f", {contract.name}" if start else ""
            text = f"tl.dot({text}, {right}{sum_}, input_precision={PRECISION})"
            self.scope.writer.line(f"{contract.name} = {text}")
        self.scope.names[contract.name] = TileValue(contract.name, rows=True, lanes=True)

    def _loop(self, contract: Contract, size: int, statements: Print) -> None:
        scope, name, axis = self.scope, contract.name, contract.axis
        shape = scope.shape(TileValue("", rows=True, lanes=True))
        scope.writer.line(f"{name} = tl.zeros({shape}, tl.float32)")
        start = f"from_{axis.name}"
        extent = scope.size(axis.extent)
        head = f"for {start} in tl.range(0, {extent}, {size}, num_stages={GPU.pipeline_stages}):"
        with scope.block(head, ()):
            left = self._left(contract, f"{start} + ", size, statements)
            right = self._right(contract, _KTile(axis, f"{start} + ", size, size), statements)
            text = f"tl.dot({left}, {right}, {name}, input_precision={PRECISION})"
            scope.writer.line(f"{name} = {text}")
        scope.names[name] = TileValue(name, rows=True, lanes=True)

    def accumulate(self, matmul: AccumulateMatmul, statements: Print) -> None:
        """Rows by lanes, times lanes by columns."""
        scope, lanes, axis = self.scope, self.scope.tile, matmul.axis
        assert lanes is not None, "adds up over lanes"
        left = self._operand(matmul, matmul.left, statements, TileValue("", lanes=True))
        count = max(1, lanes.size // max_k_tile(matmul.source))
        pieces = self._pieces(left, count, matmul.accumulator)
        size = self.tiling.lanes[axis].size
        name, along = scope.lanes(size), scope.axes[lanes.axis]
        scope.axes[axis] = TileValue(name, lanes=True)
        scope.tile = Tile(axis, None, size, scope.exists(axis, name, size))
        start, piece_size = f"{lanes.first} + " if lanes.first else "", lanes.size // count
        for skipped, piece in zip(range(0, lanes.size, piece_size), pieces):
            first = f"{start}{skipped} + " if skipped else start
            k_tile = _KTile(lanes.axis, first, piece_size, lanes.size, skipped)
            right = self._right(matmul, k_tile, statements)
            text = f"tl.dot({piece}, {right}, {matmul.accumulator}, input_precision={PRECISION})"
            scope.writer.line(f"{matmul.accumulator} = {text}")
        scope.tile, scope.axes[lanes.axis] = lanes, along

    def hoist_left_operands(self, loop: Loop, statements: Print) -> None:
        """Left operands that are the same in all tiles of a loop over lanes."""
        for statement in loop.body:
            if not isinstance(statement, Contract) or not self.tiling.k_tiles[statement.axis].whole:
                continue
            needed = backward_slice(statement.left, statement.body)
            if needed and live_ins(needed) <= self.scope.names.keys():
                self._left(statement, "", self.tiling.k_tiles[statement.axis].size, statements)

    def _pieces(self, tile: str, count: int, name: str) -> list[str]:
        """A tile of rows by steps, its steps cut into `count` parts."""
        if count == 1:
            return [tile]
        parts = [f"{name}_a", f"{name}_b"]
        self.scope.writer.line(f"{', '.join(parts)} = device.halves({tile})")
        return [piece for part in parts for piece in self._pieces(part, count // 2, part)]

    # --- operands

    def _left(self, contract: Contract, first: str, size: int, statements: Print) -> str:
        """A tile of rows by steps."""
        scope, axis, outer_tile = self.scope, contract.axis, self.scope.tile
        name = scope.lanes(size)
        if first:
            name = f"at_{axis.name}"
            scope.writer.line(f"{name} = {first}{scope.range_of(size)}")
        scope.axes[axis] = TileValue(name, lanes=True)
        scope.tile = Tile(axis, first or None, size, scope.exists(axis, name, size))
        text = self._operand(contract, contract.left, statements, TileValue("", lanes=True))
        scope.tile = outer_tile
        return text

    def _right(self, matmul: Contract | AccumulateMatmul, k_tile: _KTile, statements: Print) -> str:
        """A tile of steps by lanes. Its variables are its own: what they hold is known by name."""
        scope = self.scope
        rows, row_mask = scope.rows, scope.row_mask
        name = f"down_{k_tile.axis.name}" + (f"_{k_tile.skipped}" if k_tile.skipped else "")
        widening = ".to(tl.int64)" if scope.needs_64_bits else ""
        scope.writer.line(f"{name} = {k_tile.first}tl.arange(0, {k_tile.size})[:, None]{widening}")
        scope.axes[k_tile.axis] = TileValue(name, rows=True)
        scope.rows, scope.suffix = k_tile.size, f"_{name}"
        scope.row_mask = scope.exists(k_tile.axis, name, k_tile.whole)
        text = self._operand(matmul, matmul.right, statements, TileValue("", rows=True))
        scope.rows, scope.row_mask, scope.suffix = rows, row_mask, ""
        return text

    def _operand(
        self,
        matmul: Contract | AccumulateMatmul,
        name: str,
        statements: Print,
        along_steps: TileValue,
    ) -> str:
        """A whole tile, zero where a step does not exist: what else is there may be a NaN."""
        scope = self.scope
        computation = backward_slice(name, matmul.body)
        statements(computation)
        value, mask = scope.names[name], scope.mask(along_steps)
        text = value.text
        is_loaded = (
            computation
            and isinstance(computation[-1], Load)
            and computation[-1].buffer.role is Role.INPUT
        )
        if mask is not None and not (is_loaded and value.along(along_steps) == value):
            text = f"tl.where({mask}, {text}, 0)"
        whole = TileValue("", rows=True, lanes=True)
        if scope.size_of(value) != scope.size_of(whole):
            text = f"tl.broadcast_to({text}, {scope.shape(whole)})"
        if matmul.source.compute is not matmul.source:
            text += f".to({NAMES[matmul.source]})"
        return text
