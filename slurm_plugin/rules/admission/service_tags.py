"""Finds services' arrays that slicewise.lua did not admit, and decides on them, outside enforce.

In modes observe and advise no slicewise.lua sets fields of jobs, and there may be none. What it
does to a service in enforce, its script asks for itself; the daemon adds the tag, by which it knows
its services, once it has decided by the same rules as for any submission. Users can't write a tag.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slicewise.cluster.language.codes import Code, known
from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.jobs import WAITING, JobState, JobTag, JobView
from slicewise.cluster.language.service import (
    COMMENT,
    DEFAULT_LEASE_S,
    directives_of_script,
    is_service,
    whole_number,
)
from slicewise.cluster.language.slurm.interface import JobChange, JobRequest
from slicewise.cluster.rpc.messages import ServiceView, SubmitAnswer, SubmitRequest
from slicewise.slurm_plugin.rules.admission import deferred
from slicewise.slurm_plugin.rules.quota.jobs import is_managed

_NO_SERVICE = Refusal(
    Code.SERVICE,
    f"The job's comment is {COMMENT}, but its script has no #SLICEWISE name=.",
    "Submit what slicewise service render prints, or leave out the comment.",
)
_ELSEWHERE = Refusal(
    Code.SERVICE,
    "The script names a partition that is not managed, in which no quota counts a replica.",
    "Name managed partitions alone.",
)
_TOO_SHORT = Refusal(
    Code.SERVICE,
    "The job's time limit is shorter than its lease_s, and Slicewise does not lengthen it.",
    "Write a shorter lease_s, or #SBATCH --time= as slicewise service render prints it.",
)
_STAYS = Refusal(
    Code.SERVICE,
    "The script forbids a requeue, by which a replica gives its slot back.",
    "Write #SBATCH --requeue.",
)


@dataclass(frozen=True)
class TagDecision:
    """What becomes of a service's array that has no tag yet.

    Attributes:
        changes: changes to make one after the other; the last one tags the array.
        refusal: if set, the array stays as its user submitted it.
    """

    changes: tuple[JobChange, ...] = ()
    refusal: Refusal | None = None


def untagged_services(jobs: Iterable[JobView], partitions: frozenset[str]) -> Mapping[int, JobView]:
    """Return the record of each array that says it is a service's, and of which all tasks wait as
    they were submitted: held by their user, and without a tag.
    """
    by_array: dict[int, list[JobView]] = defaultdict(list)
    for job in jobs:
        if job.array_job_id is not None:
            by_array[job.array_job_id].append(job)
    return {
        array: records[0]
        for array, records in by_array.items()
        if len(records) == 1 and _is_untagged(records[0], partitions)
    }


def _is_untagged(job: JobView, partitions: frozenset[str]) -> bool:
    # What the site holds is not its user's to start.
    is_held = job.held and job.reason == "JobHeldUser"
    waits = job.state is JobState.PENDING and is_held and job.task_index is None
    says_so = job.comment == COMMENT and JobTag.find(job.admin_comment) is None
    return waits and says_so and is_managed(job, partitions) and not job.is_doubtful


def changed_slots(
    service: ServiceView, jobs: Iterable[JobView], partitions: frozenset[str]
) -> frozenset[int]:
    """Return the waiting slots of a service that are no longer what it was admitted with.

    Where no slicewise.lua keeps them from it, users may change account, partition and GPUs of their
    waiting jobs, by which a replica would take what its tenant's quota does not bound. They may
    shorten a time limit, too: a release would lengthen it beyond what Slurm lets users have.
    """
    count = _number(service, "gpus") * _number(service, "nodes")
    gpus = {service.directives.get("profile", service.profile): count}
    return frozenset(
        index
        for job in jobs
        if job.array_job_id == service.array_job_id and job.state in WAITING
        if job.account != service.tenant
        or not _stays_managed(job, partitions)
        or job.gpus not in ({}, gpus)
        or job.untyped_gpus
        or _is_short(job, service.directives)
        for index in (job.untouched if job.task_index is None else {job.task_index})
    )


def _stays_managed(job: JobView, partitions: frozenset[str]) -> bool:
    """Whether a waiting job can start in managed partitions alone."""
    return partitions.issuperset(job.partition.split(","))


def _is_short(job: JobView, directives: Mapping[str, str]) -> bool:
    """Whether Slurm has accepted less time for a slot than the lease that a release sets."""
    lease_s = whole_number(directives, "lease_s", DEFAULT_LEASE_S)
    return job.time_limit_s is not None and job.time_limit_s < lease_s


def _number(service: ServiceView, key: str) -> int:
    return whole_number(service.directives, key, 1)


def submission_of(
    job: JobView, request: JobRequest, directives: tuple[str, ...], token: str
) -> SubmitRequest:
    """Build the request as slicewise.lua would have made it. The QOS stays the user's own."""
    asked = deferred.submission_of(job, request, directives)
    whole = job.untouched == frozenset(range(len(job.untouched)))
    indices = f"0-{len(job.untouched) - 1}" if whole else ",".join(map(str, sorted(job.untouched)))
    return asked.model_copy(update={"token": token, "qos": "", "array": indices})


def tag_decision(
    job: JobView,
    asked: JobRequest,
    directives: tuple[str, ...],
    answer: SubmitAnswer,
    partitions: frozenset[str],
) -> TagDecision:
    """Return what carries out an answer of mode enforce: its GPUs, if the script left their type
    open, and the tag. QOS and site_factor stay as they are.
    """
    if (refusal := _refusal(job, asked, directives, answer, partitions)) is not None:
        return TagDecision(refusal=refusal)
    decided = deferred.deferred_decision(job, asked, answer, directives)
    if decided.refusal is not None:
        return TagDecision(refusal=decided.refusal)
    comment = f"{job.admin_comment} {answer.tag}".strip()
    change = replace(decided.change, qos=None, site_factor=None, admin_comment=comment)
    return TagDecision((*((deferred.CLEAR,) if decided.clear else ()), change))


def _refusal(
    job: JobView,
    asked: JobRequest,
    directives: tuple[str, ...],
    answer: SubmitAnswer,
    partitions: frozenset[str],
) -> Refusal | None:
    if not is_service(directives):
        return _NO_SERVICE
    if answer.action == "refuse":
        return Refusal(known(answer.code), answer.message, answer.hint)
    if not _stays_managed(job, partitions):
        return _ELSEWHERE
    if _is_short(job, directives_of_script(directives)):
        return _TOO_SHORT
    return None if asked.requeue else _STAYS
