"""Mapping of scans: one task traverses the scanned axis in order, along the lanes; or, on a CPU,
around lanes that scan a column each. Readers of a scan at its own index share its loop."""

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
    """The axis of the first scan along one of the dominant's loops; of the dominant itself, if it
    is a scan."""
    axes = (_axis(shape) for shape in (dominant, *shapes) if is_scan_root(shape.root))
    return next((axis for axis in axes if axis in dominant.axes), None)


def fits_mapping(shape: RootShape, mapping: Mapping, machine: Machine) -> bool:
    """Whether the rows are among the root's loops, and its scan traverses its whole axis in
    order."""
    is_in_order = (
        not is_scan_root(shape.root)
        or mapping.order[-1:] == (_axis(shape),)
        or (machine.execution is Execution.SIMD and column_axis(shape, mapping) is not None)
    )
    return is_in_order and set(mapping.rows) <= set(mapping.after_split(shape.axes))


def column_axis(shape: RootShape, mapping: Mapping) -> Axis | None:
    """The lane axis, where each lane of the root's scan has a column of its own; else None."""
    if not is_scan_root(shape.root):
        return None
    around, *lanes = mapping.inner(mapping.after_split(shape.axes))[-2:] or (None,)
    is_across = bool(lanes) and around is _axis(shape) and mapping.order[-2:] == (around, *lanes)
    return lanes[0] if is_across else None


def is_read_in_place(node: Node, reader: RootShape, scan: RootShape) -> bool:
    """Whether the loop of the scan `node` can compute the reader as well."""
    is_same = set(reader.axes) == set(scan.axes)
    return is_scan(node.op) and is_same and node not in reader.shifted_scans


def _axis(shape: RootShape) -> Axis | None:
    """None for an axis of one element."""
    if len(shape.reduced) > 1:
        raise Refused("reshape", "it cuts the axis of a scan")
    return next(iter(shape.reduced), None)
