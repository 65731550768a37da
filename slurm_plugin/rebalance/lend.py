"""The steps that lend idle quota, and take it back when its owner needs it."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

from slicewise.cluster.language.rebalances import StepOutcome
from slicewise.cluster.language.units import slices_text, slices_words
from slicewise.slurm_plugin.ledger.summaries import held_lately
from slicewise.slurm_plugin.quota_cycle.lend import Renewed, planned, renew
from slicewise.slurm_plugin.rebalance.site_look import RebalanceLook, Report, RunContext
from slicewise.slurm_plugin.rules.quota.types import Loan, Recall


async def lend(site: RunContext, look: RebalanceLook, *, apply: bool) -> Report:
    """Renew loans and recalls by current demand, in one transaction."""
    renewed = await _renewed(site, look, apply=apply)
    round_plan = renewed.plan
    lent = sum(loan.amount_millislices for loan in round_plan.loans)
    return Report(
        saw={"loans": len(renewed.before.loans), "recalls": len(renewed.before.recalls)},
        lines=(
            *_changes("{0} lends {1}", renewed.before.loans, round_plan.loans),
            *_changes("{1} owes {0}", renewed.before.recalls, round_plan.recalls),
        ),
        why=f"Lent by demand now: {slices_words(lent)}." if renewed.is_new else "",
    )


async def reclaim(site: RunContext, look: RebalanceLook, *, apply: bool) -> Report:
    """Report what is recalled. Without a daemon nothing tells replicas to go: Slurm preempts later.

    The recall itself, and its end, belong to the step before.
    """
    del look, apply
    recalls = await asyncio.to_thread(site.ledger.loans.recalls)
    saw = {"recalls": len(recalls)}
    if not recalls:
        return Report(saw)
    grace_s = site.settings.lending.grace_s
    why = (
        f"No daemon asks replicas to end: the first run {grace_s} s or more after the recall lets"
        " Slurm preempt."
    )
    return Report(saw, tuple(_changes("{1} owes {0}", (), recalls)), why, StepOutcome.SKIPPED)


async def _renewed(site: RunContext, look: RebalanceLook, *, apply: bool) -> Renewed:
    ledger, settings = site.ledger, site.settings
    lately = await asyncio.to_thread(held_lately, ledger, settings, look.at_s)
    seen = replace(look.slurm, lately=lately)
    ledger_view = await asyncio.to_thread(ledger.view, look.at_s, settings.ledger.time_zone)
    if not apply:
        return planned(ledger_view, settings, seen)
    return await asyncio.to_thread(renew, ledger, ledger_view, settings, seen)


def _changes(
    words: str, before: Iterable[Loan | Recall], now: Iterable[Loan | Recall]
) -> Iterator[str]:
    old, new = _amounts(before), _amounts(now)
    for pair in sorted(old.keys() | new.keys()):
        was, amount = (amounts.get(pair, 0) for amounts in (old, new))
        if was != amount:
            yield f"{words.format(*pair)} {slices_words(amount)}, {slices_text(was)} before"


def _amounts(pairs: Iterable[Loan | Recall]) -> dict[tuple[str, str], int]:
    amounts: dict[tuple[str, str], int] = {}
    for pair in pairs:
        key = pair.lender, pair.borrower
        amounts[key] = amounts.get(key, 0) + pair.amount_millislices
    return amounts
