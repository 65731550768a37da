"""Decides when a round of quotas is due: as soon as somebody waits whom it would help.

What tenants' jobs need changes with every submission, start and end. A round is caused only by
those changes for which a job waits that a limit keeps back: others, such as a loan that nobody
uses any more, are followed by the regular round.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.slurm_plugin.rules.accounting.types import Balance
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.quota.standings import QosUse, Standing
from slicewise.slurm_plugin.rules.quota.types import Policy, Recall
from slicewise.slurm_plugin.rules.round.round import RoundPlan
from slicewise.slurm_plugin.rules.round.world import World

REGULAR_S = 15.0
"""Seconds between rounds while nobody needs one: limits are changed outside Slicewise, budgets are
used up, what nobody uses is to be lent to others."""
REST = 4.0
"""What took long is followed by a pause of so many times as long."""
_QUICK_S = 0.5
"""A round for which slurmdbd and slurmctld took longer to answer is followed by a pause: they are
slow where they have much to do, and on a large cluster slurmdbd takes several seconds to show all
associations. Quick ones come as looks do, which are a second apart while something moves."""
_SLOW_S = 5.0
"""A round that took longer in all, as the ledger's database is slow, is followed by a pause that is
as long: else one would follow another, and nobody else have a turn."""
_LONGEST_S = 60.0
"""Upper bound of these pauses, so that jobs which could borrow wait no longer, however slow a
database was once."""


@dataclass(frozen=True)
class RoundNeeds:
    """What a round would change for those who wait.

    Attributes:
        limits: QOS and millislices of each limit that would grow and keeps back a job now.
        recalls: the recalls that would be in place of others; None if those stay.
    """

    limits: frozenset[tuple[str, int]] = frozenset()
    recalls: frozenset[Recall] | None = None

    @property
    def any(self) -> bool:
        """Whether somebody waits for a round."""
        return bool(self.limits) or self.recalls is not None


NO_NEEDS = RoundNeeds()


@dataclass(frozen=True)
class LastRound:
    """What is known of the last round; times are seconds of a clock that is never set.

    Attributes:
        took_s: how long Slurm took to answer for it.
        unserved: the limits that it was to let grow, if it changed nothing in Slurm.
        whole_s: how long it took in all.
    """

    ended_s: float
    took_s: float
    unserved: frozenset[tuple[str, int]] = frozenset()
    whole_s: float = 0.0


def needs(inputs: World, round_plan: RoundPlan, in_force: Mapping[str, Standing]) -> RoundNeeds:
    """What a round with this plan would change for those who wait.

    ``in_force`` has the limits in Slurm, by tenant. A tenant that is not among them is new: the
    ledger says so.
    """
    recalls = frozenset(round_plan.recalls)
    then = inputs.after(round_plan.loans, round_plan.recalls)
    use, allowed = then.use, then.allowed().standings
    growing = (
        (qos, limit)
        for name, standing in allowed.items()
        if name in in_force and standing != in_force[name]
        for qos, before, limit in _limits(name, in_force[name], standing)
        if before < limit and _lacks(use, qos, before)
    )
    is_same = recalls == frozenset(inputs.ledger_view.recalls)
    return RoundNeeds(frozenset(growing), None if is_same else recalls)


def is_due(last: LastRound, wanted: RoundNeeds, now_s: float) -> bool:
    """Whether a round is due now, for what is ``wanted`` or since it is time.

    What the last round could not do is left to the regular one.
    """
    pause_s = min(REST * last.took_s, _LONGEST_S) if last.took_s > _QUICK_S else 0.0
    if last.whole_s > _SLOW_S:
        pause_s = max(pause_s, min(last.whole_s, _LONGEST_S))
    if wanted.recalls is None and wanted.limits <= last.unserved:
        pause_s = max(pause_s, REGULAR_S)
    return now_s >= last.ended_s + pause_s


def granted(policy: Policy, balances: Mapping[str, Balance]) -> Mapping[str, int]:
    """Millislice-seconds granted to each tenant; {} if no tenant has a budget. A round is due at
    once when they change, as for another policy.
    """
    if not any(tenant.budget for tenant in policy.values()):
        return {}
    return {name: balance.granted for name, balance in balances.items() if name in policy}


def _limits(
    tenant: str, before: Standing, then: Standing
) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
    return (
        (qos_name(tenant), before.own_qos_limit_millislices, then.own_qos_limit_millislices),
        (
            borrowed_qos(tenant),
            before.borrowed_qos_limit_millislices,
            then.borrowed_qos_limit_millislices,
        ),
    )


def _lacks(use: QosUse, qos: str, limit: int) -> bool:
    """Whether a job waits in the QOS for which its limit is too small."""
    tasks = use.tasks.get(qos, ())
    return bool(tasks) and use.held.get(qos, 0) + sum(tasks) > limit
