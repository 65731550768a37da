"""Estimates when a waiting job starts, and says what the estimate rests on."""

from dataclasses import dataclass

from slicewise.cluster.language.jobs import JobView
from slicewise.slurm_plugin.rules.common.qos_names import holder_of
from slicewise.slurm_plugin.rules.explain.headroom import Cause
from slicewise.slurm_plugin.rules.explain.reasons import Reason
from slicewise.slurm_plugin.rules.explain.shortage import (
    QUOTA,
    BudgetShortage,
    Shortage,
    WhyInput,
    back_s,
    recalls_of,
)


@dataclass(frozen=True)
class StartEstimate:
    """An estimate of a start.

    Attributes:
        at_s: Unix seconds; None if there is no estimate.
        words: what the estimate rests on, or why there is none.
        by_slurm: whether it is Slurm's own plan.
    """

    at_s: int | None
    words: str
    by_slurm: bool = False


def planned_start(
    job: JobView,
    reason: Reason,
    short: Shortage | None,
    budget: BudgetShortage | None,
    sight: WhyInput,
) -> StartEstimate:
    """Estimate when the job starts.

    A job that waits for quota starts when a loan is back, or when enough comes back by time limits,
    or as Slurm plans if that is later, since Slurm plans by GPUs alone. A job that waits for GPUs
    or anything else starts as Slurm plans, if Slurm has a plan.
    """
    if job.held:
        return StartEstimate(None, "no estimate while it is held")
    if job.reason == "BeginTime":
        return StartEstimate(job.eligible_s or job.start_s, "at the earliest: its begin time")
    if budget is not None:
        return start_by_budget(budget.payer, sight.resets_s.get(budget.payer))
    back = _by_recalls(job, reason, short, sight)
    return _planned(job, reason, short, sight) if back is None else back


def _planned(
    job: JobView, reason: Reason, short: Shortage | None, sight: WhyInput
) -> StartEstimate:
    plan = start_by_slurm(job, sight.now_s)
    if short is None:
        return plan or no_estimate(reason)
    ours = _by_time_limits(short, reason.cause, sight)
    if plan is None or (reason.cause is not Cause.NONE_FREE and short.missing > 0):
        return _later(plan, ours)
    return plan


def start_by_slurm(job: JobView, now_s: float) -> StartEstimate | None:
    """Return when Slurm itself plans to start the job; None without a plan for a time to come."""
    if job.start_s is None or job.start_s <= now_s:
        return None
    return StartEstimate(job.start_s, "as Slurm plans now", by_slurm=True)


def no_estimate(reason: Reason) -> StartEstimate:
    """Return that there is none, and why the job waits."""
    return StartEstimate(None, f"no estimate: {reason.words}")


def _later(plan: StartEstimate | None, ours: StartEstimate) -> StartEstimate:
    if plan is None or plan.at_s is None or ours.at_s is None:
        return ours
    return max(ours, plan, key=lambda estimate: estimate.at_s or 0)


def start_by_budget(payer: str, resets_s: int | None) -> StartEstimate:
    """Estimate by the next period of the payer's budget, which is to begin at ``resets_s``."""
    if resets_s is None:
        return StartEstimate(None, f"no estimate: the budget of {payer} has no further period")
    return StartEstimate(
        resets_s, f"when the next period of {payer}'s budget begins, if not before"
    )


def _by_recalls(
    job: JobView, reason: Reason, short: Shortage | None, sight: WhyInput
) -> StartEstimate | None:
    """Estimate by recalls; None if the job does not wait for quota that its tenant takes back, or
    the recalls are not enough.
    """
    if reason.cause not in QUOTA or short is None:
        return None
    missing = short.missing
    for recall in sorted(recalls_of(holder_of(job), sight), key=lambda recall: recall.called_s):
        missing -= recall.amount_millislices
        if missing <= 0:
            at_s = max(sight.now_s, recall.called_s + sight.grace_s)
            return StartEstimate(at_s, "at the latest: by then its tenant has back what it lent")
    return None


def _by_time_limits(short: Shortage, cause: Cause | None, sight: WhyInput) -> StartEstimate:
    if short.missing <= 0:
        return StartEstimate(None, "as soon as its turn comes: there is room for it now")
    at_s = back_s(short, sight.now_s)
    if at_s is not None:
        words = (
            "at the latest, unless jobs ahead of it take the room: by then enough jobs reach their"
        )
        return StartEstimate(at_s, f"{words} time limits")
    if sum(amount for _, amount in short.holders) < short.missing:
        if cause is Cause.BORROWED_QOS:  # which follows what its tenant wants and others leave idle
            return StartEstimate(None, "no estimate: its tenant must be lent more than it is now")
        return StartEstimate(None, "no estimate: it would not fit even if all of these jobs ended")
    return StartEstimate(None, "no estimate: jobs that must end first have no time limit")
