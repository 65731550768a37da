"""What the ledger says at one moment, for everything that is decided on it together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from slurm_plugin.decide import budgets, calendar
from slurm_plugin.decide.calendar import Moment, Window
from slurm_plugin.decide.model import Balance, Reservation
from slurm_plugin.decide.policy import KnownLimit, LimitKey, Loan, Policy, Recall

UNINSTALLED_ID = -1
"""In place of the change that Slurm's limits contain, once they were taken out."""


@dataclass(frozen=True)
class Books:
    """One consistent look at one cluster.

    Attributes:
        when: of the look, with what clocks of the ledger's time zone show.
        change_id: of the newest change of policy; 0 if there is none.
        compiled_id: up to which change Slurm's limits contain the policy; 0 if none, UNINSTALLED_ID
            once they were taken out, until they are wanted again.
        tenants: by name, whatever the calendar says.
        windows: those that hold or will hold, in the order in which they were set.
        loans: in the order of lenders' and borrowers' names.
        recalls: in the order of lenders', borrowers' names and time.
        balances: of every tenant that ever had a run or a budget.
        rolls: the start of the period that each budget was rolled to last, Unix seconds.
        reservations: runs that are not settled.
        known: what is remembered of every setting in slurmdbd that was ever touched.
    """

    when: Moment
    change_id: int
    compiled_id: int
    tenants: Policy = field(hash=False)
    windows: tuple[Window, ...]
    loans: tuple[Loan, ...]
    recalls: tuple[Recall, ...]
    balances: Mapping[str, Balance] = field(hash=False)
    rolls: Mapping[str, int] = field(hash=False)
    reservations: tuple[Reservation, ...]
    known: Mapping[LimitKey, KnownLimit] = field(hash=False)

    @property
    def is_uninstalled(self) -> bool:
        """Whether no limits may be set."""
        return self.compiled_id == UNINSTALLED_ID

    @property
    def now_s(self) -> int:
        """Of the look, in whole Unix seconds."""
        return int(self.when.at_s)

    @cached_property
    def policy(self) -> Policy:
        """Every tenant as the calendar has it now."""
        return calendar.in_force(self.tenants, self.windows, self.when)

    @cached_property
    def highest(self) -> Policy | None:
        """Every tenant with the most that it has at any hour; None without a calendar."""
        return calendar.loosest(self.tenants, self.windows) if self.windows else None

    @cached_property
    def left(self) -> Mapping[str, budgets.Left]:
        """What each budget that has begun has left, by tenant."""
        reservations = self.reservations
        return budgets.left(self.tenants, self.balances, self.rolls, reservations, self.now_s)

    @cached_property
    def run_minutes(self) -> Mapping[str, int]:
        """Millislice-minutes that the jobs of each tenant with a budget, and below it, may run."""
        return budgets.run_minutes(self.policy, self.left, self.reservations, self.now_s)
