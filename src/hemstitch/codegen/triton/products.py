"""Products of matrices: a tile of rows by lanes out of one of rows by steps and one of steps by
lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hemstitch.codegen.triton.scope import Scope, Tile, Value
from hemstitch.codegen.triton.tiling import Tiling
from hemstitch.codegen.triton.types import NAMES
from hemstitch.kernel.dependence import needed_for
from hemstitch.kernel.nodes import Contract, Load, Role, Stmt

PRECISION = '"ieee"'  # of f32: what eager has where the user did not ask for less
Print = Callable[[Iterable[Stmt]], None]


@dataclass(slots=True)
class Products:
    """What the products of one nest print."""

    scope: Scope
    tiling: Tiling

    def contract(self, contract: Contract, statements: Print) -> None:
        """`statements` prints those of the body. One step, or a loop over blocks of steps."""
        scope, name, axis = self.scope, contract.name, contract.axis
        steps = self.tiling.steps[axis]
        if steps.whole:
            left, right = self._operands(contract, None, statements)
            text = f"tl.dot({left}, {right}, input_precision={PRECISION})"
            scope.define(name, ("dot", text), Value(text, rows=True, lanes=True))
            return
        shape = scope.shape(Value("", rows=True, lanes=True))
        scope.writer.line(f"{name} = tl.zeros({shape}, tl.float32)")
        start = f"from_{axis.name}"
        with scope.block(
            f"for {start} in tl.range(0, {scope.size(axis.extent)}, {steps.size}):", ()
        ):
            left, right = self._operands(contract, start, statements)
            text = f"tl.dot({left}, {right}, {name}, input_precision={PRECISION})"
            scope.writer.line(f"{name} = {text}")
        scope.names[name] = Value(name, rows=True, lanes=True)

    def _operands(
        self, contract: Contract, start: str | None, statements: Print
    ) -> tuple[str, str]:
        with self._steps_as_lanes(contract, start):
            left = self._operand(contract, contract.left, statements, is_left=True)
        with self._steps_as_rows(contract, start):
            right = self._operand(contract, contract.right, statements, is_left=False)
        return left, right

    def _operand(self, contract: Contract, name: str, statements: Print, *, is_left: bool) -> str:
        """A whole tile, zero where a step does not exist: what else is there may be a NaN."""
        scope = self.scope
        needed = needed_for(name, contract.body)
        statements(needed)
        value = scope.names[name]
        mask = scope.mask(Value("", rows=not is_left, lanes=is_left))
        is_loaded = needed and isinstance(needed[-1], Load) and needed[-1].buffer.role is Role.INPUT
        text = value.text
        if mask is not None and not (is_loaded and (value.lanes if is_left else value.rows)):
            text = f"tl.where({mask}, {text}, 0)"
        whole = Value("", rows=True, lanes=True)
        if scope.size_of(value) != scope.size_of(whole):
            text = f"tl.broadcast_to({text}, {scope.shape(whole)})"
        if contract.source.compute is not contract.source:
            text += f".to({NAMES[contract.source]})"
        return text

    @contextmanager
    def _steps_as_lanes(self, contract: Contract, start: str | None) -> Iterator[None]:
        """A tile of rows by steps."""
        scope, axis, size = self.scope, contract.axis, self.tiling.steps[contract.axis].size
        around = scope.tile
        name = scope.lanes(size)
        if start is not None:
            name = f"at_{axis.name}"
            scope.writer.line(f"{name} = {start} + tl.arange(0, {size})[None, :]")
        scope.axes[axis] = Value(name, lanes=True)
        scope.tile = Tile(axis, start, size, scope.exists(axis, name, size))
        yield
        scope.tile = around

    @contextmanager
    def _steps_as_rows(self, contract: Contract, start: str | None) -> Iterator[None]:
        """A tile of steps by lanes."""
        scope, axis, size = self.scope, contract.axis, self.tiling.steps[contract.axis].size
        rows, row_mask = scope.rows, scope.row_mask
        name = f"down_{axis.name}"
        wide = ".to(tl.int64)" if scope.needs_64_bits else ""
        first = "" if start is None else f"{start} + "
        scope.writer.line(f"{name} = {first}tl.arange(0, {size})[:, None]{wide}")
        scope.axes[axis] = Value(name, rows=True)
        scope.rows, scope.suffix = size, "_down"
        scope.row_mask = scope.exists(axis, name, size)
        yield
        scope.rows, scope.row_mask, scope.suffix = rows, row_mask, ""
