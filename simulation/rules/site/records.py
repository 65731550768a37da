"""What a simulated site leaves behind: which jobs waited and ran, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from slicewise.simulation.rules.services.request_figures import ServiceRecord
from slicewise.simulation.rules.site.past_requests import Replay


@dataclass(frozen=True)
class ReplayedRun:
    """One run of a job; ``end_s`` is None if it still ran when the simulation stopped.

    Attributes:
        is_on_loan: whether it ran in a borrowed QOS of Slicewise.
    """

    start_s: float
    end_s: float | None
    is_on_loan: bool = False


@dataclass(frozen=True)
class ReplayedJob:
    """A job of the history, as the simulated Slurm ran it.

    Attributes:
        number: its place in the history; -1 for what ran or waited already at the beginning.
        tenant: the account that was charged.
        runs: in order; several if it was requeued.
        run_s: seconds that it runs if nothing ends it.
        given_up_s: when it was cancelled while it waited; None if it was not.
        waits_again: whether it waited after its last run when the simulation stopped.
        gpus: GPU instances by type of all its nodes.
    """

    number: int
    tenant: str
    cost_millislices: int
    submit_s: float
    run_s: float
    runs: tuple[ReplayedRun, ...] = ()
    given_up_s: float | None = None
    waits_again: bool = False
    gpus: Mapping[str, int] = field(default_factory=dict, hash=False)


def replayed(
    job: Replay,
    ended: Sequence[ReplayedRun],
    running: ReplayedRun | None,
    given_up_s: float | None,
    *,
    waits: bool,
) -> ReplayedJob:
    """Describe a job by its runs that ended, the one that goes on, and whether it waits now."""
    runs = tuple(ended)
    if running is not None:
        # Slurm shows whole seconds.
        runs = (*runs, replace(running, start_s=max(job.at_s, running.start_s)))
    return ReplayedJob(
        number=job.number,
        tenant=job.request.account,
        cost_millislices=job.cost_millislices,
        submit_s=job.at_s,
        run_s=job.request.run_s,
        runs=runs,
        given_up_s=given_up_s,
        waits_again=waits and bool(runs),
        gpus={kind: n * job.request.nodes for kind, n in job.request.gpus.items()},
    )


def replica(tenant: str, cost_millislices: int, run: ReplayedRun) -> ReplayedJob:
    """Describe one run of a service's replica, as a job that no history has and that never waited.

    Its slot waits for requests, mostly, and not for slices.
    """
    return ReplayedJob(-1, tenant, cost_millislices, run.start_s, inf, (run,))


@dataclass(frozen=True)
class SimulatedRepartition:
    """A GPU that was cut again, or was to be.

    Attributes:
        begin_s, end_s: from when to when nothing could start on its node.
        lost_millislice_s: what nothing held on the node meanwhile.
        is_done: whether it was cut; if not, it stayed as it was.
    """

    begin_s: float
    end_s: float
    node: str
    lost_millislice_s: float
    is_done: bool


@dataclass(frozen=True)
class DownNode:
    """A node that was down between two Unix seconds, and what it has."""

    down_s: float
    up_s: float
    cost_millislices: int


@dataclass(frozen=True)
class BrokenRun:
    """A run that ended because its node failed, and what of it was in vain."""

    end_s: float
    lost_millislice_s: float


@dataclass(frozen=True)
class SiteRecord:
    """What one simulation of a site left behind.

    Attributes:
        begin_s, stopped_s: Unix seconds between which it was simulated.
        refused: the numbers of jobs that admission refused, with the error's code.
        rounds: rounds of quotas.
        services: what became of the services' requests.
        replicas: the runs of their replicas, each as a job of its own.
        repartitions: None where GPUs are never cut again.
        down, broken: the failures of nodes, and the runs that they ended; None where none fails.
    """

    begin_s: float
    stopped_s: float
    jobs: tuple[ReplayedJob, ...]
    refused: tuple[tuple[int, str], ...] = ()
    rounds: int = 0
    services: tuple[ServiceRecord, ...] = ()
    replicas: tuple[ReplayedJob, ...] = ()
    repartitions: tuple[SimulatedRepartition, ...] | None = None
    down: tuple[DownNode, ...] | None = None
    broken: tuple[BrokenRun, ...] = ()
