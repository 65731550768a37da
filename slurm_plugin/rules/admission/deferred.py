"""Decides what happens to jobs that were submitted while the daemon did not answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.codes import Code, known
from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.gres import AUTO, counted, parse_gpu_requests, plain_gres, with_type
from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobTag, JobView, retagged
from slicewise.cluster.language.service import says_need
from slicewise.cluster.language.slurm.interface import JobChange, JobRequest, Target, target_of
from slicewise.cluster.rpc.messages import VERSION, SubmitAnswer, SubmitRequest
from slicewise.slurm_plugin.rules.common.qos_names import qos_name
from slicewise.slurm_plugin.rules.quota.jobs import is_managed

CLEAR = JobChange(gres="", tres_per_job="", tres_per_task="")
"""Removes a job's GPU requests. Slurm can only give untyped GPUs a type once no request is left."""


@dataclass(frozen=True)
class DeferredDecision:
    """The steps to take for an undecided job, in this order.

    Attributes:
        clear: whether ``CLEAR`` must be applied first, because the job's GPUs get a type.
        change: the change that applies the decision.
        release: whether to release the job, which was held only for this decision.
        mark: the change after the release that marks the job as decided. Until then another turn,
            or another daemon, continues what this turn leaves half done.
        refusal: if set, the job is held until the decision is a different one.
    """

    clear: bool = False
    change: JobChange = field(default_factory=JobChange)
    release: bool = False
    mark: JobChange | None = None
    refusal: Refusal | None = None


def is_undecided(job: JobView, partitions: frozenset[str]) -> bool:
    """Whether a pending job waits for a decision, as its tag says."""
    tag = JobTag.find(job.admin_comment)
    waits = job.state is JobState.PENDING and is_managed(job, partitions) and not job.is_doubtful
    return waits and tag is not None and tag.is_undecided


def submission_of(
    job: JobView, request: JobRequest, directives: tuple[str, ...] | None
) -> SubmitRequest:
    """Build the request as if the job were submitted now.

    ``directives`` are None if the job has no script. The tenant's own QOS is not taken for the
    user's wish, because it is the account's default.
    """
    own = qos_name(job.account)
    tag = JobTag.find(job.admin_comment)
    if tag is not None and tag.was_auto:
        request = replace(
            request,
            gres=with_type(request.gres, AUTO),
            tres_per_job=with_type(request.tres_per_job, AUTO),
            tres_per_socket=with_type(request.tres_per_socket, AUTO),
            tres_per_task=with_type(request.tres_per_task, AUTO),
        )
    return SubmitRequest(
        v=VERSION,
        op="submit",
        token=tag.token if tag is not None else "",
        uid=job.uid,
        account=job.account,
        partition=job.partition,
        qos="" if job.qos == own else job.qos,
        gres=request.gres,
        tres_per_job=request.tres_per_job,
        tres_per_socket=request.tres_per_socket,
        tres_per_task=request.tres_per_task,
        tasks=request.tasks,
        min_nodes=request.min_nodes,
        exclusive=request.exclusive,
        requeue=request.requeue,
        time_limit_min=None if job.time_limit_s is None else -(-job.time_limit_s // 60),
        interactive=directives is None,
        directives=directives or (),
    )


def deferred_decision(
    job: JobView, asked: JobRequest, answer: SubmitAnswer, directives: tuple[str, ...]
) -> DeferredDecision:
    """Return the steps that carry out an answer; ``asked`` is what the job requests in Slurm now.

    Only a hold that slicewise.lua or the daemon has set is released.
    """
    if answer.action == "refuse":
        return DeferredDecision(refusal=Refusal(known(answer.code), answer.message, answer.hint))
    texts = _texts(asked, answer)
    if answer.action == "pass" or answer.tres_per_socket is not None or _names_auto(asked):
        return DeferredDecision(refusal=_UNSETTABLE)
    tag = JobTag.find(job.admin_comment)
    was_auto = tag is not None and tag.was_auto
    was_ours = texts or was_auto or says_need(directives) or job.reason == "JobHeldAdmin"
    release = bool(job.held and was_ours and not answer.hold)
    decided = retagged(job.admin_comment, answer.tag or "")
    comment = None if release else decided
    if release and texts and not was_auto and tag is not None:
        # Once the GPUs have a type, only the tag still shows that Slicewise held the job.
        comment = retagged(job.admin_comment, replace(tag, was_auto=True).text())
    change = JobChange(
        qos=answer.qos,
        site_factor=answer.site_factor,
        gres=texts.get("gres"),
        tres_per_job=texts.get("tres_per_job"),
        tres_per_task=texts.get("tres_per_task"),
        admin_comment=comment,
    )
    mark = JobChange(admin_comment=decided) if release else None
    return DeferredDecision(bool(texts), change, release, mark)


def begun(jobs: Iterable[JobView]) -> Mapping[Target, JobChange]:
    """Return the new tags of undecided jobs that Slurm has started: nothing is left to decide."""
    changes: dict[Target, JobChange] = {}
    for job in jobs:
        tag = JobTag.find(job.admin_comment)
        if tag is not None and tag.is_undecided and job.state in ALLOTTED:
            decided_tag = replace(tag, is_undecided=False)
            comment = retagged(job.admin_comment, decided_tag.text())
            changes[target_of(job)] = JobChange(admin_comment=comment)
    return changes


def _texts(asked: JobRequest, answer: SubmitAnswer) -> Mapping[str, str]:
    """Return everything that the job shall request, by field; {} if nothing changes."""
    chosen = {
        "gres": answer.gres,
        "tres_per_job": answer.tres_per_job,
        "tres_per_task": answer.tres_per_task,
    }
    before = {
        "gres": plain_gres(asked.gres),
        "tres_per_job": asked.tres_per_job,
        "tres_per_task": asked.tres_per_task,
    }
    # A type stays as it was submitted: only a count would be new, and Slurm already knows counts.
    if all(text is None or text == counted(before[name]) for name, text in chosen.items()):
        return {}
    return {name: text for name in chosen if (text := chosen[name] or before[name])}


def _names_auto(asked: JobRequest) -> bool:
    """Whether a request names the type ``auto``.

    Slurm keeps the type with which a job was submitted, so the job would wait forever for it.
    """
    texts = (asked.gres, asked.tres_per_job, asked.tres_per_socket, asked.tres_per_task)
    return any(gpus.gres_type == AUTO for text in texts for gpus in parse_gpu_requests(text))


_UNSETTABLE = Refusal(
    Code.RESUBMIT,
    "It was submitted while the daemon was away, and Slurm can't give its GPUs a type any more.",
    "Cancel it and submit it again.",
)
