"""What Slurm reports of jobs, nodes, steps and past runs, and the tag of a job under Slicewise."""

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache

from slicewise.cluster.language.gres import gpu_types_of_tres, untyped_of
from slicewise.cluster.language.job_class import JobClass

RunOfJob = tuple[int, int | None]
"""One run of a job: the job's id, and the run's start in Unix seconds. A requeued job keeps its id.
"""


class JobState(StrEnum):
    """Slurm's base states that Slicewise tells apart.

    Every other state, and a state that can't be read, is OTHER.
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


WAITING = frozenset({JobState.PENDING, JobState.SPECIAL_EXIT})
"""States in which a job waits for its start."""
ALLOTTED = frozenset(
    {
        JobState.CONFIGURING,
        JobState.RUNNING,
        JobState.SUSPENDED,
        JobState.COMPLETING,
        JobState.OTHER,
    }
)
"""States in which a job holds its GPUs, or may hold them: no other job gets them meanwhile."""


_ESSENTIAL = frozenset({"state", "tres", "start_s", "task_index", "array_job_id", "uid"})


@dataclass(frozen=True)
class JobView:
    """One record of Slurm's job list: a job, one task of an array, or the array's untouched tasks.

    Attributes:
        job_id: Slurm's own number of this record (a split array task has its own).
        array_job_id: None for a job that is no array.
        task_index: None for a job, and for the record of the untouched tasks.
        untouched: indices of the array's tasks that nothing has touched yet.
        held: whether the job is pending or in SPECIAL_EXIT, with priority 0.
        reason: Slurm's own word, such as ``JobHeldAdmin`` or ``QOSGrpBilling``.
        tres: TRES of the allocation, or of the request while pending, for example
            ``{"gres/gpu:1g.10gb": "1"}``.
        unnamed: instances by GPU type that the job holds or asks for and ``tres`` does not name:
            accounting did not know the type when Slurm wrote them. No limit of Slurm's counts them.
        nodes: names of the allotted nodes.
        submit_s, start_s, end_s, eligible_s: Unix seconds; None where Slurm says Unknown.
        time_limit_s: seconds; None is unlimited.
        restarts: how often the job was requeued.
        ended: Slurm's word for how the job ended, such as ``CANCELLED``; "" while it has not.
        het_job_id: id of the heterogeneous job of which this is a component: the number of its
            first component; 0 for a job that is no component.
        unread: attributes for which Slurm's text could not be read. Each is None, empty or 0;
            ``uid`` and ``het_job_id`` are -1, and ``state`` is OTHER, so that the job does not
            count as ended. See ``is_doubtful``.
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
    het_job_id: int = 0
    unread: frozenset[str] = frozenset()
    unnamed: Mapping[str, int] = field(default_factory=dict, hash=False)

    @cached_property
    def is_doubtful(self) -> bool:
        """Whether an unread attribute leaves open what the job holds, or which run this is.

        Slicewise leaves such a job alone and lends nothing of its tenant. Its run gets no
        reservation of budget and does not count as ended.
        """
        return not self.unread.isdisjoint(_ESSENTIAL)

    @property
    def task(self) -> str:
        """The name that a person uses: ``814_3``, or ``814`` of a job and of untouched tasks."""
        if self.array_job_id is None or self.task_index is None:
            return str(self.job_id)
        return f"{self.array_job_id}_{self.task_index}"

    @property
    def tasks(self) -> int:
        """Number of array tasks that share the record; 1 of a job that is no array."""
        return max(1, len(self.untouched))

    @cached_property
    def gpus(self) -> Mapping[str, int]:
        """Instances by GPU type that the job (of an array: each task) holds or waits for."""
        named = gpu_types_of_tres(self.tres)
        return {**named, **self.unnamed} if self.unnamed else named

    @cached_property
    def untyped_gpus(self) -> int:
        """How many GPUs the job (of an array: each task) has or asks for of which nothing says the
        type.
        """
        return untyped_of(self.tres, self.gpus)


def as_known(before: Iterable[JobView], jobs: Iterable[JobView]) -> tuple[JobView, ...]:
    """The jobs; one that is as it was ``before`` is the very record of then.

    So what was found of it stays with it from look to look.
    """
    known = {job.job_id: job for job in before}
    pairs = ((known.get(job.job_id), job) for job in jobs)
    return tuple(
        job if then is None or (then is not job and then != job) else then for then, job in pairs
    )


@dataclass(frozen=True)
class NodeView:
    """One node: its address, its partitions and its GPUs by type, configured and allotted.

    Attributes:
        weight: Slurm's weight of the node; jobs get the nodes with the lowest weight first.
        gpus_held: indices of the GPUs that jobs hold, in the order of gres.conf.
        blocked: why no job can have the node's free GPUs: no CPU or no memory is left, or the node
            is kept for one user or one security label; "" if nothing blocks them.
        cpus, memory_mib: CPUs and memory for jobs, free or not; 0 if Slurm does not say.
        threads_per_core: CPUs that Slurm gives to a job together.
        untyped_gpus: GPUs configured without a type; they are not among ``gpus``.
        shared, shared_allotted: parts of GPUs that jobs share, by name: ``{"shard": 8}``. They are
            of the same devices as ``gpus``, so they add nothing to what the node has.
        reason: why it is not as it should be, in Slurm's or an administrator's words. No decision
            goes by it, so two views that differ in it alone are equal.
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
    shared: Mapping[str, int] = field(default_factory=dict, hash=False)
    shared_allotted: Mapping[str, int] = field(default_factory=dict, hash=False)
    reason: str = field(default="", compare=False)

    @property
    def is_shapes(self) -> bool:
        """Whether this is no real node, but the one that lists what GPUs can be cut into."""
        return self.name == SHAPES_NODE

    def is_in(self, partitions: AbstractSet[str]) -> bool:
        """Whether this is a real node, and in one of these partitions."""
        return not self.partitions.isdisjoint(partitions) and not self.is_shapes


def node_reasons(nodes: Iterable[NodeView], most: int) -> str:
    """Return Slurm's reasons for ``most`` of these nodes, after a blank; "" without any.

    sinfo -R shows none of a node that is up, but invalid.
    """
    reasons = [f"{node.name}: {node.reason}" for node in nodes if node.reason]
    return f" ({'; '.join(reasons[:most])})" if reasons else ""


@dataclass(frozen=True)
class PartitionView:
    """One partition.

    Attributes:
        billing_weights: TRESBillingWeights, with the TRES in small letters, for example
            ``{"cpu": 0.0, "gres/gpu:1g.10gb": 1000.0}``; that of memory is per MiB.
        qos: the partition's QOS, which limits all of its jobs; "" if it has none.
        has_default_memory: whether a job that asks for no memory gets a default amount instead of
            all of a node's.
        allow_qos: QOS that the partition admits; None is all.
        deny_qos: QOS that the partition refuses.
        is_up: whether jobs may be submitted to it and start in it.
        max_time_s: longest time limit of its jobs in seconds; None if it has none.
        default_time_s: time limit in seconds of jobs that ask for none; None if MaxTime is.
        words: of the words that bar users, give jobs whole nodes or spread them, those it has.
    """

    name: str
    billing_weights: Mapping[str, float] = field(hash=False)
    qos: str
    has_default_memory: bool = True
    allow_qos: frozenset[str] | None = None
    deny_qos: frozenset[str] = frozenset()
    is_up: bool = True
    max_time_s: int | None = None
    default_time_s: int | None = None
    words: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StepView:
    """One running step; ``ports`` are those that Slurm reserved for the step (``--resv-ports``)."""

    job_id: int
    step: str
    nodes: tuple[str, ...]
    ports: tuple[int, ...]


@dataclass(frozen=True)
class PlannedStart:
    """When and where Slurm's backfill plans to start a waiting job."""

    job_id: int
    start_s: int
    nodes: tuple[str, ...]


SHAPES_NODE = "slicewise-shapes"
"""Name of a node that is never up. It has every type that GPUs can be cut into, because Slurm lets
no job wait for a type that no node has.
"""

REPARTITION_RESERVATION = "slicewise_repartition_"
"""Prefix of the names of Slicewise's reservations. Each is of a node with a GPU that is being
repartitioned, for root only and for a few minutes.
"""


@dataclass(frozen=True)
class ReservationView:
    """One reservation.

    Attributes:
        flags: Slurm's words, such as MAINT.
        cores: the reserved cores of a node, by node, where the reservation has not all of them.
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
        task: the name that a person uses: ``814_3`` or ``814``.
        start_s: Unix seconds; together with cluster and job_id the key of a run.
        end_s: Unix seconds; None while the run goes on.
        state: first word of sacct's State.
        tres: AllocTRES, which includes ``billing``, with no fewer GPUs than were asked for.
        qos: the last one that the run had; "" if none is known.
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
    qos: str = ""

    @cached_property
    def gpus(self) -> Mapping[str, int]:
        """Instances by GPU type that the run held."""
        return gpu_types_of_tres(self.tres)

    @cached_property
    def untyped_gpus(self) -> int:
        """How many GPUs the run held of which accounting does not say the type."""
        return untyped_of(self.tres, self.gpus)


@dataclass(frozen=True, slots=True)
class PastRun:
    """One row of accounting (``sacct -D -X``) with what the job asked for; it may never have run.

    Attributes:
        job_id: Slurm's raw number; that of the array for tasks that were never touched.
        task: the name that a person uses: ``814_3``, ``814`` or, of untouched tasks, ``814_[4-9]``.
        submit_s: Unix seconds of the submission, or of the last requeue before this run.
        eligible_s, start_s, end_s: Unix seconds; None if unknown or not yet.
        state: first word of sacct's State.
        elapsed_s: seconds that it ran, without those in which it was suspended; None if unknown.
        requested, allotted: ReqTRES and AllocTRES, as Slurm writes their values.
    """

    job_id: int
    task: str
    user: str
    account: str
    qos: str
    partition: str
    submit_s: int
    eligible_s: int | None
    start_s: int | None
    end_s: int | None
    state: str
    time_limit_s: int | None
    elapsed_s: int | None
    nodes: int
    requested: Mapping[str, str] = field(hash=False)
    allotted: Mapping[str, str] = field(hash=False)


def folded_tasks(jobs: Iterable[JobView]) -> Mapping[int, frozenset[int]]:
    """Return the array tasks that share one record, by array."""
    return {
        job.array_job_id: job.untouched
        for job in jobs
        if job.array_job_id is not None and job.untouched
    }


TAG_PREFIX = "slicewise:1"
_TAG = re.compile(
    r"slicewise:1 token=(?P<token>[0-9a-f]+) tenant=(?P<tenant>[A-Za-z0-9_.-]+)"
    r"(?: service=(?P<service>[A-Za-z0-9_.-]+))?"
    r"(?: class=(?P<job_class>low|high))?(?P<flexible> flexible)?"
    r"(?P<undecided> undecided(?P<auto> auto)?)?"
    r"(?: whole=(?P<whole>[0-9]{1,9}))?"
    r"(?: avoids=(?P<avoids>[A-Za-z0-9_.,-]+))?(?![^ ])"
)
_KNOWN_TAGS = 1 << 15
"""Size of the cache of parsed tags: more than a large site has jobs. Every look at Slurm shows the
same tags again.
"""

_FAILED_RUN = re.compile(r"slicewise:run=(?P<run>[0-9]{1,9}) (?P<words>ended with [0-9]{1,3})")
"""A job's comment as the batch script writes it when a run has failed. Users can write anything
into the comments of their jobs, and every user can read them, so no other comment is ever shown.
"""


def last_words(job: JobView) -> str:
    """How the job's last run ended, if it failed: ``ended with 1``; else "".

    The batch script writes that into the job's comment, with the number of the run as Slurm counts
    them: so the words of an earlier run are not taken for those of the last one.
    """
    match = _FAILED_RUN.fullmatch(job.comment)
    last = job.restarts if job.state is JobState.ENDED else job.restarts - 1
    is_of_the_last = match is not None and int(match["run"]) == last
    return match["words"] if match is not None and is_of_the_last else ""


CERTIFICATE = re.compile(
    r"slicewise:certificate=(?P<run>[0-9]{1,9}) (?P<der>[A-Za-z0-9+/]{64,2000}={0,2})"
    r"(?: files=(?P<files>[0-9a-f]{16}))?"
)
"""A job's comment as the batch script writes it, once the script has the ports that Slurm allotted.
"""


def certificate(job: JobView) -> str:
    """The certificate that the batch script of a running job made for this run; "" before that.

    Base64 of DER. Slurm lets only the job's user, coordinators of its account and operators write a
    comment, so whoever has the certificate's key acts for this job.
    """
    match = _of_this_run(job)
    return match["der"] if match is not None else ""


def model_files(job: JobView) -> str:
    """Digest of the model repository's files with which a run began; "" if it has told none."""
    match = _of_this_run(job)
    return match["files"] or "" if match is not None else ""


def _of_this_run(job: JobView) -> re.Match[str] | None:
    match = CERTIFICATE.fullmatch(job.comment)
    return match if match is not None and int(match["run"]) == job.restarts else None


@dataclass(frozen=True)
class JobTag:
    """What Slicewise writes into a job's admin_comment at submission; users can't set that field.

    Attributes:
        token: random, hexadecimal; Slicewise changes only jobs that carry one.
        tenant: the tenant that is charged.
        service: name of the service, if the job is a service's array; else None.
        job_class: the class of its priority.
        is_flexible: whether Slicewise may move the job between its tenant's QOS and the borrowed
            one while it waits: its user named no QOS, and it may be requeued.
        is_undecided: slicewise.lua got no answer for the job; the daemon decides later.
        was_auto: the undecided job asked for GPUs of type auto. They stand without a type until the
            decision, because Slurm gives a waiting job no type other than the one that it was
            submitted with.
        avoids: the nodes that Slicewise has added to the job's ExcNodeList. Others in that list are
            the user's own.
        whole_millislices: what Slurm counts at least once the job has its nodes, which it gets
            whole (``--exclusive``); 0 if that is what it asks for.
    """

    token: str
    tenant: str
    service: str | None = None
    job_class: JobClass = "normal"
    is_flexible: bool = False
    is_undecided: bool = False
    was_auto: bool = False
    avoids: tuple[str, ...] = ()
    whole_millislices: int = 0

    def text(self) -> str:
        """The tag's text for admin_comment."""
        parts = (
            f"{TAG_PREFIX} token={self.token} tenant={self.tenant}",
            f" service={self.service}" if self.service else "",
            f" class={self.job_class}" if self.job_class != "normal" else "",
            " flexible" if self.is_flexible else "",
            " undecided" if self.is_undecided else "",
            " auto" if self.is_undecided and self.was_auto else "",
            f" whole={self.whole_millislices}" if self.whole_millislices else "",
            f" avoids={','.join(self.avoids)}" if self.avoids else "",
        )
        return "".join(parts)

    @staticmethod
    @lru_cache(_KNOWN_TAGS)
    def find(admin_comment: str) -> "JobTag | None":
        """Find the tag in an admin_comment that others may have written into; None without one."""
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
            avoids=tuple(match["avoids"].split(",")) if match["avoids"] else (),
            whole_millislices=int(match["whole"] or 0),
        )


def is_resting(job: JobView) -> bool:
    """Whether the job is a held slot of a service, which is not needed now."""
    return job.state in WAITING and job.held and is_of_service(job)


def is_of_service(job: JobView) -> bool:
    """Whether the job is one of a service's slots, by its tag."""
    tag = JobTag.find(job.admin_comment)
    return tag is not None and tag.service is not None


def retagged(admin_comment: str, tag: str) -> str:
    """Return the comment with the new tag in place of the old one."""
    before = JobTag.find(admin_comment)
    return admin_comment.replace(before.text(), tag) if before is not None else tag
