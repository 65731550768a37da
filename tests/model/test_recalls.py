"""Tests how a lender has its slices back from a borrower's service, on the model of Slurm."""

from collections import Counter
from collections.abc import Iterator

import pytest
from model_daemon import NODES, QUICK, SETTINGS, DaemonOnModel

from slicewise.cluster.language.units import Millislices

GRACE_S = 120
OWN, LENT = 1, 3
"""Slices of lab and of the lender; other holds the other instances of this type."""
LATE_S = 60.0 + LENT * QUICK.kill_wait_s
"""Seconds that rounds, their limits and Slurm's next runs may take beside the grace. The replicas
do not end when they are told to, and Slurm preempts for one job after the other."""
SLOTS = tuple(range(OWN + LENT))


class Lent:
    """The lender is idle, and lab has a replica on each slice of both.

    Attributes:
        array: lab's service.
    """

    def __init__(self, site: DaemonOnModel) -> None:
        self.site = site
        others = 10 - OWN - LENT
        site.set_quota("other", others)
        for _ in range(others):
            site.sbatch("other", minutes=600)
        site.until_is(lambda: site.runs("other").total(), others)
        site.set_quota("lender", LENT, lending_limit_millislices=Millislices(1000 * LENT))
        site.set_quota("lab", OWN, borrowing_limit_millislices=Millislices(1000 * LENT))
        self.array = site.apply("lab", len(SLOTS), minutes=600)
        self.until_full()

    def until_full(self) -> None:
        """Ask for all slots until all run, as a launcher does."""

        def running() -> int:
            self.site.wish(self.array, *SLOTS)
            return self.site.slot_states(self.array).count("running")

        self.site.until_is(running, len(SLOTS))

    def obey(self) -> None:
        """Let go what must leave, as a launcher does once its requests have ended."""
        slots = self.site.slots(self.array)
        stay = [slot.index for slot in slots if slot.ends_in_s is None]
        self.site.wish(self.array, *stay)

    def ends(self) -> Counter[str]:
        """How the service's runs have ended."""
        self.site.site.model  # noqa: B018 -- takes note of the runs that have ended
        runs = (one.run for one in self.site.site.runs)
        return Counter(run.state for run in runs if run.array_job_id == self.array)


@pytest.fixture
def lent() -> Iterator[Lent]:
    lending = SETTINGS.lending.model_copy(update={"grace_s": GRACE_S})
    settings = SETTINGS.model_copy(update={"lending": lending})
    accounts = {"lab": "root", "lender": "root", "other": "root"}
    with DaemonOnModel(accounts, settings, NODES).running() as site:
        yield Lent(site)


def test_a_lender_has_back_what_its_jobs_need_and_the_service_what_they_leave(lent: Lent) -> None:
    site, needed = lent.site, LENT - 1
    began_s = site.clock.passed_s
    jobs = [site.sbatch("lender", minutes=50) for _ in range(needed)]

    def given_back() -> int:
        lent.obey()
        return site.runs("lender").total()

    site.until_is(given_back, needed)
    assert site.clock.passed_s - began_s < GRACE_S
    assert site.slot_states(lent.array).count("running") == OWN + LENT - needed
    assert lent.ends() == {"REQUEUED": needed}, "no one too many, and none by Slurm"
    for job_id in jobs:
        site.site.model.cancel(job_id)
    lent.until_full()
    assert lent.ends() == {"REQUEUED": needed}
    site.until_is(site.ledger.recalls, ())


def test_a_daemon_that_is_killed_in_between_takes_nothing_earlier(lent: Lent) -> None:
    """No replica goes by itself meanwhile."""
    site = lent.site
    site.sbatch("lender")
    site.until(site.ledger.recalls)
    called = site.ledger.recalls()
    site.stop()
    site.start()
    called_s = min(one.called_s for one in called)
    left_s = GRACE_S - (site.clock.now_s - called_s) - 5
    site.always(lambda: site.ledger.recalls() == called and not lent.ends(), left_s)
    assert site.slot_states(lent.array).count("running") == OWN + LENT


def test_who_does_not_go_within_the_grace_is_preempted_by_slurm(lent: Lent) -> None:
    site = lent.site
    for _ in range(LENT):
        site.sbatch("lender")
    site.until(lambda: sum(one.amount_millislices for one in site.ledger.recalls()) == LENT * 1000)
    called_s = max(one.called_s for one in site.ledger.recalls())
    site.until_is(lambda: site.runs("lender").total(), LENT, GRACE_S + LATE_S)
    assert lent.ends() == {"PREEMPTED": LENT}
    assert all(one.run.end_s >= called_s + GRACE_S for one in site.site.runs)
