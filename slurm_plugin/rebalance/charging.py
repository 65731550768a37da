"""The steps that keep the ledger: charge runs, begin budgets' periods."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.jobs import RunRecord
from slicewise.cluster.language.rebalances import StepOutcome
from slicewise.slurm_plugin.daemon.charging_loop import rates_of
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.quota_cycle.post_charges import post
from slicewise.slurm_plugin.quota_cycle.rollover import begun_periods, roll_over_budgets
from slicewise.slurm_plugin.rebalance.site_look import RebalanceLook, Report, RunContext
from slicewise.slurm_plugin.rules.accounting.charging import charge
from slicewise.slurm_plugin.rules.accounting.types import Charge, RunKey
from slicewise.slurm_plugin.rules.common.clock import SETTLED_S, distrusted

_MOST_TOLD = 5


async def reconcile(site: RunContext, look: RebalanceLook, *, apply: bool) -> Report:
    """Reserve for running jobs and settle ended ones; without accounting only the first.

    A charge is booked once, even if another process decides it at the same time (``Charges.post``).
    Ends that accounting has lost are left to the daemon: finding them takes two hours of looks.
    Raises OutsideError if a charge can't be booked, once all others are.
    """
    ledger = site.ledger
    reservations = await asyncio.to_thread(ledger.charges.open_reservations)
    records, why = await _records(site, look, apply=apply)
    decided = charge(rates_of(site.settings, look.policy), look.jobs, records, reservations, {})
    new: Collection[RunKey] = ()
    if decided.charges and apply:
        posted = await asyncio.to_thread(post, ledger, decided.charges)
        await asyncio.to_thread(ledger.charges.seal)
        for error in posted.refused.values():
            raise error
        new = posted.booked
    elif decided.charges:
        new = await asyncio.to_thread(_unsettled, ledger, decided.charges)
    booked = {due_charge.run.key for due_charge in decided.charges} - set(new)
    odd = [
        observation.text for observation in decided.observations if observation.key not in booked
    ]
    odd += [f"no cost is set for GPU type {kind}" for kind in sorted(decided.unpriced)]
    if decided.untyped:
        ids = ", ".join(str(key.job_id) for key in sorted(decided.untyped)[:_MOST_TOLD])
        odd += [f"nothing says the type of the GPUs of {len(decided.untyped)} runs, such as {ids}"]
    return Report(
        saw={"jobs": len(look.jobs), "records": len(records), "open": len(reservations)},
        lines=tuple(
            _booked_lines(due_charge for due_charge in decided.charges if due_charge.run.key in new)
        ),
        why="; ".join([why] * bool(why) + odd),
    )


async def _records(
    site: RunContext, look: RebalanceLook, *, apply: bool
) -> tuple[tuple[RunRecord, ...], str]:
    """Accounting's records of all runs that may not be settled yet, and why none could be read."""
    ledger = site.ledger
    known_since = ledger.charges.accounted_until_s if apply else ledger.charges.last_accounted_s
    since_s = await asyncio.to_thread(known_since)
    try:
        return await site.slurm.runs(int(look.at_s) if since_s is None else since_s), ""
    except (UnreachableError, OutsideError) as error:
        return (), f"Ended runs are charged later: {error}"


def _unsettled(ledger: Ledger, charges: Sequence[Charge]) -> frozenset[RunKey]:
    """Runs that ``post`` would book: accounting goes on to show runs that are settled."""
    keys = frozenset(due_charge.run.key for due_charge in charges)
    since_s = min(key.start_s for key in keys)
    rows = ledger.audit.statement(None, since_s, since_s).rows
    return keys - {row.run.key for row in rows if row.end_s is not None}


def _booked_lines(charges: Iterable[Charge]) -> Iterable[str]:
    by_tenant = Counter(due_charge.run.tenant for due_charge in charges)
    return (f"runs of {tenant} booked: {count}" for tenant, count in sorted(by_tenant.items()))


def _clock_trouble(site: RunContext) -> str:
    ledger, now_s = site.ledger, site.now_s()
    known_s = (
        ledger.rebalances.begun_before_s(now_s - SETTLED_S),
        ledger.charges.last_accounted_s(),
    )
    return distrusted(now_s, ledger.rebalances.now_s(), known_s)


async def roll(site: RunContext, look: RebalanceLook, *, apply: bool) -> Report:
    """Begin the periods of budgets that are due at the time of the look.

    None begins twice, and none where the clock may be wrong: nothing takes a period back.
    """
    if why := await asyncio.to_thread(_clock_trouble, site):
        return Report(why=f"No period begins. {why}", outcome=StepOutcome.FAILED)
    ledger, zone, looked_s = site.ledger, site.settings.ledger.time_zone, int(look.at_s)
    rollovers = await asyncio.to_thread(ledger.budgets.rollovers)
    due = begun_periods(look.policy, rollovers, zone, looked_s)
    lines = tuple(f"{tenant}: a period begins" for tenant in sorted(due))
    if apply and due:
        args = (ledger, look.policy, zone, look.jobs, looked_s)
        booked = await asyncio.to_thread(roll_over_budgets, *args, change_id=look.change_id)
        lines = tuple(f"{booking.tenant}: {booking.reason}" for booking in booked)
    waits = apply and len(lines) < len(due)
    return Report(
        saw={"budgets": len(rollovers), "due": len(due)},
        lines=lines,
        why="Quotas were changed meanwhile, or accounting does not show yet how earlier runs ended."
        if waits
        else "",
    )
