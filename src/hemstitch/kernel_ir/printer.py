"""The text form of the kernel IR, for readers. It leaves out bounds of computed indices and
weights. `digest.py` has a key that covers everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from typing_extensions import assert_never

from hemstitch.kernel_ir.nodes import (
    EPILOGUE_ROWS,
    Accumulate,
    AccumulateInto,
    AccumulateMatmul,
    Buffer,
    Check,
    Constant,
    Contract,
    Finish,
    Init,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Random,
    Running,
    Scan,
    Stmt,
    Store,
)


def show(kernel: Kernel) -> str:
    """The text of a kernel."""
    return "\n".join(_kernel_lines(kernel))


def _kernel_lines(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {kernel.name}"
    for buffer in kernel.buffers:
        non_temporal = " past the caches" if buffer in kernel.non_temporal else ""
        yield f"  {_buffer(buffer, non_temporal)}"
    for number, phase in enumerate(kernel.phases):
        if number:
            yield f"  {phase.begin.value}  # {phase.why}"
        for nest in phase.nests:
            yield from _nest_lines(nest)


def _buffer(buffer: Buffer, non_temporal: str) -> str:
    why = f"  # {buffer.why}" if buffer.why else ""
    return f"{buffer.role.value} {buffer.name}: {buffer.dtype}[{buffer.size}]{non_temporal}{why}"


def _nest_lines(nest: Nest) -> Iterator[str]:
    if nest.prologue:
        yield "  each task:"
        yield from _lines(nest.prologue, "    ")
    if nest.panels:
        yield "  each first row, and where another axis than the last moves on:"
        yield from _lines(nest.panels, "    ")
    yield f"  each row of {', '.join(f'{a}<{a.extent}' for a in nest.rows) or '1'}:  # {nest.why}"
    yield from _lines(nest.body, "    ")
    if nest.epilogue:
        yield f"  each {EPILOGUE_ROWS} rows, and at the end:"
        yield from _lines(nest.epilogue, "    ")


def _lines(statements: Iterable[Stmt], indent: str) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, Loop):
            axis = statement.axis
            limit = f" while {axis.outer}*{axis.extent}+{axis} < {axis.limit}" if axis.outer else ""
            if statement.between is not None:
                limit = f" from {' to '.join(statement.between)}"
            yield f"{indent}{'lanes' if statement.lanes else 'for'} {axis} < {axis.extent}{limit}:"
            yield from _lines(statement.body, indent + "  ")
        elif isinstance(statement, Contract | AccumulateMatmul):
            yield f"{indent}{text(statement)}:"
            yield from _lines(statement.body, indent + "  ")
        else:
            yield indent + text(statement)


def text(statement: Stmt) -> str:  # noqa: C901, PLR0911, PLR0912  one line for each kind of statement
    """The text of one statement, without its body."""
    match statement:
        case Let(name, op, operands, source, dtype):
            return f"{name}: {dtype} = {op.value}.{source}({', '.join(operands)})"
        case Constant(name, value, dtype):
            return f"{name}: {dtype} = {value}"
        case Position(name, index):
            return f"{name}: i64 = {index}"
        case Random(name, seed, index):
            return f"{name}: f32 = uniform({seed}, {index})"
        case Load(name, buffer, index, mask):
            return f"{name} = {buffer.name}[{index}]{f' if {mask}' if mask else ''}"
        case Store(buffer, index, value):
            return f"{buffer.name}[{index}] = {value}"
        case Init():
            return _init(statement)
        case Running(name, accumulator):
            return f"{name} = {accumulator} so far"
        case Scan(name, accumulator, value):
            return f"{name} = {accumulator} <- {value}, lane after lane"
        case Accumulate(accumulator, value, position, order):
            where = position if position is not None else order
            return f"{accumulator} <- {value}{f' at {where}' if where is not None else ''}"
        case Finish(name, accumulator, position_name):
            return f"{name}{f', {position_name}' if position_name else ''} = {accumulator}"
        case AccumulateInto(buffer, index, op, dtype, value, positions, order, atomic):
            at = f" at {order} in {positions.name}" if positions is not None else ""
            at += ", atomic" if atomic else ""
            return f"{buffer.name}[{index}] <- {op.value}.{dtype} {value}{at}"
        case Check(condition, failure):
            return f"check {condition}  # {failure}"
        case Loop():
            return "for ..."
        case Contract(name, axis, _, left, right, source, dtype, band):
            where = "" if band is None else f" where {band} >= 0"
            over = f"over {axis} < {axis.extent}{where}"
            return f"{name}: {dtype} = {left} dot.{source} {right} {over}"
        case AccumulateMatmul(accumulator, axis, _, left, right, source):
            product = f"{left} dot.{source} {right} over lanes"
            return f"{accumulator} <- {product} for each {axis} < {axis.extent}"
        case _:
            assert_never(statement)


def _init(init: Init) -> str:
    columns = f" for each {init.columns} < {init.columns.extent}" if init.columns else ""
    across = " across lanes" if init.across else ""
    running_max = f", follows {init.running_max}" if init.running_max else ""
    compensated = ", with what is lost" if init.compensated else ""
    return f"{init.name}: {init.dtype} {init.op.value}{columns}{across}{running_max}{compensated}"
