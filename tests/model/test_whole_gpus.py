"""Tests whose jobs start on idle whole GPUs, from the daemon's loans to what runs, on the model."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import model_daemon
import pytest
from model_daemon import SETTINGS, DaemonOnModel
from model_slurm import PARTITION

from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.cluster import SimulatedNode
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.quota.types import MAX_NOMINAL_MILLISLICES
from slicewise.slurm_plugin.rules.round.world import TURN_S

WHOLE, LARGE, SMALL = {"3g.40gb": 2}, {"3g.40gb": 1}, {"1g.10gb": 1}
FREELY = {
    "borrowing_limit_millislices": MAX_NOMINAL_MILLISLICES,
    "lending_limit_millislices": MAX_NOMINAL_MILLISLICES,
}


@contextmanager
def site_of(quotas: Mapping[str, float], *gpus: Mapping[str, int]) -> Iterator[DaemonOnModel]:
    """Tenants of so many slices, which lend and borrow freely, and nodes with these GPUs."""
    nodes = [SimulatedNode(f"n{n}", frozenset({PARTITION}), one) for n, one in enumerate(gpus)]
    with DaemonOnModel(dict.fromkeys(quotas, "root"), SETTINGS, nodes).running() as site:
        for name, slices in quotas.items():
            site.set_quota(name, slices, **FREELY)
        yield site


def changes(site: DaemonOnModel, seconds: int) -> int:
    """How often a limit of a QOS is another one, second by second."""
    found, before = 0, site.site.limits()
    for _ in range(seconds):
        site.wait(1)
        now = site.site.limits()
        found += sum(now[name] != before.get(name) for name in now)
        before = now
    return found


def test_who_waits_for_a_node_that_is_away_keeps_no_quota() -> None:
    """Each has a job for the only whole GPU, and one of its own for which only a node that is down
    has instances. Neither guaranteed quota pays for the whole GPU, so none started, for ever.
    """
    with site_of({"lab": 3.5, "other": 3.5}, WHOLE, SMALL) as site:
        site.site.model.fail_node("n1")
        for name in ("lab", "other"):
            site.sbatch(name, SMALL, qos=qos_name(name), minutes=900)
        site.wait(30)
        for name in ("lab", "other"):
            site.sbatch(name, WHOLE, qos=borrowed_qos(name), minutes=60, run_s=3600)
        site.until(lambda: site.runs("lab") + site.runs("other"), 120)
        # Slurm says by turns that quota and the node are lacking: no loan flaps for that.
        assert changes(site, 1800) <= 30
        site.site.model.restore_node("n1")
        (lender,) = (name for name in ("lab", "other") if not site.runs(name))
        site.until(lambda: site.runs(lender)[qos_name(lender)], 2 * SETTINGS.lending.grace_s)


def test_a_job_that_its_tenants_own_borrowed_run_keeps_out_waits_for_a_loan() -> None:
    """The run holds the guaranteed quota, so nothing starts in the own QOS before it has ended."""
    with site_of({"lab": 3.5, "lender": 3.5}, WHOLE) as site:
        site.sbatch("lab", LARGE, qos=borrowed_qos("lab"), minutes=60, run_s=1200)
        site.until(lambda: site.runs("lab"))
        site.sbatch("lender", LARGE, qos=qos_name("lender"), minutes=600)
        site.until(lambda: site.runs("lender"))
        site.sbatch("lab", LARGE, minutes=10)

        def waits_in() -> set[str]:
            return {job.qos for job in site.jobs("lab") if not job.nodes}

        site.until_is(waits_in, {borrowed_qos("lab")}, 30)
        site.until_is(lambda: len(site.jobs("lab")), 1, 1200)
        site.until_is(lambda: site.runs("lab").total(), 1, 60)


def test_a_loan_starts_what_waits_behind_a_job_whose_gpu_is_busy() -> None:
    """All that the tenant may borrow would go to the first job, which can't start."""
    with site_of({"lab": 1, "lender": 5.5}, {"3g.40gb": 1}, {"1g.10gb": 3}) as site:
        site.set_quota("lab", 1, borrowing_limit_millislices=Millislices(3500))
        site.sbatch("lender", LARGE, qos=qos_name("lender"), minutes=600)
        site.sbatch("lab", SMALL, minutes=600)
        site.until(lambda: site.runs("lab") + site.runs("lender"))
        site.sbatch("lab", LARGE, minutes=10)
        site.wait(30)
        behind = site.sbatch("lab", SMALL, minutes=10, held=True)
        site.update(behind, qos=qos_name("lab"))
        site.site.model.release(behind)
        site.until_is(lambda: site.runs("lab").total(), 2, 120)


@pytest.mark.slow
def test_equal_tenants_take_turns_on_whole_gpus() -> None:
    """Two of five come a minute after the others have taken all three GPUs; each could have had
    four turns.
    """
    names, minutes = "abcde", 10
    quotas = dict.fromkeys(names, 4.2)
    with site_of(quotas, WHOLE, WHOLE, WHOLE) as site:
        for late in ("abc", "de"):
            for name in late:
                for _ in range(8):
                    site.sbatch(name, WHOLE, minutes=minutes, run_s=60 * minutes - 20)
            site.wait(60)
        site.wait(4 * len(names) / 3 * 60 * minutes)
        site.site.model  # noqa: B018 -- takes note of the runs that have ended
        had = Counter(one.run.account for one in site.site.runs)
    assert had.total() >= 19
    assert sum(had.values()) ** 2 >= 0.98 * len(names) * sum(n * n for n in had.values())


@pytest.mark.slow
def test_a_large_job_that_is_due_starts_beside_small_ones_that_come_and_go() -> None:
    """It takes all of the node, which is beyond its tenant's share; small jobs always waited for
    what became free.
    """
    with site_of({"lab": 0, "other": 0, "lender": 7}, {"1g.10gb": 7}) as site:
        for n in range(40):
            run_s = 200 + 131 * n % 700
            site.sbatch("other", SMALL, minutes=15, run_s=run_s)
        site.wait(60)
        site.sbatch("lab", {"1g.10gb": 7}, minutes=10)
        site.until(lambda: site.runs("lab"), TURN_S + 900 + 120)


def test_quota_of_a_guaranteed_job_whose_gpu_is_busy_starts_another_meanwhile() -> None:
    """The job has its quota back once its GPU is free, within the grace; the other one runs on."""
    with site_of({"lab": 3.5, "other": 3.5, "third": 1}, WHOLE, SMALL) as site:
        site.sbatch("third", SMALL, qos=qos_name("third"), minutes=30, run_s=1200)
        site.until(lambda: site.runs("third"))
        site.sbatch("lab", SMALL, qos=qos_name("lab"), minutes=30)
        site.wait(30)
        site.sbatch("other", WHOLE, qos=borrowed_qos("other"), minutes=60)
        site.until(lambda: site.runs("other"), 60)
        assert changes(site, 600) == 0
        site.until(lambda: not site.jobs("third"), 1200)
        site.until(lambda: site.runs("lab"), SETTINGS.lending.grace_s)
        assert site.runs("other")


def test_tenants_whose_jobs_take_seconds_take_turns() -> None:
    """In whole millislices such a job is nothing of a week's use. Who comes last has as many of the
    next turns as the others.
    """
    names, turns = "abc", 5
    with site_of(dict.fromkeys(names, 1.2), LARGE) as site:
        for late in ("ab", "c"):
            for name in late:
                for _ in range(3 * turns):
                    site.sbatch(name, LARGE, minutes=1, run_s=5)
            site.wait(20)
        waited = {name: len(site.jobs(name)) for name in names}

        def had() -> list[int]:
            return [waited[name] - len(site.jobs(name)) for name in names]

        site.until(lambda: sum(had()) >= turns * len(names), 1200)
        assert min(had()) >= turns - 1, had()


def test_who_has_just_got_quota_is_not_passed_by_who_has_had_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a partition whose first job waits for GPUs only backfill looks at the others. Until then
    Slurm says that the large job lacks quota, and one of its GPUs is free.
    """
    by_default = replace(model_daemon.QUICK, interval_s=2.0, backfill_s=30.0)
    monkeypatch.setattr(model_daemon, "QUICK", by_default)
    quotas = {"first": 14.0, "large": 7.0, "small": 3.5, "runs": 3.5}
    fewer = ({"1g.10gb": 6},) * 3
    with site_of(quotas, WHOLE, {"1g.10gb": 7}, *fewer) as site:
        site.sbatch("runs", LARGE, minutes=3, run_s=150)
        site.sbatch("first", {"1g.10gb": 7}, minutes=900)
        site.until(lambda: site.runs("runs") and site.runs("first"))
        site.sbatch("first", {"1g.10gb": 7}, minutes=900)
        site.sbatch("large", WHOLE, qos=borrowed_qos("large"), minutes=900)
        site.set_quota("large", 0, **FREELY)
        site.wait(70)
        site.set_quota("large", 7, **FREELY)
        low = ("#SLICEWISE class=low",)
        site.sbatch("small", LARGE, qos=borrowed_qos("small"), minutes=900, directives=low)
        site.until(lambda: site.runs("large") + site.runs("small"))
        assert site.runs("large").total() == 1
