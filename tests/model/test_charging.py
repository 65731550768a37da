"""Tests budgets and charges while jobs run, on the model of Slurm."""

import pytest
from model_daemon import SETTINGS, DaemonOnModel

from slicewise.cluster.language.periods import Period, next_start_s
from slicewise.slurm_plugin.rules.accounting.budgets import unspent
from slicewise.slurm_plugin.rules.accounting.types import TransferKind
from slicewise.slurm_plugin.rules.quota.types import TenantUpdate

HOUR_MILLISLICE_S = 3_600_000


def steps(site: DaemonOnModel, job_id: int) -> list[tuple[TransferKind, int]]:
    """What was booked of its run: the kinds, and up to when."""
    (charge,) = (one for key, one in site.ledger.booked.items() if key.job_id == job_id)
    return [(one.kind, one.until_s) for one in charge.transfers]


def left(site: DaemonOnModel) -> int:
    """Millislice-seconds of the budget that are not used, reserved ones included."""
    return unspent(site.ledger.balances().get("lab"))


def test_what_a_budget_has_no_room_for_waits_for_a_grant(site: DaemonOnModel) -> None:
    """A twentieth of a slice-hour is three minutes of a slice."""
    site.set_quota("lab", 3)
    site.set_budget("lab", 0.05)
    site.until_is(lambda: site.run_minutes("lab")[0], 3000)
    site.sbatch("lab", minutes=5, run_s=280)
    site.until_is(lambda: site.reasons("lab"), {"QOSGrpBillingRunMinutes"})
    site.always(lambda: not site.runs("lab"), 60)
    site.grant("lab", 0.05)
    site.until_is(lambda: site.runs("lab").total(), 1)


@pytest.mark.parametrize("is_away", [False, True])
def test_a_new_day_begins_with_its_amount_and_what_ran_before_is_posted(
    site: DaemonOnModel, is_away: bool
) -> None:
    """Also where the daemon was away at midnight."""
    site.set_quota("lab", 3)
    midnight_s = next_start_s(Period.DAY, int(site.clock.now_s), "UTC") or 0
    site.stop()
    site.wait(midnight_s - site.clock.now_s - 300)
    site.start()
    site.set_budget("lab", 1, Period.DAY)
    # The budget's first day has begun, with nothing to post of the job, and the job is booked.
    site.until_is(lambda: left(site), HOUR_MILLISLICE_S)
    job_id = site.sbatch("lab", minutes=30)
    site.until_is(lambda: site.runs("lab").total(), 1)
    site.until(lambda: len(site.ledger.open_reservations()) == 1)
    assert [kind for kind, _ in steps(site, job_id)] == [TransferKind.RESERVE]
    if is_away:
        site.stop()
        site.wait(midnight_s - site.clock.now_s + 100)
        site.start()
    site.until_is(
        *(lambda: steps(site, job_id)[1:], [(TransferKind.POST, midnight_s)], 600),
    )
    assert left(site) == HOUR_MILLISLICE_S
    site.site.model.cancel(job_id)
    site.until(lambda: not site.ledger.open_reservations(), 900)
    (run,) = (one.run for one in site.site.runs)
    assert left(site) == HOUR_MILLISLICE_S - 1000 * (int(run.end_s) - midnight_s)
    (row,) = site.statement("lab")
    assert row.used_millislice_s == 1000 * (int(run.end_s) - int(run.start_s or 0))


@pytest.mark.parametrize(("bears", "is_waived"), [("operator", True), ("tenant", False)])
def test_who_bears_what_a_failed_node_ends(
    site: DaemonOnModel, bears: str, is_waived: bool
) -> None:
    ledger = SETTINGS.ledger.model_copy(update={"node_failure": bears})
    site.stop()
    site.start(SETTINGS.model_copy(update={"ledger": ledger}))
    site.set_quota("lab", 3)
    site.sbatch("lab", requeues=False)
    site.until_is(lambda: site.runs("lab").total(), 1)
    site.wait(60)
    ((node,),) = (one.nodes for one in site.jobs("lab"))
    site.site.model.fail_node(node)
    site.until(lambda: site.statement("lab") and site.statement("lab")[0].end_s, 900)
    (row,), (run,) = site.statement("lab"), (one.run for one in site.site.runs)
    cost = 1000 * (int(run.end_s) - int(run.start_s or 0))
    assert cost >= 60_000
    assert (row.used_millislice_s, row.waived_millislice_s) == (
        (0, cost) if is_waived else (cost, 0)
    )


def test_a_removed_budget_limits_nothing_any_more(site: DaemonOnModel) -> None:
    site.set_quota("lab", 2)
    site.set_budget("lab", 0)
    site.until_is(lambda: site.run_minutes("lab"), (0, 0))
    site.sbatch("lab")
    site.until_is(lambda: site.reasons("lab"), {"QOSGrpBillingRunMinutes"})
    site.ledger.change(TenantUpdate("lab", budget="off"))
    site.until_is(lambda: site.runs("lab").total(), 1)
