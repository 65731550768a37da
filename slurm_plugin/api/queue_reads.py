"""Shows one reader the queue, from memory alone: who waits, why, and when each is to start."""

from itertools import islice

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.rpc.overview_messages import QueueAnswer, QueuedNow, QueueRequest
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.rules.common.qos_names import holder_of
from slicewise.slurm_plugin.rules.explain.headroom import Cause
from slicewise.slurm_plugin.rules.explain.reasons import Reason, translate
from slicewise.slurm_plugin.rules.explain.start import (
    StartEstimate,
    no_estimate,
    start_by_budget,
    start_by_slurm,
)
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts
from slicewise.slurm_plugin.rules.overview.slices import waiting_row
from slicewise.slurm_plugin.rules.quota.tenants import ancestors

_PAGE_ROWS = 500


def queue(request: QueueRequest, principal: Principal, facts: OverviewFacts) -> QueueAnswer:
    """Return one page of the queue for who may see it."""
    seen, hidden = [], []
    for position, job in enumerate(facts.waiting, 1):
        if principal.may_see(job):
            seen.append((position, job))
        else:
            hidden.append(job)
    page = list(islice((row for row in seen if row[0] > request.after), _PAGE_ROWS))
    return QueueAnswer(
        observed_s=facts.observed_s,
        complete=facts.complete,
        rows=tuple(_row(position, job, facts) for position, job in page),
        other_jobs=sum(job.tasks for job in hidden),
        other_millislices=sum(map(facts.cost, hidden)),
        more=page[-1][0] if page and page[-1][0] < seen[-1][0] else None,
    )


def _row(position: int, job: JobView, facts: OverviewFacts) -> QueuedNow:
    reason = translate(job.reason, job.qos)
    start = _start(job, reason, facts)
    return QueuedNow(
        **dict(waiting_row(job, facts)),
        position=position,
        why=reason.words,
        start_s=start.at_s,
        start=start.words,
    )


def _start(job: JobView, reason: Reason, facts: OverviewFacts) -> StartEstimate:
    """Estimate the start as far as memory says it.

    Slurm's plan is by GPUs alone, so that it says nothing of a job that waits for quota. What such
    a job lacks takes a look at all jobs that hold it, which ``why`` has for one job; so the reader
    is sent there.
    """
    match reason.cause:
        case Cause.NONE_FREE | None:
            return start_by_slurm(job, facts.now_s) or no_estimate(reason)
        case Cause.BUDGET if payer := _binding_budget(holder_of(job), facts):
            return start_by_budget(payer, facts.resets_s.get(payer))
        case _:
            return StartEstimate(None, f"not estimated in the queue: see slicewise why {job.task}")


def _binding_budget(tenant: str, facts: OverviewFacts) -> str:
    """Return whose budget leaves the tenant's jobs the least: its own or one above; "" for none."""
    policy, left = facts.policy, facts.left_millislice_s
    if tenant not in policy:
        return ""
    above = (tenant, *ancestors(policy, tenant))
    return min((name for name in above if name in left), key=lambda name: left[name], default="")
