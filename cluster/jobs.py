"""What Slurm says of jobs, nodes, steps and past runs; the tag that ties a job to Slicewise."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Literal

from cluster.gres import gpu_types_of_tres


class JobState(StrEnum):
    """The base states of Slurm that matter here; every other one, and one that can't be read, is
    OTHER.
    """

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    ENDED = "ENDED"
    """COMPLETED, CANCELLED, FAILED, TIMEOUT, NODE_FAIL, PREEMPTED, ..."""
    OTHER = "OTHER"


ALLOTTED = frozenset(
    {
        JobState.CONFIGURING,
        JobState.RUNNING,
        JobState.SUSPENDED,
        JobState.COMPLETING,
        JobState.OTHER,
    }
)
"""States in which a job holds its GPUs, or may hold them: nobody else gets them meanwhile."""


_ESSENTIAL = frozenset({"state", "tres", "start_s", "task_index", "array_job_id", "uid"})


@dataclass(frozen=True)
class JobView:
    """One record of ``scontrol show job -d``: a job, one task of an array, or its untouched rest.

    Attributes:
        job_id: Slurm's own number of this record (a split array task has its own).
        array_job_id: None for a job that is no array.
        task_index: None for a job, and for the record of the untouched tasks.
        untouched: indices of the array's tasks that nothing has touched yet.
        held: pending with priority 0.
        reason: Slurm's own word, such as ``JobHeldAdmin`` or ``QOSGrpBilling``.
        tres: of the allocation, or of the request while pending: ``{"gres/gpu:1g.10gb": "1"}``.
        nodes: names of the allotted nodes.
        submit_s, start_s, end_s, eligible_s: Unix seconds; None where Slurm says Unknown.
        time_limit_s: None is unlimited.
        restarts: how often it was requeued.
        ended: Slurm's word for how it ended, such as ``CANCELLED``; "" of what has not.
        unread: attributes for which Slurm said what nobody can read; they are None or empty, of
            ``state`` OTHER. Such a job has not ended: see ``is_doubtful``.
    """

    job_id: int
    array_job_id: int | None
    task_index: int | None
    untouched: frozenset[int]
    name: str
    user: str
    uid: int
    account: str
    partition: str
    qos: str
    state: JobState
    reason: str
    held: bool
    priority: int
    admin_comment: str
    comment: str
    tres: Mapping[str, str] = field(hash=False)
    nodes: tuple[str, ...]
    submit_s: int | None
    start_s: int | None
    end_s: int | None
    eligible_s: int | None
    time_limit_s: int | None
    restarts: int
    ended: str = ""
    unread: frozenset[str] = frozenset()

    @property
    def is_doubtful(self) -> bool:
        """Whether it can't be said what it holds, or which run it is: it is left alone, nothing of
        its tenant is lent, and its run is neither reserved for nor taken for ended.
        """
        return not self.unread.isdisjoint(_ESSENTIAL)

    @cached_property
    def gpus(self) -> Mapping[str, int]:
        """GPU instances by type that it holds or waits for; of an array each of its tasks."""
        return gpu_types_of_tres(self.tres)


@dataclass(frozen=True)
class NodeView:
    """One node: its address, its partitions and its GPUs by type, configured and allotted.

    Attributes:
        weight: Slurm gives jobs the nodes of the lowest first.
        gpus_held: indices of those that jobs hold, in the order of gres.conf.
        blocked: why nobody can have those that no job holds: no CPU or no memory is left, or it is
            kept for one user; "" if that is not so.
        cpus, memory_mib: what jobs may have of it, free or not; 0 if Slurm does not say.
        threads_per_core: CPUs that Slurm gives together.
        untyped_gpus: configured without a type; they are not among ``gpus``.
    """

    name: str
    address: str
    states: frozenset[str]
    gpus: Mapping[str, int] = field(hash=False)
    gpus_allotted: Mapping[str, int] = field(hash=False)
    partitions: frozenset[str] = frozenset()
    weight: int = 1
    gpus_held: frozenset[int] = frozenset()
    blocked: str = ""
    cpus: int = 0
    threads_per_core: int = 1
    memory_mib: int = 0
    untyped_gpus: int = 0

    @property
    def is_shapes(self) -> bool:
        """Whether it is no node, but says what GPUs can be cut into."""
        return self.name == SHAPES_NODE

    def is_in(self, partitions: AbstractSet[str]) -> bool:
        """Whether it is a node, and in one of these."""
        return not self.partitions.isdisjoint(partitions) and not self.is_shapes


@dataclass(frozen=True)
class PartitionView:
    """One partition.

    Attributes:
        billing_weights: TRESBillingWeights, the TRES in small letters:
            ``{"cpu": 0.0, "gres/gpu:1g.10gb": 1000.0}``.
        qos: whose limits bind all of its jobs; "" if it has none.
        has_default_memory: whether a job that asks for no memory gets some, not all of a node's.
        allow_qos: whose jobs it takes; None is all.
        deny_qos: whose it does not.
    """

    name: str
    billing_weights: Mapping[str, float] = field(hash=False)
    qos: str
    has_default_memory: bool = True
    allow_qos: frozenset[str] | None = None
    deny_qos: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StepView:
    """One running step; ``ports`` are those that Slurm reserved for it (``--resv-ports``)."""

    job_id: int
    step: str
    nodes: tuple[str, ...]
    ports: tuple[int, ...]


@dataclass(frozen=True)
class PlannedStart:
    """When and where Slurm's backfill means to start a waiting job."""

    job_id: int
    start_s: int
    nodes: tuple[str, ...]


SHAPES_NODE = "slicewise-shapes"
"""A node of that name is never up. It has every type that GPUs can be cut into: of a type that no
node has Slurm lets no job wait.
"""

RECUT_RESERVATION = "slicewise_recut_"
"""Reservations of ours begin so: of a node whose GPU is cut anew, of root's, for a few minutes."""


@dataclass(frozen=True)
class ReservationView:
    """One reservation.

    Attributes:
        flags: Slurm's words, such as MAINT.
        cores: which of a node's cores it has, by node, where it has not all of them.
    """

    name: str
    start_s: int
    end_s: int
    nodes: tuple[str, ...]
    flags: frozenset[str]
    cores: Mapping[str, frozenset[int]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class RunRecord:
    """One run of a job as accounting (``sacct -D -X``) keeps it; a requeued job has several.

    Attributes:
        job_id: Slurm's raw number.
        task: the name a person uses: ``814_3`` or ``814``.
        start_s: Unix seconds; together with cluster and job_id the key of a run.
        end_s: None while it runs.
        state: first word of sacct's State.
        tres: AllocTRES, among it ``billing``.
    """

    job_id: int
    task: str
    user: str
    account: str
    partition: str
    start_s: int
    end_s: int | None
    state: str
    time_limit_s: int | None
    tres: Mapping[str, str] = field(hash=False)

    @cached_property
    def gpus(self) -> Mapping[str, int]:
        """GPU instances by type that it held."""
        return gpu_types_of_tres(self.tres)


TAG_PREFIX = "slicewise:1"
_TAG = re.compile(
    r"slicewise:1 token=(?P<token>[0-9a-f]+) tenant=(?P<tenant>[A-Za-z0-9_.-]+)"
    r"(?: service=(?P<service>[A-Za-z0-9_.-]+))?"
    r"(?: class=(?P<job_class>low|high))?(?P<flexible> flexible)?"
    r"(?P<undecided> undecided(?P<auto> auto)?)?(?![^ ])"
)
_KNOWN_TAGS = 1 << 15
"""Every look has the same ones again: more than a large site has jobs."""

_SAID = re.compile(
    r"slicewise:run=(?P<run>[0-9]{1,9}) (?P<words>ended with [0-9]{1,3})(?:: [ -~]{0,500})?"
)
"""As the batch script writes it; older scripts wrote lines of their log behind it. A comment is its
user's own, and everybody sees it: nothing else of one is shown to anybody."""


def last_words(job: JobView) -> str:
    """How its last run ended, if that failed: ``ended with 1``; else "". By the job's comment.

    It counts runs as Slurm does, so the words of an earlier run are none of the last one's.
    """
    match = _SAID.fullmatch(job.comment)
    last = job.restarts if job.state is JobState.ENDED else job.restarts - 1
    is_of_the_last = match is not None and int(match["run"]) == last
    return match["words"] if match is not None and is_of_the_last else ""


CERTIFICATE = re.compile(
    r"slicewise:certificate=(?P<run>[0-9]{1,9}) (?P<der>[A-Za-z0-9+/]{64,2000}={0,2})"
)
"""As the batch script writes it, once it has the ports that Slurm allotted."""


def certificate(job: JobView) -> str:
    """The certificate that the batch script of a running job made for this run; "" before that.

    Base64 of DER. Slurm lets only the job's user, its account's coordinators and operators write a
    comment, so whoever has the certificate's key is this job.
    """
    match = CERTIFICATE.fullmatch(job.comment)
    return match["der"] if match is not None and int(match["run"]) == job.restarts else ""


JobClass = Literal["low", "normal", "high"]


@dataclass(frozen=True)
class JobTag:
    """What Slicewise writes into a job's admin_comment at submit; users can't set that field.

    Attributes:
        token: random, hexadecimal; only jobs that carry one are ever changed.
        tenant: who is charged.
        service: set if the job is a service's array.
        job_class: of its priority.
        is_flexible: whether it may be moved between its tenant's QOS and the borrowed one while it
            waits: its user named no QOS, and it may be requeued.
        is_undecided: slicewise.lua had no answer for it; the daemon decides later.
        was_auto: until then its GPUs of type auto stand without a type: Slurm gives a waiting job
            no other type than the one it was submitted with.
    """

    token: str
    tenant: str
    service: str | None = None
    job_class: JobClass = "normal"
    is_flexible: bool = False
    is_undecided: bool = False
    was_auto: bool = False

    def text(self) -> str:
        """As it stands in admin_comment."""
        parts = (
            f"{TAG_PREFIX} token={self.token} tenant={self.tenant}",
            f" service={self.service}" if self.service else "",
            f" class={self.job_class}" if self.job_class != "normal" else "",
            " flexible" if self.is_flexible else "",
            " undecided" if self.is_undecided else "",
            " auto" if self.is_undecided and self.was_auto else "",
        )
        return "".join(parts)

    @staticmethod
    @lru_cache(_KNOWN_TAGS)
    def find(admin_comment: str) -> "JobTag | None":
        """The tag in an admin_comment that others may have written into as well."""
        match = _TAG.search(admin_comment)
        if match is None:
            return None
        return JobTag(
            match["token"],
            match["tenant"],
            match["service"],
            match["job_class"] or "normal",  # type: ignore[arg-type]
            is_flexible=match["flexible"] is not None,
            is_undecided=match["undecided"] is not None,
            was_auto=match["auto"] is not None,
        )
