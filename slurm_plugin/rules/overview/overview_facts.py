"""What the daemon knows when it is asked for an overview, and the reader for which it is made."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import Board, WholeBoard
from slicewise.cluster.language.jobs import ALLOTTED, JobTag, JobView, NodeView, is_resting
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import ServiceReport, ServiceView
from slicewise.cluster.rpc.overview_messages import MonthNow
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.quota.jobs import by_priority, is_managed
from slicewise.slurm_plugin.rules.quota.nodes import gpus_on_nodes
from slicewise.slurm_plugin.rules.quota.overcommitment import Overcommitment
from slicewise.slurm_plugin.rules.quota.standings import Standing
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Recall
from slicewise.slurm_plugin.rules.quota.waits import waits_of
from slicewise.slurm_plugin.rules.round.barred import BarredJob


class Reader(Protocol):
    """The user for whom an overview is made."""

    @property
    def user(self) -> str:
        """The user's name as Slurm writes it."""

    @property
    def tenants(self) -> frozenset[str] | None:
        """Tenants that the user may read; None is all: an operator."""

    def may_read(self, tenant: str) -> bool:
        """Whether the user may read everything of that tenant."""

    def may_see(self, job: JobView) -> bool:
        """Whether the user may see that job."""


@dataclass(frozen=True)
class SurveyedGpu:
    """A GPU as its node's last survey has it.

    Attributes:
        index: the driver's index on the node.
        places: where its instances lie, each with Slurm's index of it; None if Slurm can't give it.
            Of a GPU that is not cut, all of it, without a profile.
    """

    index: int
    memory_slices: int
    places: tuple[tuple[Placement, int | None], ...]


Seats = Mapping[str, Mapping[str, Sequence[JobView]]]
"""By node and GRES type: a job for each instance that it holds there."""


def seats_of(jobs: Iterable[JobView], partitions: frozenset[str]) -> Seats:
    """Seat the jobs of these partitions, those that started first at the front."""
    seats: dict[str, dict[str, list[JobView]]] = defaultdict(lambda: defaultdict(list))
    holding = (job for job in jobs if job.state in ALLOTTED and job.partition in partitions)
    for job in sorted(holding, key=lambda job: (job.start_s or 0, job.job_id)):
        for node, gpus in gpus_on_nodes(job):
            for gres_type, count in gpus.items():
                seats[node][gres_type] += [job] * count
    return seats


@dataclass(frozen=True)
class OverviewFacts:
    """Everything that an overview takes into account, as of the daemon's last look.

    Attributes:
        now_s: Unix seconds.
        observed_s, complete: see ``ViewAnswer``.
        launcher_silent_s, ledger_silent_s: seconds since each was heard of.
        unadmitted: jobs with GPUs that slurmctld took without slicewise.lua.
        seats: which jobs hold GPUs where.
        reports: what the launcher reported lately, by tenant and service.
        kept_back: slots that the launcher wants and quota keeps from starting, by array job id.
        policy, standings, left_millislice_s: as in force in Slurm.
        resets_s: when the budget of a tenant starts again, in Unix seconds; None means never.
        partitions: the managed partitions.
        costs, models, boards, whole_boards: by GRES type.
        surveyed: GPUs by node; nodes that were not surveyed are left out.
        indices: GPUs that jobs have, by job id and node, as ``SlurmReader.devices`` has them, of
            the jobs of which this is known.
        grace_s: seconds within which a lender has recalled quota back.
        overcommitment: how quotas exceed the cluster; None if they do not.
        loans, recalls: as the ledger had them at the last round.
        boards_mw: what each board with a meter draws, in milliwatts, by node.
        money_budgets, month: by tariffs and meters, as of the last ten minutes.
        barred: jobs that lack quota and are lent none, by job id.
    """

    now_s: float
    cluster: str
    mode: str
    is_uninstalled: bool
    observed_s: float
    complete: bool
    launcher_silent_s: float
    ledger_silent_s: float
    unadmitted: int
    jobs: tuple[JobView, ...] = field(hash=False)
    seats: Seats = field(hash=False)
    nodes: tuple[NodeView, ...] = field(hash=False)
    services: tuple[ServiceView, ...] = field(hash=False)
    reports: Mapping[tuple[str, str], ServiceReport] = field(hash=False)
    kept_back: Mapping[int, frozenset[int]] = field(hash=False)
    policy: Policy = field(hash=False)
    standings: Mapping[str, Standing] = field(hash=False)
    left_millislice_s: Mapping[str, int] = field(hash=False)
    resets_s: Mapping[str, int | None] = field(hash=False)
    partitions: frozenset[str]
    costs: Mapping[str, Millislices] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    boards: Mapping[str, Board] = field(hash=False)
    whole_boards: Mapping[str, WholeBoard] = field(hash=False)
    grace_s: int
    surveyed: Mapping[str, tuple[SurveyedGpu, ...]] = field(default_factory=dict, hash=False)
    indices: Mapping[int, Mapping[str, frozenset[int]]] = field(default_factory=dict, hash=False)
    overcommitment: Overcommitment | None = None
    barred: Mapping[int, BarredJob] = field(default_factory=dict, hash=False)
    loans: tuple[Loan, ...] = ()
    recalls: tuple[Recall, ...] = ()
    boards_mw: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    money_budgets: tuple[MoneyBudgetStatus, ...] = ()
    month: MonthNow | None = None

    @cached_property
    def waiting(self) -> tuple[JobView, ...]:
        """Jobs of managed partitions that could start if there were room, in Slurm's order."""
        return tuple(
            job
            for job in by_priority(self.jobs)
            if waits_of(job).could_start
            and not is_resting(job)
            and is_managed(job, self.partitions)
            and self.cost(job)
        )

    def cost(self, job: JobView) -> int:
        """Millislices of a job, or of all tasks that share its record."""
        return job_cost(job, self.costs) * job.tasks


def service_of(job: JobView) -> str:
    """``TENANT/NAME`` of the service that the job is a replica of; "" if it is of none."""
    tag = JobTag.find(job.admin_comment)
    return f"{tag.tenant}/{tag.service}" if tag is not None and tag.service is not None else ""
