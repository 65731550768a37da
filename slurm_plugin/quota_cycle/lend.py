"""One round of quotas: plans it on a look at Slurm, and writes its loans and recalls."""

from dataclasses import dataclass, replace

from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.round.round import RoundPlan, plan
from slicewise.slurm_plugin.rules.round.world import SlurmView, World, seen_of, world_of

_REASON = "by demand: idle quota is lent, and goes back when its lender wants it"

_JUST_NOW_S = 1
"""Seconds for which a plan stays. What it calls back is called at its own moment: a slurmdbd that
answers late would take that time from the grace."""


@dataclass(frozen=True)
class Renewed:
    """The result of a round.

    Attributes:
        world: ledger and Slurm, as the round found them.
    """

    world: World
    plan: RoundPlan

    @property
    def before(self) -> LedgerView:
        """The ledger, as the round found it."""
        return self.world.ledger_view

    @property
    def after(self) -> LedgerView:
        """The ledger at the same moment, with the plan's loans and recalls."""
        return replace(self.before, loans=self.plan.loans, recalls=self.plan.recalls)

    @property
    def is_new(self) -> bool:
        """Whether the plan's loans or recalls differ from the ledger's."""
        before = set(self.before.loans), set(self.before.recalls)
        return (set(self.plan.loans), set(self.plan.recalls)) != before


def renew(
    ledger: Ledger,
    ledger_view: LedgerView,
    settings: Settings,
    seen: SlurmView,
    just_now: Renewed | None = None,
) -> Renewed:
    """Plan a round and write its loans and recalls to the ledger in one transaction.

    What was planned ``just_now`` stays if ledger and Slurm still are the same. Raises what
    ``Ledger`` raises.
    """
    is_new = just_now and 0 <= ledger_view.now_s - just_now.before.now_s <= _JUST_NOW_S
    if just_now and is_new and just_now.world.is_as(ledger_view, seen_of(settings, seen)):
        renewed = replace(just_now, world=replace(just_now.world, ledger_view=ledger_view))
    else:
        renewed = planned(ledger_view, settings, seen)
    if not renewed.is_new:
        return renewed
    loans, recalls = ledger.loans.replace(renewed.plan.loans, _REASON, renewed.plan.recalls)
    return replace(renewed, plan=replace(renewed.plan, loans=loans, recalls=recalls))


def planned(ledger_view: LedgerView, settings: Settings, seen: SlurmView) -> Renewed:
    """Plan a round on this look at Slurm and this view of the ledger, at the moment of the view."""
    inputs = world_of(ledger_view, settings, seen)
    return Renewed(inputs, plan(inputs))
