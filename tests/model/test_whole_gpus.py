"""Tests whose jobs start on idle whole GPUs, from the daemon's loans to what runs, on the model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from model_daemon import SETTINGS, DaemonOnModel
from model_slurm import PARTITION

from simulation.cluster import SimulatedNode
from slurm_plugin.common.qos_names import borrowed_qos, qos_name
from slurm_plugin.quota.types import MAX_NOMINAL_MILLISLICES

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
