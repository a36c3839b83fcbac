"""Symbolic sizes of a trace as the IR's: sympy expressions to `Dim`, and symbols to where a call
brings their values. Reads only what the trace already knows, so no guard is ever added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial, reduce
from operator import add, and_, mul
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.functions import FloorDiv, Mod

from hemstitch.capture.expressions import Expr, apply, constant, sqrt
from hemstitch.errors import UnsupportedError
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import (
    Dim,
    SymbolicDim,
    choice,
    evaluate,
    is_polynomial,
    may_be_negative,
    quotient,
    symbol,
)
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType

TRUNCATED, FLOOR, CEILING = "TruncToInt", "FloorToInt", "CeilToInt"
MOST_PARTS = 1 << 16  # of one: then a product with any size is exact in float64
LIKELY = 1024  # size, of those that a program reads from data: plans are made for it
Place = tuple[int, "int | None"]  # (argument position, axis), as in Graph.symbols


@dataclass(slots=True)
class Sizes:
    """Belongs to one capture. `places` and `hints` become the graph's symbols and hints."""

    builder: Builder
    places: dict[str, Place] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    _dims: dict[sympy.Basic, Dim] = field(default_factory=dict)
    _traced: dict[str, torch.SymInt] = field(default_factory=dict)  # by name of their symbols
    _values: dict[sympy.Basic, Expr] = field(default_factory=dict)

    def bind(self, arguments: Sequence[object]) -> None:
        """Find each symbol among the numbers and tensor sizes of a call: where it stands alone,
        else in a formula that can be solved for it."""
        sources = list(_sources(arguments))
        for size, place in sources:
            expression = size.node.expr
            if expression.is_Symbol and expression not in self._dims:
                self._dims[expression] = self._new_symbol(str(expression), size, place)
        for size, place in sources:
            self._solve(size, place)

    def bind_value(self, number: Any, value: Expr) -> None:
        """`number` (a SymInt or SymFloat) is the content of a tensor."""
        self._values[number.node.expr] = value

    def dim(self, size: int | torch.SymInt) -> Dim:
        if isinstance(size, int):
            return size
        number = _number_by_guards(size)
        return self._dim(_divided(size.node)) if number is None else number

    def dims(self, sizes: Sequence[int | torch.SymInt]) -> tuple[Dim, ...]:
        return tuple(self.dim(size) for size in sizes)

    def number(self, number: Any) -> Dim | float | Expr:
        """A SymInt or SymFloat as a size, if it is one, else as a scalar computed at run time."""
        expression = number.node.expr
        is_integer = isinstance(number, torch.SymInt)
        if is_integer and expression.free_symbols <= self._dims.keys():
            return self._dim(expression)
        dtype = DType.I64 if is_integer else DType.F64
        value = (self._values.get(expression) or self._value(expression)).cast(dtype)
        return Expr(self.builder, value.node, is_number=True)

    def is_never_negative(self, size: Dim) -> bool:
        """As far as the trace knows, from its guards too: `a - b` if it saw that `b <= a`."""
        if not may_be_negative(size):
            return True
        if isinstance(size, int) or not is_polynomial(size):
            return False
        return statically_known_true(evaluate(size, self._traced) >= 0)  # type: ignore[arg-type]

    def truth(self, condition: torch.SymBool) -> Expr:
        """A SymBool as a scalar computed at run time."""
        return Expr(self.builder, self._value(condition.node.expr).node, is_number=True)

    def _new_symbol(self, name: str, size: torch.SymInt, place: Place) -> SymbolicDim:
        self.places[name], self._traced[name] = place, size
        hint = size.node.hint
        self.hints[name] = LIKELY if hint is None else int(hint)
        is_number = place[1] is None
        return symbol(name, signed=is_number and not statically_known_true(size >= 0))

    def _solve(self, size: torch.SymInt, place: Place) -> None:
        expression = size.node.expr
        missing = expression.free_symbols - self._dims.keys()
        if len(missing) != 1 or not expression.is_polynomial(*missing):
            return
        (unknown,) = missing
        factor, rest = expression.coeff(unknown, 1), expression.coeff(unknown, 0)
        if factor != 0 and sympy.expand(factor * unknown + rest - expression) == 0:
            whole = self._new_symbol(f"size_of_{unknown}", size, place)
            self._dims[unknown] = quotient(whole - self._dim(rest), self._dim(factor))

    def _dim(self, expression: Any) -> Dim:
        if expression.is_Integer:
            return int(expression)
        if expression in self._dims:
            return self._dims[expression]
        name = type(expression).__name__
        if name in (TRUNCATED, FLOOR, CEILING):
            fraction = self._fraction(expression.args[0])
            if fraction is not None and _is_rounded_alike(name, *fraction):
                return _rounded(name, *fraction)
        rule = _DIM_RULES.get(name)
        if rule is None:
            raise UnsupportedError(f"the size {expression} is not known before the call")
        return rule(*map(self._dim, expression.args))

    def _fraction(self, number: Any) -> tuple[Dim, Dim] | None:
        """A size divided by another, or times a float, as `interpolate` asks for, where the product
        is exact: the float is a fraction of few bits."""
        if type(number).__name__ == "IntTrueDiv":
            size, divisor = map(self._dim, number.args)
            return size, divisor
        factor, size = number.as_coeff_Mul()
        fraction = Fraction(float(factor))
        whole = size.args[0] if type(size).__name__ == "ToFloat" else size
        if not whole.is_integer or fraction.denominator > MOST_PARTS or fraction < 0:
            return None
        return self._dim(whole) * fraction.numerator, fraction.denominator

    def _value(self, expression: Any) -> Expr:
        if expression in self._values:
            return self._values[expression].cast(DType.F64)
        if expression.is_Number:
            return self._scalar(float(expression))
        if expression.is_Boolean and not expression.args:
            return constant(self.builder, bool(expression), DType.BOOL)
        if expression.is_integer and expression.free_symbols <= self._dims.keys():
            return self._scalar(self._dim(expression))
        rule = _VALUE_RULES.get(type(expression).__name__)
        if rule is None:
            raise UnsupportedError(f"the number {expression} cannot be computed from sizes")
        return rule(*map(self._value, expression.args))

    def _scalar(self, number: Dim | float) -> Expr:
        return constant(self.builder, number, DType.F64)


def _sources(arguments: Sequence[object]) -> list[tuple[torch.SymInt, Place]]:
    numbers: list[tuple[torch.SymInt, Place]] = []
    sizes: list[tuple[torch.SymInt, Place]] = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, torch.SymInt):
            numbers.append((argument, (position, None)))
        elif isinstance(argument, torch.Tensor):
            shape: Sequence[object] = argument.shape
            for axis, size in enumerate(shape):
                if isinstance(size, torch.SymInt):
                    sizes.append((size, (position, axis)))
    return numbers + sizes


def _number_by_guards(size: torch.SymInt) -> int | None:
    """The number that a formula is known to be: `n - 2` is 1 where it was broadcast."""
    hint = None if size.node.expr.is_Symbol else size.node.hint
    return hint if hint is not None and statically_known_true(size == hint) else None


def _divided(size: SymNode) -> Any:
    """The formula of a size, without divisions that the trace knows to leave nothing over and that
    a factor undoes: (n // k) * k where k divides n."""
    formula, known = size.expr, getattr(size.shape_env, "divisible", ())
    quotients = formula.atoms(FloorDiv) if known else ()
    exact = {
        quotient: quotient.args[0] / quotient.args[1]
        for quotient in quotients
        if Mod(*quotient.args) in known
    }
    return formula.replace(lambda part: part.is_Mul, partial(_multiplied, exact))


def _multiplied(exact: Mapping[Any, Any], product: Any) -> Any:
    """With these quotients as fractions, where they leave none."""
    plain = sympy.Mul(*(exact.get(factor, factor) for factor in product.args))
    divides = any(power.exp.is_negative for power in plain.atoms(sympy.Pow))
    is_whole = not divides and all(number.is_Integer for number in plain.atoms(sympy.Number))
    return plain if is_whole else product


def _is_rounded_alike(name: str, size: Dim, divisor: Dim) -> bool:
    """What is negative is truncated upwards."""
    return not may_be_negative(divisor) and (name != TRUNCATED or not may_be_negative(size))


def _rounded(name: str, size: Dim, divisor: Dim) -> Dim:
    return -quotient(-size, divisor) if name == CEILING else quotient(size, divisor)


def _remainder(size: Dim, divisor: Dim) -> Dim:
    return size - divisor * quotient(size, divisor) if isinstance(size, int) else size % divisor


def _power(base: Dim, exponent: Dim) -> Dim:
    if not isinstance(exponent, int) or exponent < 0:
        raise UnsupportedError(f"the size ({base})**({exponent}) is not a polynomial")
    return reduce(mul, [base] * exponent, 1)


_DIM_RULES: dict[str, Callable[..., Dim]] = {
    "Add": lambda *terms: reduce(add, terms),
    "Mul": lambda *factors: reduce(mul, factors),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": quotient,
    "CleanDiv": quotient,
    "CeilDiv": lambda size, divisor: -quotient(-size, divisor),
    "PythonMod": _remainder,
    "Mod": _remainder,
    "ModularIndexing": lambda size, step, count: _remainder(quotient(size, step), count),
    "Max": lambda *sizes: choice("max", sizes),
    "Min": lambda *sizes: choice("min", sizes),
    "Identity": lambda size: size,
}


def _unary(op: Op) -> Callable[[Expr], Expr]:
    return lambda x: apply(op, x)


def _float_power(base: Expr, exponent: Expr) -> Expr:
    return apply(Op.POW, base, exponent)


def _binary(op: Op) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: apply(op, x, y)


_VALUE_RULES: dict[str, Callable[..., Expr]] = {
    "Add": lambda *terms: reduce(add, terms),
    "Mul": lambda *factors: reduce(mul, factors),
    "Pow": _float_power,
    "PowByNatural": _float_power,
    "FloatPow": _float_power,
    "IntTrueDiv": lambda x, y: x / y,
    "FloatTrueDiv": lambda x, y: x / y,
    "ToFloat": lambda x: x,
    "Identity": lambda x: x,
    "TruncToFloat": _unary(Op.TRUNC),
    "OpaqueUnaryFn_sqrt": sqrt,
    "OpaqueUnaryFn_exp": _unary(Op.EXP),
    "OpaqueUnaryFn_log2": _unary(Op.LOG2),
    "OpaqueUnaryFn_cos": _unary(Op.COS),
    "OpaqueUnaryFn_sin": _unary(Op.SIN),
    "OpaqueUnaryFn_tanh": _unary(Op.TANH),
    "Equality": _binary(Op.EQ),
    "Unequality": _binary(Op.NE),
    "StrictLessThan": _binary(Op.LT),
    "LessThan": _binary(Op.LE),
    "StrictGreaterThan": _binary(Op.GT),
    "GreaterThan": _binary(Op.GE),
    "And": lambda *conditions: reduce(and_, conditions),
    "Or": lambda *conditions: ~reduce(and_, (~condition for condition in conditions)),
    "Not": _unary(Op.NOT),
}
