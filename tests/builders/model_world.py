"""Small clusters and jobs for tests of the model of Slurm."""

from collections.abc import Mapping
from math import inf

from slicewise.simulation.rules.cluster import Scheduling, SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest
from slicewise.simulation.rules.slurm_model.model import SlurmModel

START_S = 1_700_000_000.0
COSTS = {"a100": 1000, "1g.10gb": 1000, "3g.40gb": 3500}
QUICK = Scheduling(interval_s=0.0, start_s=0.0, complete_s=0.0)


def model(
    *gpus: Mapping[str, int],
    scheduling: Scheduling = QUICK,
    accounts: Mapping[str, str] | None = None,
    max_time_s: Mapping[str, int] | None = None,
    default_time_s: Mapping[str, int] | None = None,
    cpus: int = 0,
) -> SlurmModel:
    """A model with nodes n0, n1, ..., which have these GPUs, and CPUs if there are any."""
    nodes = tuple(
        SimulatedNode(f"n{i}", frozenset({"gpu"}), one, cpus) for i, one in enumerate(gpus)
    )
    times_s = (max_time_s or {}, default_time_s or {})
    cluster = SimulatedCluster("test", nodes, scheduling, accounts or {}, {}, *times_s)
    return SlurmModel(cluster, start_s=START_S, costs=COSTS)


def job(
    gpus: int | Mapping[str, int] = 1,
    run_s: float = inf,
    limit_s: int | None = 3600,
    **more: object,
) -> ModelRequest:
    """A job of one node with so many GPUs."""
    asked = {"a100": gpus} if isinstance(gpus, int) else gpus
    given = {"user": "ann", "uid": 1001, "account": "a", "partition": "gpu", "qos": "own"} | more
    return ModelRequest(gpus=asked, run_s=run_s, time_limit_s=limit_s, **given)  # type: ignore[arg-type]


def after(model: SlurmModel, seconds: float) -> None:
    """Let so many seconds pass."""
    model.advance(model.now_s + seconds)


def states(model: SlurmModel) -> dict[str, tuple[str, str]]:
    """State and reason of each job or task, by the name that people use."""
    return {one.task: (str(one.state), one.reason) for one in model.jobs}


def started(model: SlurmModel) -> dict[str, int]:
    """Seconds after the beginning at which each job or task started."""
    return {one.task: one.start_s - int(START_S) for one in model.jobs if one.start_s is not None}
