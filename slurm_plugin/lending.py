"""One round of lending: idle quota goes to who wants it, and comes back when it is asked for."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cluster.settings import Settings
from slurm_plugin.calendar_times import moment
from slurm_plugin.decide.calendar import in_force
from slurm_plugin.decide.policy import Loan, Policy, Recall
from slurm_plugin.decide.quota_round import Plan, Rules, Seen, World, plan

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


_REASON = "by demand: what lies idle is lent, what is wanted goes back"


@dataclass(frozen=True)
class Renewed:
    """What a round comes to.

    Attributes:
        policy: in force now.
        loans_before, recalls_before: what the ledger had.
    """

    policy: Policy = field(hash=False)
    loans_before: tuple[Loan, ...]
    recalls_before: tuple[Recall, ...]
    plan: Plan

    @property
    def is_new(self) -> bool:
        """Whether the ledger has something else."""
        before = set(self.loans_before), set(self.recalls_before)
        return (set(self.plan.loans), set(self.plan.recalls)) != before


def renew(ledger: "Ledger", settings: Settings, seen: Seen, now_s: float) -> Renewed:
    """``planned``, and written to the ledger: loans and recalls in one transaction."""
    found = planned(ledger, settings, seen, now_s)
    if not found.is_new:
        return found
    ledger.loans.replace(found.plan.loans, _REASON, found.plan.recalls)
    written = ledger.loans.outstanding(), ledger.loans.recalls()
    return replace(found, plan=replace(found.plan, loans=written[0], recalls=written[1]))


def planned(ledger: "Ledger", settings: Settings, seen: Seen, now_s: float) -> Renewed:
    """What the look and the ledger lead to now; changes nothing. Raises what ``Ledger`` raises."""
    windows, recalls = ledger.windows.not_over(), ledger.loans.recalls()
    loans = ledger.loans.outstanding()
    now = moment(now_s, settings.ledger.time_zone)
    policy = in_force(ledger.tenants.policy(), windows, now)
    seen = seen if settings.lending.past_use else replace(seen, lately={})
    world = World(policy, windows, loans, recalls, seen, rules_of(settings), now)
    return Renewed(policy, loans, recalls, plan(world))


def rules_of(settings: Settings) -> Rules:
    """What a round goes by of slicewise.toml."""
    return Rules(
        partitions=frozenset(settings.cluster.partitions),
        costs=settings.costs,
        whole_boards=settings.whole_boards,
        grace_s=settings.lending.grace_s,
        term_s=settings.lending.term_s,
        turn_s=settings.lending.turn_s,
    )
