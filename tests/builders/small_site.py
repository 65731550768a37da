"""A small site to simulate: two nodes of four GPUs, two tenants, five days of jobs."""

from builders.settings import site_settings
from builders.tenants import tenant
from slicewise.simulation.cli.inputs import SiteInputs
from slicewise.simulation.rules.cluster import SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.history.jobs import HistoryJob, JobHistory
from slicewise.simulation.rules.runs.experiment import Experiment
from slicewise.simulation.rules.site.plans import SlicewisePlan
from slicewise.simulation.rules.snapshot.site import SiteDescription, untouched_ledger
from slicewise.slurm_plugin.rules.quota.calendar_times import moment

START_S, HOUR_S = 1_790_812_800, 3600  # 2026-10-01 in UTC.
SETTINGS = site_settings(types=(), whole=["a100"], name="lab")
CLUSTER = SimulatedCluster(
    "lab",
    tuple(SimulatedNode(f"gpu{number}", frozenset({"gpu"}), {"a100": 4}) for number in (1, 2)),
    accounts={"vision": "root", "nlp": "root"},
)
TENANTS = {name: tenant(name, 28_000) for name in ("vision", "nlp")}


def job(number: int, account: str) -> HistoryJob:
    """One of those that come each 90 minutes; vision's are long, and so wait for each other."""
    submit_s = START_S + number * 1.5 * HOUR_S
    return HistoryJob(
        job_id=number,
        user=f"user{number % 3}",
        account=account,
        partition="gpu",
        qos="",
        submit_s=submit_s,
        run_s=HOUR_S if account == "nlp" else 10 * HOUR_S,
        time_limit_s=12 * HOUR_S,
        gpus={"a100": 1},
        started_s=submit_s + 60,
    )


JOBS = tuple(job(number, "nlp" if number % 3 == 0 else "vision") for number in range(80))


EXPERIMENT = Experiment(
    CLUSTER,
    SETTINGS.costs,
    JOBS,
    SlicewisePlan("present", SETTINGS, TENANTS),
    start_s=START_S,
    offsets=2,
)
"""What becomes of these jobs under the quotas of ``TENANTS``."""

PAST = JobHistory(JOBS)


def site(history: JobHistory | None = PAST) -> SiteInputs:
    """The site, as a cluster file describes it."""
    ledger = untouched_ledger(TENANTS, moment(0.0, "UTC"))
    return SiteInputs(SiteDescription(0, CLUSTER, SETTINGS, ledger), history)
