"""Tests of jobs that lack quota and are over a limit of the site's, too, on the model of Slurm."""

from collections.abc import Callable

from model_daemon import DaemonOnModel
from stand_ins.slurm_database import CLUSTER

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.units import Millislices

MUCH = Millislices(8000)
MINUTES = "AssocGrpBillingMinutes"
LAB, LENDER = "slicewise_lab", "slicewise_lender"


def limit_minutes(site: DaemonOnModel, account: str, minutes: int) -> None:
    where = ("where", f"name={account}", f"cluster={CLUSTER}", "set")
    site.sacctmgr("modify", "account", *where, f"grptresmins=billing={minutes}")
    site.site.tell()


def changes(site: DaemonOnModel, seconds: int, holds: Callable[[], object] = lambda: True) -> int:
    """How often limits of QOS change in that time, in which this holds."""
    found, before = 0, site.site.limits()
    for _ in range(seconds):
        site.wait(1)
        now = site.site.limits()
        found += sum(now[name] != before.get(name) for name in now)
        before = now
        assert holds()
    return found


def lends_to_lab(site: DaemonOnModel) -> None:
    """One slice is lab's own, in use for very long; eight of the lender's are idle.

    lab's account has minutes for that and for five more.
    """
    site.set_quota("lender", 8, lending_limit_millislices=MUCH)
    site.set_quota("lab", 1, borrowing_limit_millislices=MUCH)
    limit_minutes(site, "lab", 1000 * 10_005)
    site.sbatch("lab", minutes=10_000)
    site.until_is(lambda: site.runs("lab")[LAB], 1)


def test_a_loan_does_not_flap_where_another_limit_binds_as_well(site: DaemonOnModel) -> None:
    lends_to_lab(site)
    for _ in range(3):
        site.sbatch("lab", minutes=10)
    site.until(lambda: MINUTES in site.reasons("lab"))
    assert changes(site, 1800, lambda: site.runs("lab").total() == 1) <= 40
    state = site.daemon.state
    assert state.barred.damped >= 3
    assert {one.reason for one in state.barred.jobs.values()} <= {MINUTES}
    # Once the limit is another one, nothing is known of it: that is tried at once.
    limit_minutes(site, "lab", 1000 * 20_000)
    site.until_is(lambda: site.runs("lab").total(), 4, 120)
    site.until_is(lambda: dict(site.daemon.state.barred.bars), {})


def test_a_lender_whose_own_job_is_over_another_limit_takes_nothing_back_for_it(
    site: DaemonOnModel,
) -> None:
    site.set_quota("lender", 4, lending_limit_millislices=MUCH)
    site.set_quota("lab", 0, borrowing_limit_millislices=MUCH)
    limit_minutes(site, "lender", 1000)
    job = site.sbatch("lender", {"1g.10gb": 4}, minutes=10)
    site.until_is(lambda: site.reasons("lender"), {MINUTES})
    for _ in range(6):
        site.sbatch("lab")
    site.until_is(lambda: site.runs("lab").total(), 4)
    assert changes(site, 400, lambda: site.runs("lab").total() == 4) <= 20
    limit_minutes(site, "lender", 1_000_000)
    site.until(lambda: any(one.job_id == job and one.start_s for one in site.jobs("lender")), 120)


def test_a_job_beside_it_is_lent_what_it_needs(site: DaemonOnModel) -> None:
    lends_to_lab(site)
    site.sbatch("lab", minutes=10)
    site.until(lambda: MINUTES in site.reasons("lab"))
    site.wait(300)
    small = site.sbatch("lab", minutes=2)
    site.until(
        lambda: any(
            one.job_id == small and one.state is JobState.RUNNING for one in site.jobs("lab")
        ),
        60,
    )


def test_what_the_end_of_a_run_mends_is_tried_at_once(site: DaemonOnModel) -> None:
    """A limit on a type that the account may hold: one of three at a time."""
    site.set_quota("lender", 8, lending_limit_millislices=MUCH)
    site.set_quota("lab", 0, borrowing_limit_millislices=MUCH, type_limits={"1g.10gb": 1})
    for _ in range(3):
        site.sbatch("lab", run_s=900.0, minutes=20)
    for left in (3, 2, 1):
        site.until_is(lambda: len(site.jobs("lab")), left, 1200)
        site.until_is(lambda: site.runs("lab").total(), 1, 60)
