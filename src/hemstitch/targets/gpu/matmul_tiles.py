"""Products of matrices: a tile of rows by lanes out of one of rows by steps and one of steps by
lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hemstitch.kernel_ir.dependence import needed_for, operands_of
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import AccumulateMatmul, Contract, Load, Loop, Role, Stmt
from hemstitch.targets.gpu.scope import Tile, TileValue, TritonScope
from hemstitch.targets.gpu.tiling import Tiling, most_steps
from hemstitch.targets.gpu.triton_types import NAMES

PRECISION = '"ieee"'  # of f32: what eager has where the user did not ask for less
STAGES = 3  # blocks in flight: one is multiplied while two are loaded
Print = Callable[[Iterable[Stmt]], None]


@dataclass(frozen=True, slots=True)
class _ContractionTile:
    """A piece of a tile of steps: where it begins, as text, how many steps it has, how many the
    whole tile, and how many of those come before it."""

    axis: Axis
    first: str
    size: int
    whole: int
    skipped: int = 0


@dataclass(slots=True)
class Products:
    """What the products of one nest print."""

    scope: TritonScope
    tiling: Tiling

    def contract(self, contract: Contract, statements: Print) -> None:
        """`statements` prints those of the body. A few steps at once, or a loop over blocks."""
        steps = self.tiling.steps[contract.axis]
        if steps.whole:
            self._whole(contract, steps.size, statements)
        else:
            self._loop(contract, steps.size, statements)

    def _whole(self, contract: Contract, size: int, statements: Print) -> None:
        """The left tile has all steps: it may be what the row has in registers."""
        left = self._left(contract, "", size, statements)
        tile = self.scope.tile
        again = tile is not None and tile.first is not None
        piece = min(size, most_steps(contract.source, again))
        found = zip(range(0, size, piece), self._pieces(left, size // piece, contract.name))
        for start, text in found:
            if start and isinstance(contract.axis.extent, int) and start >= contract.axis.extent:
                break  # lanes that pad the tile
            place = _ContractionTile(
                contract.axis, f"{start} + " if start else "", piece, size, start
            )
            right = self._right(contract, place, statements)
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
        head = f"for {start} in tl.range(0, {extent}, {size}, num_stages={STAGES}):"
        with scope.block(head, ()):
            left = self._left(contract, f"{start} + ", size, statements)
            right = self._right(
                contract, _ContractionTile(axis, f"{start} + ", size, size), statements
            )
            text = f"tl.dot({left}, {right}, {name}, input_precision={PRECISION})"
            scope.writer.line(f"{name} = {text}")
        scope.names[name] = TileValue(name, rows=True, lanes=True)

    def accumulate(self, product: AccumulateMatmul, statements: Print) -> None:
        """Rows by lanes, times lanes by columns."""
        scope, lanes, axis = self.scope, self.scope.tile, product.axis
        assert lanes is not None, "adds up over lanes"
        left = self._operand(product, product.left, statements, TileValue("", lanes=True))
        count = max(1, lanes.size // most_steps(product.source))
        pieces = self._pieces(left, count, product.accumulator)
        size = self.tiling.lanes[axis].size
        name, along = scope.lanes(size), scope.axes[lanes.axis]
        scope.axes[axis] = TileValue(name, lanes=True)
        scope.tile = Tile(axis, None, size, scope.exists(axis, name, size))
        start, each = f"{lanes.first} + " if lanes.first else "", lanes.size // count
        for skipped, piece in zip(range(0, lanes.size, each), pieces):
            first = f"{start}{skipped} + " if skipped else start
            place = _ContractionTile(lanes.axis, first, each, lanes.size, skipped)
            right = self._right(product, place, statements)
            text = f"tl.dot({piece}, {right}, {product.accumulator}, input_precision={PRECISION})"
            scope.writer.line(f"{product.accumulator} = {text}")
        scope.tile, scope.axes[lanes.axis] = lanes, along

    def load_ahead(self, loop: Loop, statements: Print) -> None:
        """Left operands that are the same in all tiles of a loop over lanes."""
        for statement in loop.body:
            if not isinstance(statement, Contract) or not self.tiling.steps[statement.axis].whole:
                continue
            needed = needed_for(statement.left, statement.body)
            if needed and operands_of(needed) <= self.scope.names.keys():
                self._left(statement, "", self.tiling.steps[statement.axis].size, statements)

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
        scope, axis, around = self.scope, contract.axis, self.scope.tile
        name = scope.lanes(size)
        if first:
            name = f"at_{axis.name}"
            scope.writer.line(f"{name} = {first}{scope.range_of(size)}")
        scope.axes[axis] = TileValue(name, lanes=True)
        scope.tile = Tile(axis, first or None, size, scope.exists(axis, name, size))
        text = self._operand(contract, contract.left, statements, TileValue("", lanes=True))
        scope.tile = around
        return text

    def _right(
        self, product: Contract | AccumulateMatmul, steps: _ContractionTile, statements: Print
    ) -> str:
        """A tile of steps by lanes. Its variables are its own: what they hold is known by name."""
        scope = self.scope
        rows, row_mask = scope.rows, scope.row_mask
        name = f"down_{steps.axis.name}" + (f"_{steps.skipped}" if steps.skipped else "")
        wide = ".to(tl.int64)" if scope.needs_64_bits else ""
        scope.writer.line(f"{name} = {steps.first}tl.arange(0, {steps.size})[:, None]{wide}")
        scope.axes[steps.axis] = TileValue(name, rows=True)
        scope.rows, scope.suffix = steps.size, f"_{name}"
        scope.row_mask = scope.exists(steps.axis, name, steps.whole)
        text = self._operand(product, product.right, statements, TileValue("", rows=True))
        scope.rows, scope.row_mask, scope.suffix = rows, row_mask, ""
        return text

    def _operand(
        self,
        product: Contract | AccumulateMatmul,
        name: str,
        statements: Print,
        along_steps: TileValue,
    ) -> str:
        """A whole tile, zero where a step does not exist: what else is there may be a NaN."""
        scope = self.scope
        needed = needed_for(name, product.body)
        statements(needed)
        value, mask = scope.names[name], scope.mask(along_steps)
        text = value.text
        is_loaded = needed and isinstance(needed[-1], Load) and needed[-1].buffer.role is Role.INPUT
        if mask is not None and not (is_loaded and value.along(along_steps) == value):
            text = f"tl.where({mask}, {text}, 0)"
        whole = TileValue("", rows=True, lanes=True)
        if scope.size_of(value) != scope.size_of(whole):
            text = f"tl.broadcast_to({text}, {scope.shape(whole)})"
        if product.source.compute is not product.source:
            text += f".to({NAMES[product.source]})"
        return text
