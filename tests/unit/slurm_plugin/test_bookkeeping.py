"""The charging loop on a scripted Slurm: what is asked when, and what waits for what."""

from dataclasses import replace

import pytest
from scripted import DOWN, ScriptedLedger, ScriptedSlurm, job, policy_of, settings, sync_of, tenant

from cluster.errors import OutsideError, SlicewiseError, UnreachableError
from cluster.jobs import JobState
from cluster.units import MillisliceSeconds
from slurm_plugin.bookkeeping import Bookkeeping
from slurm_plugin.decide.charging import ACCOUNTING_DELAY_S
from slurm_plugin.decide.policy import Budget, Period
from slurm_plugin.sync import Sync

RUNNING = job(0, JobState.RUNNING)


async def seen(slurm: ScriptedSlurm) -> Sync:
    sync = sync_of(slurm)
    await sync.turn()
    return sync


def books_of(slurm: ScriptedSlurm, ledger: ScriptedLedger, sync: Sync) -> Bookkeeping:
    return Bookkeeping(settings(), slurm, ledger, sync)  # type: ignore[arg-type]


def asked(slurm: ScriptedSlurm) -> int:
    return len([one for one in slurm.done if one[0] == "runs"])


@pytest.mark.parametrize("failure", [DOWN, OutsideError("SW-SLURM-FAILED", "sacct: error")])
async def test_without_accounting_runs_are_reserved_and_the_watermark_stays(
    failure: SlicewiseError,
) -> None:
    slurm, ledger = ScriptedSlurm(RUNNING), ScriptedLedger(watermark_s=500)
    sync = await seen(slurm)
    slurm.failure = failure
    await books_of(slurm, ledger, sync).turn()
    assert [held.key.job_id for held in ledger.open_reservations()] == [900]
    assert ledger.watermark_s == 500


async def test_accounting_is_asked_at_once_when_a_run_is_gone() -> None:
    slurm, ledger = ScriptedSlurm(RUNNING), ScriptedLedger()
    sync = await seen(slurm)
    books = books_of(slurm, ledger, sync)
    for _ in range(3):
        await books.turn()
    assert asked(slurm) == 1
    slurm.shown = (job(0),)
    await sync.turn()
    await books.turn()
    assert asked(slurm) == 2


async def test_the_watermark_waits_until_accounting_has_answered_for_a_while() -> None:
    slurm, ledger = ScriptedSlurm(), ScriptedLedger(watermark_s=500)
    books = books_of(slurm, ledger, await seen(slurm))
    await books.turn()
    # slurmctld may still have ends of an outage to hand over.
    assert ledger.watermark_s == 500
    assert books._answering_since_s is not None
    books._answering_since_s -= ACCOUNTING_DELAY_S
    books._settle_due_s = 0.0
    await books.turn()
    assert ledger.watermark_s > 500


def with_budget(name: str, amount: int) -> ScriptedLedger:
    budget = Budget(Period.DAY, MillisliceSeconds(amount))
    above = replace(tenant(name, 2000), budget=budget)
    return ScriptedLedger(shown=policy_of(above, tenant("vision", 1000, name)))


async def test_the_nearest_tenant_with_a_budget_pays_and_its_period_begins() -> None:
    slurm, ledger = ScriptedSlurm(RUNNING), with_budget("physics", 10**9)
    await books_of(slurm, ledger, await seen(slurm)).turn()
    (held,) = ledger.open_reservations()
    assert (held.tenant, held.payer) == ("vision", "physics")
    (roll,) = ledger.entries
    assert (roll.tenant, roll.kind, roll.author) == ("physics", "roll", "slicewise")
    assert roll.reason.startswith("day from 20")
    # The run began in 1970: what it used before today is no burden of today's budget.
    balance = ledger.balances()["physics"]
    assert balance.available_millislice_s + balance.reserved_millislice_s == 10**9


async def test_a_budget_begins_though_accounting_is_away() -> None:
    slurm, ledger = ScriptedSlurm(), with_budget("physics", 5)
    sync = await seen(slurm)
    slurm.failure = DOWN
    books = books_of(slurm, ledger, sync)
    for _ in range(2):
        await books.turn()
    assert [entry.amount_millislice_s for entry in ledger.entries] == [5]


async def test_the_policy_is_read_again_when_it_changes() -> None:
    slurm, ledger = ScriptedSlurm(RUNNING), ScriptedLedger()
    books = books_of(slurm, ledger, await seen(slurm))
    ledger.failures["policy"] = [UnreachableError("SW-DATABASE-DOWN", "down")]
    with pytest.raises(UnreachableError):
        await books.turn()
    await books.turn()
    ledger.shown = with_budget("physics", 5).shown
    await books.turn()
    assert ledger.entries == []
    ledger.newest += 1
    await books.turn()
    assert [entry.tenant for entry in ledger.entries] == ["physics"]
