"""Lists loans and recalls with their times: since when, and until when they are promised."""

from collections.abc import Iterable
from dataclasses import dataclass

from slicewise.slurm_plugin.rules.quota.types import LoanTerm, Recall


@dataclass(frozen=True)
class LoanLine:
    """A loan, or a part of one that is recalled.

    Attributes:
        since_s: when the loan began, or when the part was recalled, in Unix seconds.
        until_s: until when the loan is promised, or by when the part is back; None without a
            promise.
    """

    lender: str
    borrower: str
    amount_millislices: int
    is_recalled: bool
    since_s: int
    until_s: int | None


def loan_lines(
    terms: Iterable[LoanTerm],
    recalls: Iterable[Recall],
    *,
    now_s: int,
    grace_s: int,
    term_s: int,
) -> list[LoanLine]:
    """List loans and recalls by lender and borrower.

    A loan is promised until ``term_s`` after it last grew: a job that started then is left alone
    until its term is over. A recalled part is back ``grace_s`` after the recall at the latest.
    """
    lines = [
        LoanLine(
            term.loan.lender,
            term.loan.borrower,
            term.loan.amount_millislices,
            is_recalled=False,
            since_s=term.since_s,
            until_s=until_s if (until_s := term.grown_s + term_s) > now_s else None,
        )
        for term in terms
    ]
    lines += [
        LoanLine(
            recall.lender,
            recall.borrower,
            recall.amount_millislices,
            is_recalled=True,
            since_s=recall.called_s,
            until_s=recall.called_s + grace_s,
        )
        for recall in recalls
    ]
    return sorted(lines, key=lambda line: (line.lender, line.borrower, line.is_recalled))
