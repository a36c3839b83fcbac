"""Rules for ops on lists of tensors: that of the op on one tensor, for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hemstitch.capture.expressions import Expr
from hemstitch.capture.rule_context import Context, NotHandled, Rule
from hemstitch.capture.rules.reductions import vector_norm

_NAMES = (
    *("abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max"),
    *("clamp_min", "copy", "cos", "cosh", "div", "erf", "erfc", "exp", "expm1", "floor", "frac"),
    *("lerp", "log", "log10", "log1p", "log2", "maximum", "minimum", "mul", "neg", "pow"),
    *("reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan"),
    *("tanh", "trunc"),
)
_SINGLE = {"maximum": "clamp_min", "minimum": "clamp_max"}  # their second operand may be a number


def foreach(single: Rule) -> Rule:
    def rule(c: Context, *arguments: Any, **keywords: Any) -> list[Any]:
        return [
            single(
                replace(c, results=(result,)),
                *(_element(argument, index) for argument in arguments),
                **{key: _element(value, index) for key, value in keywords.items()},
            )
            for index, result in enumerate(c.results)
        ]

    return rule


def _element(argument: Any, index: int) -> Any:
    return argument[index] if isinstance(argument, tuple) else argument


def _norm(c: Context, x: Expr, order: Any = 2, dtype: Any = None) -> Expr:
    return vector_norm(c, x, order)


def _scalars_in_a_tensor(c: Context, *_: Any, **__: Any) -> list[Any]:
    raise NotHandled


def foreach_rules(rules: dict[str, Rule]) -> dict[str, Rule]:
    single = {name: rules[_SINGLE.get(name, name)] for name in _NAMES}
    single |= {"zero": rules["zeros_like"], "norm": _norm}
    return {
        **{f"_foreach_{name}": foreach(rule) for name, rule in single.items()},
        "_foreach_addcdiv.Tensor": _scalars_in_a_tensor,
        "_foreach_addcmul.Tensor": _scalars_in_a_tensor,
    }
