"""What scans ask of the mapping: one task walks their axis from its start to its end, along the
lanes, or on a processor around lanes that each scan a column. Whatever reads a scan at the same
place is computed in the same loop.
"""

from __future__ import annotations

from collections.abc import Iterable

from hemstitch.ir.graph import Node
from hemstitch.ir.ops import is_scan
from hemstitch.kernel_ir.index import Axis
from hemstitch.machine.record import Execution, Machine
from hemstitch.stitching.group import Root
from hemstitch.stitching.loop_shapes import Mapping, RootShape
from hemstitch.stitching.refusal import Refused


def is_scan_root(root: Root) -> bool:
    return root.reduction is not None and is_scan(root.reduction.op)


def scanned_axis(dominant: RootShape, shapes: Iterable[RootShape]) -> Axis | None:
    """Of the first scan along one of the dominant's loops; its own, if it is one."""
    axes = (_axis(shape) for shape in (dominant, *shapes) if is_scan_root(shape.root))
    return next((axis for axis in axes if axis in dominant.axes), None)


def follows(shape: RootShape, mapping: Mapping, machine: Machine) -> bool:
    """The rows are among the root's loops, and its scan has all of its axis, in order."""
    is_walked = (
        not is_scan_root(shape.root)
        or mapping.order[-1:] == (_axis(shape),)
        or (machine.execution is Execution.SIMD and columns(shape, mapping) is not None)
    )
    return is_walked and set(mapping.rows) <= set(mapping.placed(shape.axes))


def columns(shape: RootShape, mapping: Mapping) -> Axis | None:
    """The lanes' axis, where each lane of the root's scan has a column of its own."""
    if not is_scan_root(shape.root):
        return None
    around, *lanes = mapping.inner(mapping.placed(shape.axes))[-2:] or (None,)
    is_across = bool(lanes) and around is _axis(shape) and mapping.order[-2:] == (around, *lanes)
    return lanes[0] if is_across else None


def is_read_in_place(node: Node, reader: RootShape, made: RootShape) -> bool:
    """A loop that makes the scan `node` can compute what the reader makes of it."""
    is_same = set(reader.axes) == set(made.axes)
    return is_scan(node.op) and is_same and node not in reader.ahead


def _axis(shape: RootShape) -> Axis | None:
    """None: it has one element."""
    if len(shape.reduced) > 1:
        raise Refused("reshape", "it cuts the axis of a scan")
    return next(iter(shape.reduced), None)
