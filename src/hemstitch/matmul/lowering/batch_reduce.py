"""Batch-reduce GEMM: matmuls whose results are only added up, as those of a convolution, accumulate
in one tile in registers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.nodes import Contract, Let, Stmt
from hemstitch.kernel_ir.rewriter import used


@dataclass(frozen=True, slots=True)
class BatchReduction:
    """The value `name`, which `additions` compute from the results of `contracts`. A single
    contraction has no additions."""

    name: str
    contracts: tuple[Contract, ...]
    additions: tuple[Let, ...] = ()

    @staticmethod
    def of(contract: Contract) -> BatchReduction:
        """A contraction by itself."""
        return BatchReduction(contract.name, (contract,))

    @property
    def names(self) -> set[str]:
        """The names of the contractions and additions."""
        contracts = {contract.name for contract in self.contracts}
        return contracts | {addition.name for addition in self.additions}

    def rest_of(self, body: Iterable[Stmt]) -> list[Stmt]:
        """The statements of `body` that are not part of the reduction."""
        own_names = self.names
        return [
            statement for statement in body if getattr(statement, "name", None) not in own_names
        ]


def batch_reductions(body: Sequence[Stmt]) -> list[BatchReduction]:
    """The batch reductions of a loop body. Each contraction is in exactly one."""
    uses = Counter(name for statement in body for name in used(statement))
    reductions = {s.name: BatchReduction.of(s) for s in body if isinstance(s, Contract)}
    for statement in body:
        match statement:
            case Let(name, Op.ADD, (a, b), DType.F32) if {a, b} <= reductions.keys():
                if uses[a] == uses[b] == 1:
                    first, second = reductions.pop(a), reductions.pop(b)
                    additions = (*first.additions, *second.additions, statement)
                    reductions[name] = BatchReduction(
                        name, (*first.contracts, *second.contracts), additions
                    )
            case _:
                pass
    return [*reductions.values()]
