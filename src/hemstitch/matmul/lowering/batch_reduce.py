"""Products that are added up to one value and to nothing else, as a convolution's are: in a tile
one goes on with the other's sums, in registers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.nodes import Contract, Let, Stmt
from hemstitch.kernel_ir.rewriter import used


@dataclass(frozen=True, slots=True)
class Total:
    """`additions` make `name` of `products`; of a single one nothing is to be made."""

    name: str
    products: tuple[Contract, ...]
    additions: tuple[Let, ...] = ()

    @staticmethod
    def of(product: Contract) -> Total:
        return Total(product.name, (product,))

    @property
    def own(self) -> set[str]:
        """The names of what it is made of, and its own."""
        return {each.name for each in self.products} | {each.name for each in self.additions}

    def others(self, body: Iterable[Stmt]) -> list[Stmt]:
        """The statements of `body` that are not its own."""
        own = self.own
        return [statement for statement in body if getattr(statement, "name", None) not in own]


def totals(body: Sequence[Stmt]) -> list[Total]:
    """In which each product of `body` is in one."""
    uses = Counter(name for statement in body for name in used(statement))
    found = {s.name: Total.of(s) for s in body if isinstance(s, Contract)}
    for statement in body:
        match statement:
            case Let(name, Op.ADD, (a, b), DType.F32) if {a, b} <= found.keys():
                if uses[a] == uses[b] == 1:
                    first, second = found.pop(a), found.pop(b)
                    additions = (*first.additions, *second.additions, statement)
                    found[name] = Total(name, (*first.products, *second.products), additions)
            case _:
                pass
    return [*found.values()]
