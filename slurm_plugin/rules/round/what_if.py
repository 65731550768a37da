"""Sums up what a round of lending would do where it is not carried out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slicewise.slurm_plugin.rules.common.observations import LentBetween, QuotaUse, day_of
from slicewise.slurm_plugin.rules.quota.demand import demand_of
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Loan
from slicewise.slurm_plugin.rules.reclaim.recalls import short_lenders
from slicewise.slurm_plugin.rules.round.whole_jobs import own_needs
from slicewise.slurm_plugin.rules.round.world import World

LONGEST_S = 120
"""A round stands for the time until the next one, and for no more than these seconds: the daemon
may have seen nothing meanwhile."""

Pair = tuple[str, str]
"""A lender and a borrower."""


@dataclass(frozen=True)
class ImaginedRound:
    """A round of lending that is not carried out; amounts are millislices.

    Attributes:
        at_s: when it was planned, in Unix seconds.
        recalled: what lenders take back for their own jobs of the loans before, by pair.
        guaranteed, idle, wanted: by tenant, as ``QuotaUse`` has them.
    """

    at_s: float
    loans: tuple[Loan, ...] = ()
    recalled: Mapping[Pair, int] = field(default_factory=dict, hash=False)
    guaranteed: Mapping[str, int] = field(default_factory=dict, hash=False)
    idle: Mapping[str, int] = field(default_factory=dict, hash=False)
    wanted: Mapping[str, int] = field(default_factory=dict, hash=False)


def imagined(inputs: World, loans: tuple[Loan, ...]) -> ImaginedRound:
    """Describe a round after which these loans would exist.

    ``inputs`` has the loans of the round before. What a loan lost counts as recalled if jobs of its
    lender need it; else the borrower gave it back.
    """
    policy = inputs.fitted
    own = guaranteed_quota(policy)
    asked = demand_of(policy, inputs.jobs)
    needs = own_needs(policy, asked, inputs.jobs.for_loans)
    before = inputs.ledger_view.loans
    short = short_lenders(policy, before, needs)
    lost = Counter(_amounts(before)) - Counter(_amounts(loans))
    return ImaginedRound(
        at_s=inputs.ledger_view.now_s,
        loans=loans,
        recalled={pair: amount for pair, amount in lost.items() if pair[0] in short},
        guaranteed=own,
        idle={name: max(0, amount - needs.get(name, 0)) for name, amount in own.items()},
        wanted={name: max(0, asked.get(name, 0) - amount) for name, amount in own.items()},
    )


def loan_sums(before: ImaginedRound | None, now: ImaginedRound) -> tuple[LentBetween, ...]:
    """Return what was lent from one round to the next, and what the next one recalls."""
    seconds = _seconds(before, now)
    lent = _amounts(before.loans) if before else {}
    day_s = day_of(now.at_s)
    return tuple(
        LentBetween(
            *(day_s, *pair),
            lent_millislice_s=lent.get(pair, 0) * seconds,
            recalls=int(pair in now.recalled),
            recalled_millislices=now.recalled.get(pair, 0),
        )
        for pair in sorted(lent.keys() | now.recalled.keys())
    )


def quota_sums(before: ImaginedRound | None, now: ImaginedRound) -> tuple[QuotaUse, ...]:
    """Return how tenants' guaranteed quotas stood from one round to the next."""
    seconds, day_s = _seconds(before, now), day_of(now.at_s)
    if before is None or not seconds:
        return ()
    idle = sum(before.idle.values())
    wanted = min(idle, sum(before.wanted.values()))
    return tuple(
        QuotaUse(
            *(day_s, name, seconds, amount * seconds),
            idle_millislice_s=before.idle[name] * seconds,
            idle_wanted_millislice_s=before.idle[name] * wanted // max(idle, 1) * seconds,
            wanted_millislice_s=before.wanted[name] * seconds,
        )
        for name, amount in before.guaranteed.items()
    )


def _seconds(before: ImaginedRound | None, now: ImaginedRound) -> int:
    if before is None:
        return 0
    # Whole seconds since the epoch: consecutive rounds add up to the time between first and last.
    return max(0, min(int(now.at_s) - int(before.at_s), LONGEST_S))


def _amounts(loans: Iterable[Loan]) -> Mapping[Pair, int]:
    return {(loan.lender, loan.borrower): loan.amount_millislices for loan in loans}
