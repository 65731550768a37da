"""Keeps loans of idle quota, and what lenders recall of it."""

from collections import Counter
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger import policy_rows as rows
from slicewise.slurm_plugin.ledger import reads
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.rebalance_tables import recalls
from slicewise.slurm_plugin.ledger.tables import loan_changes
from slicewise.slurm_plugin.rules.quota.calendar import loosely_within
from slicewise.slurm_plugin.rules.quota.lending import called_back
from slicewise.slurm_plugin.rules.quota.tenants import check_words
from slicewise.slurm_plugin.rules.quota.types import Loan, LoanChange, LoanTerm, Policy, Recall

_AUTHOR = "slicewise"


class Loans(LedgerPart):
    """Loans and recalls. A process that changes loans waits for one that changes quotas."""

    def outstanding(self) -> tuple[Loan, ...]:
        """Every loan, in the order of lenders' and borrowers' names."""
        with reading(self._engine) as connection:
            return reads.loans(connection, self._cluster)

    def replace(
        self, loans: Sequence[Loan], reason: str, recalls: Sequence[Recall] | None = None
    ) -> tuple[tuple[Loan, ...], tuple[Recall, ...]]:
        """Replace all loans by these, and all recalls, unless ``recalls`` is None.

        Returns the loans and recalls that hold then, in the order of ``outstanding`` and
        ``recalls``.

        Loans beyond what the limits allow at any hour of the calendar are cut, and what they lose
        joins the recalls. Loans from or to an account that is no tenant are left out. Raises
        InvalidInputError (SW-VALUE).
        """
        check_words(_AUTHOR, reason)
        with writing(self._engine) as connection:
            reads.lock_policy(connection, self._cluster)
            policy = reads.policy(connection, self._cluster)
            windows = reads.windows(connection, self._cluster)
            allowed = loosely_within(policy, windows, loans)
            before = reads.loans(connection, self._cluster)
            append(connection, self._cluster, before, allowed, reason)
            if recalls is not None:
                lost = called_back(loans, allowed, reads.now_s(connection))
                call_back(connection, self._cluster, policy, (*recalls, *lost))
            after = reads.loans(connection, self._cluster)
            return after, reads.recalls(connection, self._cluster)

    def recalls(self) -> tuple[Recall, ...]:
        """What lenders take back, in the order of lenders' and borrowers' names and time."""
        with reading(self._engine) as connection:
            return reads.recalls(connection, self._cluster)

    def terms(self) -> tuple[LoanTerm, ...]:
        """Every loan with its start, in the order of ``outstanding``."""
        with reading(self._engine) as connection:
            result = connection.execute(rows.loan_terms_of(self._cluster))
            return tuple(rows.loan_term(row) for row in result)

    def forget(self, before_s: float, after_id: int, most: int) -> int | None:
        """Delete old changes among the next ``most`` after ``after_id``; return the last id seen.

        None: no change so old comes after that id. A change is old if it was made before
        ``before_s``, and 90 days ago. The newest one of a loan that lasts is kept.
        """
        before = func.to_timestamp(before_s)
        forget = func.slicewise.forget_loans(self._cluster, before, after_id, most)
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            seen = connection.execute(select(forget)).scalar_one()
        return None if seen is None else int(seen)

    def history(self, tenant: str, most: int, before: int | None = None) -> tuple[LoanChange, ...]:
        """Changes of what the tenant lent and borrowed, the newest first.

        At most ``most`` of those that came before the change with the id ``before``.
        """
        changes = rows.loan_changes_of(self._cluster, tenant, most, before)
        with reading(self._engine) as connection:
            return tuple(rows.loan_change(row) for row in connection.execute(changes))


def append(
    connection: Connection, cluster: str, before: Sequence[Loan], after: Sequence[Loan], reason: str
) -> None:
    """Within a transaction: append the changes from ``before`` to ``after``."""
    new = {(loan.lender, loan.borrower): loan.amount_millislices for loan in after}
    old = {(loan.lender, loan.borrower): loan.amount_millislices for loan in before}
    values = [
        {
            "cluster": cluster,
            "lender": lender,
            "borrower": borrower,
            "amount_millislices": new.get((lender, borrower), 0),
            "reason": reason,
        }
        for lender, borrower in sorted(new.keys() | old.keys())
        if new.get((lender, borrower)) != old.get((lender, borrower))
    ]
    if values:
        connection.execute(insert(loan_changes), values)


def call_back(
    connection: Connection, cluster: str, policy: Policy, wanted: Iterable[Recall]
) -> None:
    """Within a transaction: replace all recalls by these.

    Only recalls between tenants are kept; those of the same two tenants and second become one.
    """
    amounts: Counter[tuple[str, str, int]] = Counter()
    for recall in wanted:
        if {recall.lender, recall.borrower} <= policy.keys():
            amounts[recall.lender, recall.borrower, recall.called_s] += recall.amount_millislices
    connection.execute(delete(recalls).where(recalls.c.cluster == cluster))
    if amounts:
        values = [
            {"cluster": cluster, **rows.recall_values(*key, amount)}
            for key, amount in amounts.items()
        ]
        connection.execute(insert(recalls), values)
    reads.seal_state(connection, cluster, "recalls")


def forget_recalls(connection: Connection, cluster: str, tenant: str) -> None:
    """Within a transaction: delete all recalls of a tenant that is removed."""
    of = recalls.c
    mine = or_(of.lender == tenant, of.borrower == tenant)
    connection.execute(delete(recalls).where(of.cluster == cluster, mine))
    reads.seal_state(connection, cluster, "recalls")
