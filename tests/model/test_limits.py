"""Tests that quotas bind in Slurm: from the ledger by the daemon to what runs, on the model."""

import pytest
from model_daemon import DaemonOnModel
from stand_ins.slurm_database import CLUSTER

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.slurm.interface import Tasks
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.types import TenantUpdate

LAB, LAB_BORROWED = "slicewise_lab", "slicewise_lab_borrowed"
LENDER, GROUP = "slicewise_lender", "slicewise_group"
WAITS = {"QOSGrpBilling", "Priority", "Resources"}


def lends(slices: float) -> dict[str, Millislices]:
    return {"lending_limit_millislices": Millislices(round(1000 * slices))}


def borrows(slices: float) -> dict[str, Millislices]:
    return {"borrowing_limit_millislices": Millislices(round(1000 * slices))}


@pytest.mark.parametrize("slices", [2, 3.5, 0])
def test_a_quota_is_in_slurm_once_it_is_in_force(site: DaemonOnModel, slices: float) -> None:
    site.set_quota("lab", slices)
    assert site.limits("lab")[0] == 1000 * slices
    # Policy holds while no process of Slicewise runs.
    site.stop()
    for _ in range(5):
        site.sbatch("lab", qos=LAB)
    site.wait(30)
    assert site.runs("lab").total() == int(slices)


@pytest.mark.parametrize("slices", [0, 3])
def test_what_is_in_another_qos_waits_at_the_gate(site: DaemonOnModel, slices: int) -> None:
    """Whether its account has a quota or none; without GPUs it may run."""
    site.set_quota("lab", slices)
    site.stop()
    site.sbatch("lab")
    site.sbatch("lab", {})
    site.until_is(lambda: dict(site.runs("lab")), {"normal": 1})
    site.always(lambda: site.reasons("lab") == {"QOSGrpBilling"}, 60)


def test_a_tenant_above_can_not_take_what_those_below_are_due(site: DaemonOnModel) -> None:
    site.set_quota("lab", 8, **borrows(1))
    site.set_quota("group", 4, parent="lab")
    for _ in range(8):
        site.sbatch("lab", qos=LAB)
    site.until_is(lambda: site.runs("lab").total(), 4)
    for _ in range(5):
        site.sbatch("group")
    site.until_is(lambda: site.runs("group").total(), 4)
    site.always(lambda: (site.runs("lab").total(), site.runs("group").total()) == (4, 4), 60)
    assert site.reasons("lab") <= WAITS


def test_limits_hold_and_every_run_is_charged_as_accounting_has_it(site: DaemonOnModel) -> None:
    site.set_quota("lab", 2)
    array = site.sbatch("lab", minutes=5, run_s=4.0, tasks=5)
    most = 0
    while site.jobs("lab"):
        most = max(most, site.runs("lab").total())
        site.wait(0.5)
    assert most == 2

    site.set_quota("lab", 4)
    cancelled, requeued, extended = (site.sbatch("lab", minutes=5) for _ in range(3))
    site.until_is(lambda: site.runs("lab").total(), 3)
    site.until_is(lambda: len(site.ledger.open_reservations()), 3)

    def reserved(job_id: int) -> int:
        (run,) = (one for one in site.ledger.open_reservations() if one.key.job_id == job_id)
        return run.reserved_millislice_s + run.posted_millislice_s

    before = reserved(extended)
    site.update(extended, time_limit_min=9)
    site.until_is(lambda: reserved(extended), before + 4 * 60 * 1000)
    site.site.model.requeue(requeued)
    site.until_is(lambda: site.runs("lab").total(), 3)
    site.wait(30)
    for job_id in (cancelled, extended, requeued):
        site.site.model.cancel(job_id)
    site.until(lambda: not site.ledger.open_reservations(), 900)

    accounted = {
        (one.run.job_id, int(one.run.start_s)): 1000 * (int(one.run.end_s) - int(one.run.start_s))
        for one in site.site.runs
        if one.run.start_s is not None
    }
    charged = {
        (row.run.key.job_id, row.run.key.start_s): row.used_millislice_s
        for row in site.statement("lab")
    }
    assert charged == accounted
    assert len(accounted) == 5 + 3 + 1
    assert [job_id for job_id, _ in charged].count(requeued) == 2
    assert {row.run.task for row in site.statement("lab")} >= {f"{array}_{i}" for i in range(5)}
    assert site.ledger.verify().imbalance == 0


def test_limit_and_guarantee_bind_and_the_lender_goes_first(site: DaemonOnModel) -> None:
    """The ten small instances are the two tenants'; the lender needs none at first."""
    site.set_quota("lender", 8, **lends(8))
    site.set_quota("lab", 2, **borrows(8))
    for qos in [LAB] * 3 + [LAB_BORROWED] * 9:
        site.sbatch("lab", qos=qos)
    site.until_is(lambda: dict(site.runs("lab")), {LAB: 2, LAB_BORROWED: 8})
    site.always(lambda: dict(site.runs("lab")) == {LAB: 2, LAB_BORROWED: 8}, 60)
    assert site.reasons("lab") <= WAITS

    site.sbatch("lender")
    site.until_is(lambda: dict(site.runs("lender")), {LENDER: 1})
    site.until(lambda: site.runs("lab").total() <= 9)
    assert site.runs("lab")[LAB] == 2, "only borrowed jobs are preempted"


def test_a_guarantee_of_a_type_leaves_the_rest_of_it_to_others(site: DaemonOnModel) -> None:
    """Its ten slices would pay for all ten 1g.10gb, of which six are guaranteed to it."""
    site.set_quota("lender", 4, **lends(4), type_nominals={"1g.10gb": 4})
    site.set_quota("lab", 10, type_nominals={"1g.10gb": 6})
    for _ in range(12):
        site.sbatch("lab")
    site.until_is(lambda: dict(site.runs("lab")), {LAB: 6})
    site.until(lambda: "QOSGrpGRES" in site.reasons("lab"))
    # What it has of its own quota left for other types is enough for the other four.
    site.set_quota("lab", 10, **borrows(4))
    site.until_is(lambda: dict(site.runs("lab")), {LAB: 6, LAB_BORROWED: 4})
    for _ in range(5):
        site.sbatch("lender")
    site.until_is(lambda: site.runs("lender")[LENDER], 4)
    site.until_is(lambda: dict(site.runs("lab")), {LAB: 6})


def test_what_fits_starts_within_seconds_though_quotas_exceed_the_cluster(
    site: DaemonOnModel,
) -> None:
    """30 slices are guaranteed of 20.5; what is missing comes from who wants nothing."""
    site.set_quota("lab", 15)
    site.set_quota("lender", 15)
    site.wait(60)
    for _ in range(8):
        site.sbatch("lab")
    site.until_is(lambda: site.runs("lab").total(), 8, 10)
    for _ in range(3):
        site.sbatch("lender", {"3g.40gb": 1})
    site.until_is(lambda: site.runs("lender").total(), 3, 10)
    site.sbatch("lender")
    site.sbatch("lender")
    site.until_is(lambda: site.runs("lender").total(), 5, 10)
    over = site.daemon.state.quotas.overcommitment
    assert over is not None
    assert over.above_millislices == 9500


def test_types_and_budgets_bind(site: DaemonOnModel) -> None:
    site.set_quota("lab", 5, type_limits={"1g.10gb": 1})
    for _ in range(2):
        site.sbatch("lab", minutes=5)
    site.until_is(lambda: site.runs("lab").total(), 1)
    site.until(lambda: site.reasons("lab") & {"AssocGrpGRES", "AssocGrpGRESLimit"})
    site.set_budget("lab", 0)
    # A budget limits nothing before it has begun: the second job would start.
    site.until(lambda: site.run_minutes("lab")[0] is not None)
    site.set_quota("lab", 5, type_limits={})
    site.until_is(lambda: site.reasons("lab"), {"QOSGrpBillingRunMinutes"})
    site.grant("lab", 10)
    site.until_is(lambda: site.runs("lab").total(), 2)


def test_a_budget_that_is_used_up_binds_nothing_but_gpus(site: DaemonOnModel) -> None:
    """Nor does it touch what its site has set for the account."""
    account = ("where", "name=lab", f"cluster={CLUSTER}", "set")
    site.sacctmgr("modify", "account", *account, "grptresrunmins=billing=999999")
    site.set_quota("lab", 5)
    site.set_budget("lab", 0)
    site.until_is(lambda: site.run_minutes("lab"), (0, 0))
    site.sbatch("lab", minutes=5)
    site.until_is(lambda: site.reasons("lab"), {"QOSGrpBillingRunMinutes"})
    site.sbatch("lab", {}, minutes=5)
    site.until_is(lambda: dict(site.runs("lab")), {"normal": 1})
    site.ledger.change(TenantUpdate("lab", budget="off"))
    site.until_is(lambda: site.run_minutes("lab"), (None, None))
    assert site.site.database.rows["lab", ""].run_mins == {"billing": 999_999}
    site.until_is(lambda: site.runs("lab")[LAB], 1)


def test_both_qos_of_a_tenant_together_use_up_no_more_than_its_budget(site: DaemonOnModel) -> None:
    """36 minutes of a slice: three of six runs of ten minutes, wherever they are."""
    site.set_quota("lender", 6, **lends(6))
    site.set_quota("lab", 2, **borrows(6))
    site.set_budget("lab", 0.6)
    site.until_is(lambda: site.run_minutes("lab"), (36_000, 0))
    for qos in [LAB, LAB_BORROWED] * 3:
        site.sbatch("lab", qos=qos)
    site.until_is(lambda: site.runs("lab").total(), 3)
    assert site.runs("lab")[LAB_BORROWED] >= 1

    def is_within() -> bool:
        parts = [one or 0 for one in site.run_minutes("lab")]
        return site.runs("lab").total() == 3 and sum(parts) <= 36_360

    site.always(is_within, 120)


def test_a_used_up_budget_above_lets_nothing_start_below_though_that_has_its_own(
    site: DaemonOnModel,
) -> None:
    site.set_quota("lab", 4)
    site.set_quota("group", 2, parent="lab")
    site.set_budget("group", 10)
    site.set_budget("lab", 0)
    site.until_is(lambda: site.run_minutes("group"), (0, 0))
    site.sbatch("group", minutes=5)
    site.until_is(lambda: site.reasons("group"), {"QOSGrpBillingRunMinutes"})
    assert site.runs("group").total() == 0
    site.grant("lab", 1)
    site.until_is(lambda: site.runs("group")[GROUP], 1)


@pytest.mark.parametrize("tasks", [0, 8])
def test_jobs_and_tasks_wait_where_there_is_room(site: DaemonOnModel, tasks: int) -> None:
    """Two fit into the guarantee, four into what may be borrowed; what runs out makes room."""
    site.set_quota("lender", 8, **lends(6))
    site.set_quota("lab", 2, **borrows(4))
    ids = [site.sbatch("lab", tasks=tasks) for _ in range(1 if tasks else 8)]

    def waiting() -> int:
        every = (one for one in site.jobs("lab") if one.state is not JobState.RUNNING)
        return sum(max(1, len(one.untouched)) for one in every)

    site.until_is(lambda: dict(site.runs("lab")), {LAB: 2, LAB_BORROWED: 4})
    assert waiting() == 2
    first = next(one for one in site.jobs("lab") if one.qos == LAB and one.start_s)
    assert (first.array_job_id or first.job_id) in ids
    target = first.job_id if not tasks else Tasks(ids[0], frozenset({first.task_index or 0}))
    site.site.model.cancel(target)
    site.until_is(lambda: dict(site.runs("lab")), {LAB: 2, LAB_BORROWED: 4})
    assert waiting() == 1
