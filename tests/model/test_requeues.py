"""Tests which batch jobs go when a lender needs its slices, on the model of Slurm."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from model_daemon import SETTINGS, DaemonOnModel
from model_slurm import PARTITION
from stand_ins.slurm_database import SlurmDatabase

from slicewise.cluster.language.jobs import JobState, JobView, RunOfJob
from slicewise.cluster.language.slurm.interface import Requeued
from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.cluster import SimulatedNode
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos

GRACE_S = SETTINGS.lending.grace_s
LENT, LARGE, SMALL = 6, {"1g.10gb": 4}, {"1g.10gb": 1}
NODES = [SimulatedNode("gpu01", frozenset({PARTITION}), {"1g.10gb": LENT})]


class Lent:
    """The lender is idle; lab runs two small jobs on its quota, and since later a large one.

    The lender's job of two slices needs both small ones. Slurm would end the youngest: the large
    one.
    """

    def __init__(self, site: DaemonOnModel, **of_small: Any) -> None:
        self.site = site
        site.set_quota("lender", LENT, lending_limit_millislices=Millislices(1000 * LENT))
        site.set_quota("lab", 0, borrowing_limit_millislices=Millislices(1000 * LENT))
        self.small = [self.sbatch(SMALL, **of_small) for _ in range(2)]
        site.until_is(lambda: site.runs("lab").total(), 2)
        site.wait(10)
        self.large = self.sbatch(LARGE)
        site.until_is(lambda: site.runs("lab").total(), 3)
        site.wait(10)

    def sbatch(self, gpus: dict[str, int], **more: Any) -> int:
        return self.site.sbatch("lab", gpus, minutes=600, **more)

    def come_back(self) -> int:
        return self.site.sbatch("lender", {"1g.10gb": 2}, minutes=50)

    def is_running(self, job_id: int) -> bool:
        record = self.site.site.record(job_id)
        return record is not None and record.state is JobState.RUNNING

    def why(self) -> Mapping[int, str]:
        """What is said of jobs whose last run went for a lender."""
        state = self.site.daemon.state
        return state.requeues.why(state.jobs)

    def ends(self) -> Counter[tuple[int, str]]:
        """How runs of lab have ended."""
        self.site.site.model  # noqa: B018 -- takes note of the runs that have ended
        runs = (one.run for one in self.site.site.runs)
        return Counter((run.job_id, run.state) for run in runs if run.account == "lab")


@pytest.fixture
def site() -> Iterator[DaemonOnModel]:
    accounts = {"lab": "root", "lender": "root", "speech": "root"}
    with DaemonOnModel(accounts, SETTINGS, NODES).running() as site:
        yield site


def requeued(*job_ids: int) -> Counter[tuple[int, str]]:
    return Counter((job_id, "REQUEUED") for job_id in job_ids)


def test_the_fewest_go_and_slurm_preempts_no_other(site: DaemonOnModel) -> None:
    lent = Lent(site)
    began_s, job = site.clock.passed_s, lent.come_back()
    site.until(lambda: lent.is_running(job))
    assert site.clock.passed_s - began_s < GRACE_S / 2
    assert lent.ends() == requeued(*lent.small)
    why = f"lender takes back 1 slice: job {job} waits"
    assert lent.why() == dict.fromkeys(lent.small, why)
    site.until_is(site.ledger.recalls, ())
    site.site.model.cancel(job)
    site.until_is(lambda: site.runs("lab").total(), 3)
    assert lent.ends() == requeued(*lent.small)
    site.until_is(lent.why, {})


def _refuse_a_list(database: SlurmDatabase) -> None:
    database.rows["speech", "user_speech"].own = frozenset({"normal"})
    database.refuses = ("name=user_speech",)


def _refuse_a_limit(database: SlurmDatabase) -> None:
    name = borrowed_qos("speech")
    database.known[name] = replace(database.known[name], preempt_mode="cancel")
    database.refuses = (f"name={name} set",)


@pytest.mark.parametrize("refuse", [_refuse_a_list, _refuse_a_limit])
def test_what_slurm_refuses_of_one_tenant_lets_others_take_back(
    site: DaemonOnModel, refuse: Callable[[SlurmDatabase], None]
) -> None:
    lent = Lent(site)
    site.set_quota("speech", 0)
    site.wait(10)
    refuse(site.site.database)
    site.wait(20)
    job = lent.come_back()
    site.until(lambda: lent.is_running(job))
    assert lent.ends() == requeued(*lent.small)


def test_while_slurm_refuses_to_lower_a_limit_nobody_goes_from_below_it(
    site: DaemonOnModel,
) -> None:
    """Another of its jobs could start in place of each that ends."""
    lent = Lent(site)
    site.site.database.refuses = (f"name={borrowed_qos('lab')} set",)
    lent.come_back()
    site.until(site.ledger.recalls)
    site.always(lambda: not lent.ends(), GRACE_S / 2)


class _Hangs:
    """slurmctld, which takes no requeue."""

    def __init__(self) -> None:
        self.asked: list[frozenset[RunOfJob]] = []

    async def requeue(self, runs: Collection[RunOfJob]) -> Requeued:
        self.asked.append(frozenset(runs))
        await asyncio.sleep(10**6)
        raise AssertionError


@pytest.mark.parametrize("is_done", [False, True])
def test_a_daemon_that_is_killed_beside_the_requeue_loses_nothing(
    site: DaemonOnModel, monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    lent, hangs = Lent(site), _Hangs()
    requeue = site.slurm.requeue
    monkeypatch.setattr(site.slurm, "requeue", hangs.requeue)
    job = lent.come_back()
    site.until(lambda: hangs.asked)
    site.stop()
    monkeypatch.undo()
    if is_done:
        site.do(requeue(hangs.asked[0]))
    site.start()
    site.until(lambda: lent.is_running(job), GRACE_S / 2)
    assert lent.ends() == requeued(*lent.small)


def test_who_may_not_be_requeued_is_left_to_slurm(site: DaemonOnModel) -> None:
    """It costs a plan; the fewest of the others go."""
    lent = Lent(site, requeues=False, qos=borrowed_qos("lab"))
    job = lent.come_back()
    site.until(lambda: lent.is_running(job), GRACE_S)
    assert lent.ends() == requeued(lent.large)


def test_a_qos_that_announces_preemptions_is_left_to_slurm(site: DaemonOnModel) -> None:
    lent = Lent(site)
    known, name = site.site.database.known, borrowed_qos("lab")
    known[name] = replace(known[name], grace_s=20)
    job = lent.come_back()
    site.until(lambda: lent.is_running(job), GRACE_S)
    assert lent.ends() == {(lent.large, "PREEMPTED"): 1}


def test_nobody_goes_for_a_lender_that_no_longer_waits(
    site: DaemonOnModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld took no requeue while it waited."""
    lent = Lent(site)

    async def down(_: Collection[RunOfJob]) -> Requeued:
        asked.append(site.clock.passed_s)
        return Requeued()

    asked: list[float] = []
    monkeypatch.setattr(site.slurm, "requeue", down)
    job = lent.come_back()
    site.until(lambda: len(asked) > 1)
    # Not as soon as slurmctld has answered, milliseconds later.
    assert asked[1] - asked[0] > 0.5
    site.site.model.cancel(job)
    site.until_is(site.ledger.recalls, ())
    monkeypatch.undo()
    site.always(lambda: not lent.ends(), 2 * GRACE_S)


def test_a_look_during_a_slow_requeue_ends_nobody_in_place_of_who_is_gone(
    site: DaemonOnModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second job comes meanwhile. While all run, one run of three slices is the best for both."""
    lent = Lent(site)
    site.site.model.cancel(lent.large)
    third, three = lent.sbatch(SMALL), lent.sbatch({"1g.10gb": 3})
    site.until(lambda: lent.is_running(third) and lent.is_running(three))
    site.wait(10)
    requeue, jobs, slow_s = site.slurm.requeue, site.slurm.jobs, 3.0

    async def slow(runs: Collection[RunOfJob]) -> Requeued:
        asked.append(frozenset(runs))
        await asyncio.sleep(3 * slow_s)
        return await requeue(runs)

    async def slow_look() -> tuple[JobView, ...]:
        found = await jobs()
        await asyncio.sleep(slow_s)
        return found

    asked: list[frozenset[RunOfJob]] = []
    monkeypatch.setattr(site.slurm, "requeue", slow)
    monkeypatch.setattr(site.slurm, "jobs", slow_look)
    site.sbatch("lender", SMALL, minutes=50)
    site.until(lambda: asked)
    job = site.sbatch("lender", {"1g.10gb": 2}, minutes=50)
    for _ in range(3):
        site.wait(slow_s)
        site.daemon.state.acted.set()
    site.until(lambda: lent.is_running(job))
    assert lent.is_running(three)


def test_nobody_is_requeued_who_could_end_only_after_the_grace(
    site: DaemonOnModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm would preempt others besides, while the run still ends: it is left to Slurm."""
    lent, requeue = Lent(site, finishes=True), site.slurm.requeue
    began_s, kill_wait_s = site.clock.passed_s, site.site.model.kill_wait_s

    async def late(runs: Collection[RunOfJob]) -> Requeued:
        left_s = began_s + GRACE_S - site.clock.passed_s
        asked.append(left_s)
        return await requeue(runs) if left_s < kill_wait_s / 2 else Requeued()

    asked: list[float] = []
    monkeypatch.setattr(site.slurm, "requeue", late)
    job = lent.come_back()
    site.until(lambda: lent.is_running(job))
    assert lent.ends() == Counter({(lent.large, "PREEMPTED"): 1})
