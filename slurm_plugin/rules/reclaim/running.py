"""A run that holds what could be taken back."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Self

from slicewise.cluster.language.jobs import JobView, RunOfJob
from slicewise.slurm_plugin.rules.common.qos_names import holder_of
from slicewise.slurm_plugin.rules.quota.jobs import Shape, shape_of
from slicewise.slurm_plugin.rules.quota.nodes import gpus_on_nodes

_BATCH = 10**9


@dataclass(frozen=True)
class Running:
    """A run on borrowed quota; in any QOS also one that is completing, or of a tenant beyond a cap.

    Attributes:
        start_s: Unix seconds; None while it is only about to start.
        is_replica: whether it is a service's replica: another replica can serve its requests; else
            it is a batch job, which ends only where replicas do not suffice.
        instances: GPU instances by node and type; without nodes that Slurm can't use.
        may_requeue: whether it is a batch job that Slicewise may requeue (``requeueable``); all
            others are left to Slurm's preemption.
        total: GPU instances by type on all of these nodes.
    """

    job_id: int
    tenant: str
    cost_millislices: int
    start_s: int | None
    is_replica: bool
    instances: Mapping[str, Mapping[str, int]] = field(hash=False)
    priority: int = 0
    may_requeue: bool = False
    total: Shape = field(init=False)

    def __post_init__(self) -> None:
        """Sum up the instances: a choice of victims asks for them many times."""
        object.__setattr__(self, "total", shape_of(_total(self.instances)))

    @classmethod
    def of(
        cls,
        job: JobView,
        cost: int,
        usable: Collection[str],
        *,
        is_replica: bool,
        may_requeue: bool = False,
    ) -> Self:
        """The run of a job that holds ``cost`` millislices; ``usable`` are the nodes that count."""
        return cls(
            job_id=job.job_id,
            tenant=holder_of(job),
            cost_millislices=cost,
            start_s=job.start_s,
            is_replica=is_replica,
            instances={node: gpus for node, gpus in gpus_on_nodes(job) if node in usable},
            priority=job.priority,
            may_requeue=may_requeue,
        )

    @property
    def run(self) -> RunOfJob:
        """Which run of the job it is."""
        return self.job_id, self.start_s

    @property
    def weight(self) -> int:
        """Its cost in comparisons: one batch job outweighs all replicas together."""
        return self.cost_millislices if self.is_replica else self.cost_millislices * _BATCH

    def age_s(self, now_s: float) -> float:
        """Seconds since its start."""
        return 0.0 if self.start_s is None else now_s - self.start_s

    def rank(self, now_s: float) -> tuple[float, float, int]:
        """Sort key among runs of one tenant: who loses the least work goes first, then the
        youngest.
        """
        age_s = self.age_s(now_s)
        lost = 0.0 if self.is_replica else age_s * self.cost_millislices
        return lost, age_s, self.job_id


def _total(instances: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    """GPU instances by type on all nodes; nearly every run has one node only."""
    if len(instances) == 1:
        return next(iter(instances.values()))
    total: Counter[str] = Counter()
    for instance in instances.values():
        total.update(instance)
    return total
