"""Tests what ``slicewise compile`` and ``uninstall`` do on the model of Slurm while jobs run."""

from typing import Literal

import pytest
from model_daemon import DaemonOnModel

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.quota_cycle.compile import look
from slicewise.slurm_plugin.quota_cycle.uninstall import Undone, finish, uninstall
from slicewise.slurm_plugin.rules.quota.types import LimitKey

LAB, LAB_BORROWED = "slicewise_lab", "slicewise_lab_borrowed"
GATE = "slicewise_gate"


def ours(site: DaemonOnModel) -> set[str]:
    return {one for one in site.site.database.known if one.startswith("slicewise_")}


def uninstalled(site: DaemonOnModel) -> Undone:
    return site.do(uninstall(site.slurm, site.ledger, site.settings))


def finished(site: DaemonOnModel) -> Undone:
    found = site.do(finish(site.slurm, site.ledger, site.settings))
    assert found is not None
    return found


def test_a_dry_run_shows_what_differs_and_changes_nothing(site: DaemonOnModel) -> None:
    site.stop()
    site.set_quota("lab", 3)
    before = site.site.database.state()
    shown = site.do(look(site.slurm, site.ledger, site.settings))
    wanted = {(one.key.name, one.key.field): one.wanted for one in shown.differences}
    assert wanted[LAB, "grptres=billing"] == "3000"
    assert site.site.database.state() == before
    assert site.compile().changes
    assert site.limits("lab")[0] == 3000
    again = site.do(look(site.slurm, site.ledger, site.settings))
    assert (again.differences, again.out_of_band) == ((), ())


@pytest.mark.parametrize(("by_hand", "then"), [("put back", 3000), ("adopt", 4000)])
def test_a_change_by_hand_is_told_and_put_back_or_adopted(
    site: DaemonOnModel, by_hand: Literal["put back", "adopt"], then: int
) -> None:
    site.stop()
    site.set_quota("lab", 3)
    site.compile()
    site.sacctmgr("modify", "qos", "where", f"name={LAB}", "set", "grptres=billing=4000")
    before = site.settings
    site.settings = before.model_copy(
        update={
            "ledger": before.ledger.model_copy(update={"by_hand": by_hand}),
            "lending": before.lending.model_copy(update={"term_s": 150}),
        }
    )
    (told,) = site.compile().out_of_band
    assert (told.key, told.was, told.now) == (
        LimitKey("qos", LAB, "grptres=billing"),
        "3000",
        "4000",
    )
    assert site.limits("lab")[0] == then
    assert site.ledger.policy()["lab"].quota.nominal_millislices == Millislices(then)
    assert site.site.database.known[LAB_BORROWED].preempt_exempt_s == 150
    site.settings = before
    assert site.compile().out_of_band == ()
    assert site.site.database.known[LAB_BORROWED].preempt_exempt_s is None


def test_an_uninstall_opens_the_gate_and_leaves_no_trace_once_jobs_have_ended(
    site: DaemonOnModel,
) -> None:
    before = site.site.database.state()
    site.set_quota("lab", 2)
    running = [site.sbatch("lab", qos=LAB) for _ in range(3)]
    site.until_is(lambda: dict(site.runs("lab")), {LAB: 2})
    site.stop()
    uninstalled(site)
    # What is in its QOS goes on, within its limits.
    free = site.sbatch("lab")
    site.until_is(lambda: dict(site.runs("lab")), {LAB: 2, "normal": 1})
    site.always(lambda: site.reasons("lab") == {"QOSGrpBilling"}, 30)
    for job_id in (*running, free):
        site.site.model.cancel(job_id)
    site.wait(10)
    finished(site)
    # The partition has the gate's QOS until its line is changed.
    assert ours(site) == {GATE}
    site.site.database.partition_qos = ""
    assert finished(site).waits == ()
    rows, known, weight = site.site.database.state()
    assert (rows, weight) == (before[0], before[2])
    assert known == {"normal": before[1]["normal"]}


def test_what_waits_behind_limits_of_zero_starts_after_an_uninstall(site: DaemonOnModel) -> None:
    site.set_quota("lab", 2)
    site.stop()
    # As if it had lent all.
    site.sacctmgr("modify", "qos", "where", f"name={LAB}", "set", "grptres=billing=0")
    site.sbatch("lab", qos=LAB)
    site.sbatch("lab", qos=LAB_BORROWED, tasks=4)
    site.sbatch("lab", qos=LAB_BORROWED, held=True)
    # Never lent, and more than its guaranteed quota.
    stuck = site.sbatch("lab", {"3g.40gb": 1}, qos=LAB_BORROWED)
    site.until_is(lambda: site.reasons("lab"), {"QOSGrpBilling", "JobHeldUser"})
    undone = uninstalled(site)
    assert undone.moved_jobs == 5
    site.until_is(lambda: dict(site.runs("lab")), {LAB: 2})
    assert site.limits("lab")[0] == 2000

    done = finished(site)
    assert done.changes == ()
    left = {name: (jobs.running, jobs.waiting, jobs.held) for name, jobs in done.in_use.items()}
    assert left == {LAB: (2, 3, 1), LAB_BORROWED: (0, 1, 0)}
    (told,) = (one for one in done.waits if "for ever" in one)
    remedy = ("modify", "qos", "where", f"name={LAB_BORROWED}", "set", "grptres=billing=3500")
    assert told.endswith(f"{stuck}. To let them start: sacctmgr {' '.join(remedy)}")
    site.sacctmgr(*remedy)
    site.until_is(lambda: site.runs("lab")[LAB_BORROWED], 1)
