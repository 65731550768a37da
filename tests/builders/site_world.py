"""Small sites for tests of the simulator: a cluster, tenants, and jobs of a made-up past."""

from collections.abc import Mapping

from builders.tenants import free_tenant, policy_of
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.cluster import Scheduling, SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.runs.experiment import Experiment
from slicewise.simulation.rules.site.past_requests import Replayable, replays
from slicewise.simulation.rules.site.plans import SitePlan, SlicewisePlan, SlurmPlan
from slicewise.simulation.rules.site.records import SiteRecord
from slicewise.simulation.rules.site.simulated_site import Site, SiteTimes
from slicewise.slurm_plugin.rules.quota.calendar import Window
from slicewise.slurm_plugin.rules.quota.types import Policy

BEGIN_S = 1_700_000_000.0
GPU = 7000
"""Millislices of a GPU."""
MUCH = Millislices(10**6)
SETTINGS = Settings.model_validate(
    {
        "cluster": {"name": "test", "partitions": ["gpu"]},
        "gpus": {"A100-SXM4-80GB": {"whole": ["a100"]}},
    }
)
COSTS = SETTINGS.costs
ALONE = SlurmPlan("Slurm alone")
DAY_S = 86_400.0


def cluster(nodes: int = 2, gpus: int = 4, **more: object) -> SimulatedCluster:
    """Nodes n0, n1, ... with so many GPUs each."""
    each = tuple(SimulatedNode(f"n{i}", frozenset({"gpu"}), {"a100": gpus}) for i in range(nodes))
    scheduling = Scheduling(interval_s=0.0, start_s=0.0, complete_s=0.0)
    given = {"name": "test", "nodes": each, "scheduling": scheduling} | more
    return SimulatedCluster(**given)  # type: ignore[arg-type]


def tenants(**gpus: int) -> Policy:
    """Tenants with so many guaranteed GPUs, which lend and borrow without a limit."""
    return policy_of(*(free_tenant(name, count * GPU) for name, count in gpus.items()))


def slicewise(policy: Policy, *windows: Window, settings: Settings = SETTINGS) -> SlicewisePlan:
    """Slicewise with these quotas."""
    return SlicewisePlan("Slicewise", settings, policy, windows)


def past(
    account: str,
    gpus: int | Mapping[str, int] = 1,
    at_s: float = 0.0,
    run_s: float = 600.0,
    **more: object,
) -> HistoryJob:
    """A job that came so many seconds after the beginning."""
    given: dict[str, object] = {
        "job_id": 1,
        "user": f"user_{account}",
        "account": account,
        "partition": "gpu",
        "qos": "normal",
        "submit_s": BEGIN_S + at_s,
        "run_s": run_s,
        "time_limit_s": int(run_s) + 60,
        "gpus": {"a100": gpus} if isinstance(gpus, int) else gpus,
    }
    return HistoryJob(**(given | more))  # type: ignore[arg-type]


def simulated(
    plan: SitePlan,
    *jobs: HistoryJob,
    on: SimulatedCluster | None = None,
    last_s: float = DAY_S,
    begin_s: float = 0.0,
    costs: Mapping[str, Millislices] = COSTS,
) -> SiteRecord:
    """What the site leaves behind."""
    on = on or cluster()
    times = SiteTimes(BEGIN_S + begin_s, BEGIN_S + last_s, BEGIN_S + last_s)
    can = Replayable(on, costs)
    found = replays(enumerate(jobs), can, begin_s=times.begin_s, end_s=times.last_s)
    return Site(on, plan, costs, found, times).run()


def starts(record: SiteRecord) -> Mapping[int, float | None]:
    """Seconds after the beginning at which each job first started, by its number."""
    return {
        job.number: round(job.runs[0].start_s - BEGIN_S) if job.runs else None
        for job in record.jobs
    }


def experiment(*jobs: HistoryJob, **more: object) -> Experiment:
    """An experiment with these jobs."""
    given: dict[str, object] = {
        "cluster": cluster(),
        "costs": COSTS,
        "jobs": jobs,
        "present": ALONE,
        "warm_up_s": 0.0,
    }
    return Experiment(**(given | more))  # type: ignore[arg-type]
