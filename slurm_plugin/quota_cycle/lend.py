"""One round of lending: lends idle quota to tenants with demand, and recalls it for its lenders."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cluster.settings.file import Settings
from slurm_plugin.accounting.ledger_view import Books
from slurm_plugin.quota_cycle.gather import world_of
from slurm_plugin.quota_cycle.round import Plan, plan
from slurm_plugin.quota_cycle.world import Seen

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


_REASON = "by demand: idle quota is lent, and goes back when its lender wants it"


@dataclass(frozen=True)
class Renewed:
    """The result of a round.

    Attributes:
        before: the ledger, as the round found it.
    """

    before: Books
    plan: Plan

    @property
    def after(self) -> Books:
        """The ledger at the same moment, with the plan's loans and recalls."""
        return replace(self.before, loans=self.plan.loans, recalls=self.plan.recalls)

    @property
    def is_new(self) -> bool:
        """Whether the plan's loans or recalls differ from the ledger's."""
        before = set(self.before.loans), set(self.before.recalls)
        return (set(self.plan.loans), set(self.plan.recalls)) != before


def renew(ledger: "Ledger", books: Books, settings: Settings, seen: Seen) -> Renewed:
    """Plan a round and write its loans and recalls to the ledger in one transaction.

    Raises what ``Ledger`` raises.
    """
    found = planned(books, settings, seen)
    if not found.is_new:
        return found
    loans, recalls = ledger.loans.replace(found.plan.loans, _REASON, found.plan.recalls)
    return replace(found, plan=replace(found.plan, loans=loans, recalls=recalls))


def planned(books: Books, settings: Settings, seen: Seen) -> Renewed:
    """Plan a round on this look at Slurm and these books, at the moment of the books."""
    return Renewed(books, plan(world_of(books, settings, seen)))
