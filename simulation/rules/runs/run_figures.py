"""The figures of simulated runs: what a report shows, as values that nothing changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ReplayedTenant:
    """One tenant's jobs in one run. Waits are from the submission to the (first) start.

    Attributes:
        jobs: jobs that came while the figures were counted.
        started: how many of them started.
        wait_mean_s, wait_p50_s, wait_p99_s, wait_longest_s: of all of them; one that never started
            has waited until the end.
        held_millislice_s: what the tenant's jobs held.
        borrowed_millislice_s: the part of it that was not the tenant's own guarantee.
        lent_millislice_s: what others held of the tenant's guarantee.
        guaranteed_millislices: the tenant's guarantee, without the tenants below it.
        own_waited_s: the longest wait of a job within the guarantee.
        late_jobs: jobs within the guarantee that waited longer than the grace of a recall.
    """

    tenant: str
    jobs: int
    started: int
    wait_mean_s: float
    wait_p50_s: float
    wait_p99_s: float
    wait_longest_s: float
    held_millislice_s: float
    borrowed_millislice_s: float
    lent_millislice_s: float
    guaranteed_millislices: int
    own_waited_s: float
    late_jobs: int


@dataclass(frozen=True)
class ClusterSample:
    """The cluster at one moment.

    Attributes:
        held_millislices: what jobs held.
        lent_millislices: the part of it that was lent.
        waiting_millislices, waiting_jobs: what jobs waited for, and how many.
    """

    at_s: float
    held_millislices: int
    lent_millislices: int
    waiting_millislices: int
    waiting_jobs: int


@dataclass(frozen=True)
class ReplayedService:
    """One service in one run.

    Attributes:
        requests: requests that came.
        attainment: share of them that were answered within the service's aim, 0 to 1.
        wait_p99_s: 99th percentile of their waits.
        slice_s: slice-seconds that replicas held; in a pool, that it used of all their replicas.
        changes: how often a replica was started or stopped.
        lost: requests whose replica ended while it worked on them.
        loads: how often a replica that ran loaded its model, in a pool.
    """

    service: str
    requests: int
    attainment: float
    wait_p99_s: float
    slice_s: float
    changes: int
    lost: int = 0
    loads: int = 0


@dataclass(frozen=True)
class RepartitionFigures:
    """GPUs that were cut again in one run.

    Attributes:
        done: how many were.
        in_vain: how many were to be and stayed as they were.
        lost_slice_s: slice-seconds that nothing held on their nodes while nothing could start.
    """

    done: int
    in_vain: int
    lost_slice_s: float


@dataclass(frozen=True)
class FailureFigures:
    """Failures of nodes in one run.

    Attributes:
        failures: how many nodes failed; one that failed twice counts twice.
        runs_broken: runs of jobs and replicas that ended by that; what may be requeued waits again.
        broken_slice_s: slice-seconds that these runs had held in vain.
        down_slice_s: slice-seconds of nodes that were down.
    """

    failures: int
    runs_broken: int
    broken_slice_s: float
    down_slice_s: float


@dataclass(frozen=True)
class Figures:
    """One run of one policy.

    Attributes:
        name: the policy's name.
        start_s, end_s: Unix seconds between which the figures were counted (after the warm-up).
        utilisation: share of the capacity that jobs and replicas held, 0 to 1.
        idle_wanted_share: share of the idle capacity that waiting jobs asked for, 0 to 1.
        jain: Jain's index of the tenants' slowdowns; 1 is the same slowdown for all.
        late_jobs: sum of the tenants', over all parts of the time.
        refused: jobs that admission refused; they are in no other figure, and wait for nothing.
        steps: the cluster over time, at even distances.
        repartitions: None where GPUs are never cut again.
        failures: None where no node ever fails.
    """

    name: str
    start_s: float
    end_s: float
    capacity_millislices: int
    jobs: int
    started: int
    utilisation: float
    idle_wanted_share: float
    wait_mean_s: float
    wait_p50_s: float
    wait_p99_s: float
    jain: float
    late_jobs: int
    tenants: tuple[ReplayedTenant, ...] = ()
    steps: tuple[ClusterSample, ...] = ()
    services: tuple[ReplayedService, ...] = ()
    refused: int = 0
    repartitions: RepartitionFigures | None = None
    failures: FailureFigures | None = None


@dataclass(frozen=True)
class Estimate:
    """A figure over the parts: the mean of theirs, and the bounds of its 95 % interval.

    A count, such as ``late_jobs``, is the mean of the parts' counts, where ``Figures`` has their
    sum. With one part both bounds are the mean.
    """

    mean: float
    low: float
    high: float


ESTIMATED = (
    "utilisation",
    "idle_wanted_share",
    "wait_mean_s",
    "wait_p50_s",
    "wait_p99_s",
    "jain",
    "late_jobs",
    "refused",
)
"""The fields of Figures that are estimated: the keys of ``SimulationResult.estimates``."""
ESTIMATED_OF_SERVICES = ("attainment", "wait_p99_s")
"""The same of ReplayedService, by service in ``SimulationResult.service_estimates``."""


@dataclass(frozen=True)
class SelfCheck:
    """The replay of the site's present policy beside what really happened.

    Attributes:
        jobs: jobs that were compared: those that started in both.
        never_started: jobs that really started, and in the replay never, or were refused; no other
            figure of this has them.
        wait_error_s: median of the absolute differences of their waits.
        start_order: Kendall's tau of the two orders of starts, between -1 and 1. Near 1 wherever
            waits are short beside the time between jobs.
        queue_order: of the pairs of jobs of which the second came while the first really waited,
            the share that started in the same order, 0 to 1; None if there is no such pair.
    """

    jobs: int
    wait_error_s: float
    wait_mean_of_history_s: float
    wait_mean_s: float
    wait_p99_of_history_s: float
    wait_p99_s: float
    utilisation_of_history: float
    utilisation: float
    start_order: float
    never_started: int
    queue_order: float | None = None


@dataclass(frozen=True)
class SimulationResult:
    """What ``slicewise simulate`` found.

    Attributes:
        cluster: its name.
        seed: of every drawn number; the same inputs and seed give the same figures.
        offsets: of how many parts of the time the estimates are means.
        self_check: None if no job can be compared.
        unchecked: why none can, as the beginning of a sentence; "" if some can.
        present: the present policy, over the whole history.
        changed: the changed policy over the same history; None if none was given.
        estimates, changed_estimates: by the fields of Figures in ESTIMATED; of counts a mean by
            part.
        difference_estimates: of what the change adds to each, part by part: how much there is to do
            differs from part to part, and that is no uncertainty of the change.
        service_estimates: of the present policy's services, over the parts in which requests came;
            nothing of a service for which fewer than two are such.
        service_difference_estimates: of what the change adds to each.
        seconds: how long the simulation took.
        notes: what was left out of the replay and why, as sentences.
    """

    cluster: str
    seed: int
    offsets: int
    self_check: SelfCheck | None
    present: Figures
    changed: Figures | None
    estimates: Mapping[str, Estimate] = field(default_factory=dict, hash=False)
    changed_estimates: Mapping[str, Estimate] = field(default_factory=dict, hash=False)
    difference_estimates: Mapping[str, Estimate] = field(default_factory=dict, hash=False)
    service_estimates: Mapping[str, Mapping[str, Estimate]] = field(
        default_factory=dict, hash=False
    )
    service_difference_estimates: Mapping[str, Mapping[str, Estimate]] = field(
        default_factory=dict, hash=False
    )
    unchecked: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
