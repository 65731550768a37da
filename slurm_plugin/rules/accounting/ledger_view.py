"""A consistent snapshot of the ledger, on which all decisions of a round are based."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from slicewise.slurm_plugin.rules.accounting import budgets
from slicewise.slurm_plugin.rules.accounting.types import Balance, Reservation
from slicewise.slurm_plugin.rules.quota import calendar
from slicewise.slurm_plugin.rules.quota.calendar import Moment, Window
from slicewise.slurm_plugin.rules.quota.types import KnownLimit, LimitKey, Loan, Policy, Recall

UNINSTALLED_ID = -1
"""Stands for the last compiled change once Slicewise was uninstalled from Slurm."""


@dataclass(frozen=True)
class LedgerView:
    """The ledger's state of one cluster at one moment.

    Attributes:
        when: the moment of the snapshot, with the local time in the ledger's time zone.
        change_id: the newest change of policy; 0 if there is none.
        compiled_id: the newest change of policy that Slurm's limits contain; 0 if none.
            UNINSTALLED_ID from an uninstallation until limits are to be set again.
        tenants: every tenant by name, without the calendar's windows.
        windows: the calendar's present and future windows, in the order in which they were set.
        loans: ordered by the names of lender and borrower.
        recalls: ordered by the names of lender and borrower, then by time.
        balances: the balance of every tenant that ever had a run or a budget.
        rollovers: the start of the period to which each budget was last rolled, in Unix seconds.
        reservations: the runs that are not settled.
        known: what the ledger remembers of every setting in slurmdbd that Slicewise ever changed.
    """

    when: Moment
    change_id: int
    compiled_id: int
    tenants: Policy = field(hash=False)
    windows: tuple[Window, ...]
    loans: tuple[Loan, ...]
    recalls: tuple[Recall, ...]
    balances: Mapping[str, Balance] = field(hash=False)
    rollovers: Mapping[str, int] = field(hash=False)
    reservations: tuple[Reservation, ...]
    known: Mapping[LimitKey, KnownLimit] = field(hash=False)

    @property
    def is_uninstalled(self) -> bool:
        """Whether Slicewise was uninstalled from Slurm, so that no limits may be set."""
        return self.compiled_id == UNINSTALLED_ID

    @property
    def now_s(self) -> int:
        """The moment of the snapshot in whole Unix seconds."""
        return int(self.when.at_s)

    @cached_property
    def policy(self) -> Policy:
        """Every tenant with the quota that the calendar gives it now."""
        return calendar.in_force(self.tenants, self.windows, self.when)

    @cached_property
    def highest(self) -> Policy | None:
        """Every tenant with the largest quota that it has at any hour; None without windows."""
        return calendar.loosest(self.tenants, self.windows) if self.windows else None

    @cached_property
    def left(self) -> Mapping[str, budgets.BudgetLeft]:
        """What is left of each budget that has begun, by tenant."""
        reservations = self.reservations
        return budgets.left(self.tenants, self.balances, self.rollovers, reservations, self.now_s)

    @cached_property
    def run_minutes(self) -> Mapping[str, int]:
        """Millislice-minutes left for the jobs in each budget's subtree, by tenant.

        See ``budgets.run_minutes``.
        """
        return budgets.run_minutes(self.policy, self.left, self.reservations, self.now_s)
