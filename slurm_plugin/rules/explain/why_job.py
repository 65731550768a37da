"""Explains on one screen why a job waits, or the state of one that runs or has ended."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.jobs import (
    ALLOTTED,
    WAITING,
    JobState,
    JobTag,
    JobView,
    is_of_service,
    is_resting,
)
from slicewise.cluster.language.slurm.node_states import boots
from slicewise.cluster.language.units import counted, slices_text, slices_words
from slicewise.cluster.rpc.read_messages import WhyAnswer, WhyTable
from slicewise.slurm_plugin.rules.common.qos_names import (
    borrowed_qos,
    holder_of,
    is_borrowed,
    is_own,
)
from slicewise.slurm_plugin.rules.explain.headroom import BUDGET_RUN_S, Cause
from slicewise.slurm_plugin.rules.explain.reasons import Reason, translate
from slicewise.slurm_plugin.rules.explain.shortage import (
    BudgetShortage,
    Shortage,
    WhyInput,
    budget_shortage,
    ends_s,
    recalls_of,
    shortage,
    whole_millislices,
)
from slicewise.slurm_plugin.rules.explain.start import StartEstimate, planned_start
from slicewise.slurm_plugin.rules.explain.why_slot import why_slot
from slicewise.slurm_plugin.rules.explain.why_texts import (
    by_quota,
    gpus_text,
    group_rows,
    holder_rows,
    kept_back,
    recall_words,
    rooms_text,
    span_text,
    with_recalls,
)
from slicewise.slurm_plugin.rules.quota.types import MAX_NOMINAL_MILLISLICES
from slicewise.slurm_plugin.rules.quota.waits import QOS_BUDGET, QOS_SLICES
from slicewise.slurm_plugin.rules.round.barred import LACKS_QUOTA, BarredJob

_ACCOUNT = "ACCOUNT"
_JOB = re.compile(r"(?P<job>[0-9]{1,10})(?:_(?P<task>[0-9]{1,10}))?")

_ENDS = {
    "NonZeroExitCode": "its program returned an error",
    "RaisedSignal": "a signal ended its program",
    "TimeLimit": "it reached its time limit",
    "OutOfMemory": "it ran out of memory",
    "NodeDown": "its node failed",
    "JobLaunchFailure": "its node could not start it",
    "DeadLine": "its deadline passed",
    "InactiveLimit": "it was inactive for too long",
}
"""Explanations of Slurm's reasons for jobs that failed."""


_BY_PROGRAM = frozenset({"NonZeroExitCode", "RaisedSignal"})
"""Reasons that a job has only if its program was started."""
_LIMITS = frozenset({Cause.OWN_QOS, Cause.GUARANTEED_TYPE, Cause.BORROWED_QOS, Cause.TYPE_LIMIT})
"""Causes whose numbers alone decide whether the job fits; GPUs may be free, but apart."""
_FITS_NOW = (
    "By these numbers it fits now: Slurm's reason is older, and changes when Slurm looks at the job"
    " again."
)
_HELD_BY_SLURM = frozenset({"BadConstraints"})
"""Reasons with which Slurm itself holds jobs that no node can ever run."""


def jobs_named(about: str, jobs: Iterable[JobView]) -> tuple[JobView, ...]:
    """The records that a text names: ``814`` (a job or an array) or ``814_3``.

    Empty for any other text.
    """
    match = _JOB.fullmatch(about)
    if match is None:
        return ()
    number, task = int(match["job"]), match["task"]
    if task is not None:
        tasks = (_task(job, int(task)) for job in jobs if job.array_job_id == number)
        return tuple(job for job in tasks if job is not None)
    whole = tuple(jobs)
    array = tuple(job for job in whole if job.array_job_id == number)
    return array or tuple(job for job in whole if job.job_id == number)


def _task(job: JobView, index: int) -> JobView | None:
    if index in job.untouched:
        return _one_of(job, index)
    return job if job.task_index == index else None


def _one_of(rest: JobView, index: int) -> JobView:
    return replace(rest, task_index=index, untouched=frozenset())


def why_job(about: str, jobs: Sequence[JobView], sight: WhyInput) -> WhyAnswer:
    """Explain the records that ``jobs_named`` returned, at least one."""
    if len(jobs) > 1 or jobs[0].untouched:
        return _array(about, jobs, sight)
    return _one(about, jobs[0], sight)


def why_without_ledger(about: str, jobs: Iterable[JobView]) -> WhyAnswer | None:
    """Explain Slurm's own reason, without numbers; None unless one of the jobs waits for Slurm."""
    waiting = [job for job in jobs if job.state in WAITING and not _is_ours_to_start(job)]
    if not waiting:
        return None
    job = _next(waiting)
    return WhyAnswer(
        about=about,
        state=job.state.value,
        reason=job.reason,
        headline=f"{_title(job)} waits: {translate(job.reason, job.qos).words}.",
        sentences=("The ledger does not answer now, so there are no numbers.",),
        start="no estimate without the ledger",
        hints=("Ask again later.",),
    )


def _is_ours_to_start(job: JobView) -> bool:
    """Whether Slicewise holds the job for reasons of its own, about which Slurm knows nothing."""
    tag = JobTag.find(job.admin_comment)
    return is_resting(job) or (tag is not None and tag.is_undecided)


def _one(about: str, job: JobView, sight: WhyInput) -> WhyAnswer:
    if job.state in WAITING:
        return _waiting(about, job, sight)
    return _running(about, job, sight) if job.state in ALLOTTED else _ended(about, job, sight)


# -- Waiting


def _waiting(about: str, job: JobView, sight: WhyInput) -> WhyAnswer:
    tag = JobTag.find(job.admin_comment)
    if tag is not None and tag.is_undecided:
        return _undecided(about, job, sight)
    if tag is None and (refusal := sight.refusals.get(job.job_id)) is not None:
        return _untagged(about, job, refusal)
    if tag is not None and is_resting(job) and job.reason not in _HELD_BY_SLURM:
        return why_slot(about, job, tag, sight)
    is_over_both = job.reason == QOS_SLICES and job.job_id in sight.over_budget
    bar = sight.barred.get(job.job_id) if job.reason in LACKS_QUOTA else None
    word = bar.reason if bar is not None else QOS_BUDGET if is_over_both else job.reason
    reason = with_recalls(job, translate(word, job.qos), sight)
    short = shortage(job, reason.cause, sight) if reason.cause is not None else None
    budget = budget_shortage(job, sight) if reason.cause is Cause.BUDGET else None
    start = planned_start(job, reason, short, budget, sight)
    fits = _fits_now(reason, short, budget)
    tables = (WhyTable(heading=_heading(short), rows=holder_rows(job, short)),) if short else ()
    return WhyAnswer(
        about=about,
        state=job.state.value,
        reason=job.reason,
        headline=f"{_title(job)} waits: {reason.words}{', as Slurm last said' if fits else ''}.",
        sentences=(
            *_ran_before(job, sight),
            _asks(job, sight),
            *_numbers(short, budget),
            *((_FITS_NOW,) if fits else ()),
            *((_barred(bar, sight),) if bar is not None else ()),
            *_limit_parts(job, reason, sight),
            *recall_words(job, reason, sight),
            *_ahead(job, reason, sight),
        ),
        tables=tuple(table for table in tables if table.rows),
        start_s=start.at_s,
        start=start.words,
        hints=tuple(_hints(job, reason, budget, start, sight)),
    )


def _ran_before(job: JobView, sight: WhyInput) -> Iterable[str]:
    """That the job ran, why it no longer does, and for whom it went, as far as that is known."""
    gave_way = sight.gave_way.get(job.job_id)
    if gave_way is None:
        if job.restarts and not is_of_service(job):
            yield f"It ran before, and was requeued ({counted(job.restarts, 'time')})."
        return
    ran = "" if gave_way.ran_s is None else f" for {span_text(gave_way.ran_s)}"
    ago = span_text(max(0, sight.now_s - gave_way.at_s))
    took = f": jobs of {' and '.join(gave_way.tenants)} took its place" if gave_way.tenants else ""
    if (why := sight.made_way.get(job.job_id)) is not None:
        took = f', as Slicewise requeued it for its lender ("{why}")'
    yield f"It ran{ran} on borrowed quota, and went back to the queue {ago} ago{took}."


def _barred(bar: BarredJob, sight: WhyInput) -> str:
    when = span_text(max(60, bar.due_s - sight.now_s))
    return (
        "Slurm names its quota now; when it had quota, it waited for this. It is lent none until"
        f" this may have changed, or for {when}."
    )


def _fits_now(reason: Reason, short: Shortage | None, budget: BudgetShortage | None) -> bool:
    """Whether the numbers say otherwise than a reason that names a limit.

    Slurm changes a job's reason only when it looks at the job again.
    """
    if budget is not None:
        need = budget.need_millislice_s
        return need is not None and need <= budget.startable_millislice_s
    return reason.cause in _LIMITS and short is not None and short.missing <= 0


def _title(job: JobView) -> str:
    return f"Job {job.task} of {job.user}"


def _heading(short: Shortage) -> str:
    return f"Jobs that hold {short.of_type}" if short.of_type else "Jobs that hold it"


def _asks(job: JobView, sight: WhyInput) -> str:
    limit = "without a time limit"
    if job.time_limit_s is not None:
        limit = f"for at most {span_text(job.time_limit_s)}"
    cost = slices_words(sight.cost(job))
    what = gpus_text(job)
    if whole_millislices(job):
        what = "whole nodes, of which Slurm counts all GPUs"
    return f"It asks for {what} ({cost}) {limit}, {_quota(job)}."


def _quota(job: JobView) -> str:
    kind = "guaranteed" if is_own(job.qos) else "priority not set by Slicewise"
    return f"{'on borrowed quota' if is_borrowed(job.qos) else kind} (QOS {job.qos})"


def _numbers(short: Shortage | None, budget: BudgetShortage | None) -> Iterable[str]:
    if short is not None:
        yield f"{short.words}."
    if budget is not None:
        left = slices_text(budget.startable_millislice_s // BUDGET_RUN_S)
        words = f"The budget of {budget.payer} leaves {left} slice-hours for new runs"
        if budget.need_millislice_s is None:
            yield f"{words}; this job has no time limit."
        else:
            need = slices_text(budget.need_millislice_s // BUDGET_RUN_S)
            yield f"{words}; this one could use {need} by its time limit."


def _limit_parts(job: JobView, reason: Reason, sight: WhyInput) -> Iterable[str]:
    """What the limit of the job's tenant is made of, if the job waits for the limit."""
    name = holder_of(job)
    tenant = sight.situation.policy.get(name)
    if reason.cause is Cause.BORROWED_QOS and tenant is not None:
        standing = sight.situation.standings[name]
        limit = tenant.quota.borrowing_limit_millislices
        most = "" if limit >= MAX_NOMINAL_MILLISLICES else f" of at most {slices_text(limit)}"
        yield (
            f"Of its quota {name} lends {slices_text(standing.lent_millislices)} now;"
            f" it borrows {slices_text(standing.borrowed_millislices)}{most}."
        )


def _ahead(job: JobView, reason: Reason, sight: WhyInput) -> Iterable[str]:
    """How many jobs wait for the same with a higher priority; for quota, only its own tenant's."""
    if reason.cause is None:
        return
    everybody = reason.cause is Cause.NONE_FREE
    count = sum(
        other.tasks
        for other in sight.jobs
        if other.state in WAITING
        and not other.held
        and other.priority > job.priority
        and other.job_id != job.job_id
        and other.partition == job.partition
        and (everybody or holder_of(other) == holder_of(job))
    )
    if count:
        whose = "" if everybody else f" of {holder_of(job)}"
        has = "has" if count == 1 else "have"
        yield f"{counted(count, 'waiting job')}{whose} {has} a higher priority."


def _filled(hint: str, job: JobView, sight: WhyInput) -> str:
    """Put the job and its tenant into a hint; an account that is no tenant has no QOS to name."""
    tenant = holder_of(job)
    if _ACCOUNT in hint and tenant not in sight.situation.policy:
        return f"{tenant} has no quota, so it may not use these GPUs. Ask the operator."
    return hint.replace("JOB", job.task).replace(_ACCOUNT, tenant)


def _hints(
    job: JobView,
    reason: Reason,
    budget: BudgetShortage | None,
    start: StartEstimate,
    sight: WhyInput,
) -> Iterable[str]:
    name = job.task
    if reason.hint and not (start.by_slurm and reason.cause):
        yield _filled(reason.hint, job, sight)
    if whole_millislices(job):
        yield "Nothing is lent for whole nodes; without --exclusive only the GPUs it names count."
    elif reason.cause is Cause.OWN_QOS and not recalls_of(holder_of(job), sight):
        yield from _borrowing(job, sight)
    if budget is not None and (limit := budget.longest_s // 60):
        yield (
            f"With a time limit of {span_text(limit * 60)} it could start:"
            f" scontrol update JobId={name} TimeLimit={limit}"
        )
    if reason.cause is not None and (rooms := rooms_text(holder_of(job), sight)):
        yield f"{holder_of(job)} could start now: {rooms}."


def _borrowing(job: JobView, sight: WhyInput) -> Iterable[str]:
    name = holder_of(job)
    tenant = sight.situation.policy.get(name)
    tag = JobTag.find(job.admin_comment)
    if tenant is None or not tenant.quota.borrowing_limit_millislices:
        yield f"{name} may not borrow quota that others leave idle; the operator can allow it."
    elif tag is not None and tag.is_flexible:
        yield "It moves to borrowed quota by itself when others leave some idle."
    else:
        qos = borrowed_qos(name)
        yield f"On borrowed quota it may start sooner: submit it with --qos={qos}"


def _untagged(about: str, job: JobView, refusal: Refusal) -> WhyAnswer:
    """Explain a service's array that the daemon would not have as one; its user holds it."""
    return WhyAnswer(
        about=about,
        state=job.state.value,
        reason=job.reason,
        headline=f"{_title(job)} waits: it says that it is a service, and Slicewise refuses it.",
        sentences=(f"{refusal.message} [{refusal.code}]",),
        start="no estimate: it will not start as it is",
        hints=(
            *((refusal.hint,) if refusal.hint else ()),
            f"Cancel it (scancel {job.task}) and apply the service again.",
        ),
    )


def _undecided(about: str, job: JobView, sight: WhyInput) -> WhyAnswer:
    """Explain a job for which slicewise.lua got no answer; the daemon decides as soon as it can."""
    refusal = sight.refusals.get(job.job_id)
    if refusal is not None:
        return WhyAnswer(
            about=about,
            state=job.state.value,
            reason=job.reason,
            headline=f"{_title(job)} waits: Slicewise refuses and holds it.",
            sentences=(
                f"{refusal.message} [{refusal.code}]",
                "It was submitted while the daemon did not answer, and refused later.",
            ),
            start="no estimate: it will not start as it is",
            hints=(
                *((refusal.hint,) if refusal.hint else ()),
                f"Cancel it (scancel {job.task}) and submit it again.",
            ),
        )
    return WhyAnswer(
        about=about,
        state=job.state.value,
        reason=job.reason,
        headline=f"{_title(job)} waits: Slicewise has not decided about it yet.",
        sentences=("It was submitted while the daemon did not answer.",),
        start="no estimate before that",
        hints=("Ask again in a few seconds.",),
    )


# -- Running and ended


def _running(about: str, job: JobView, sight: WhyInput) -> WhyAnswer:
    at = f" on {', '.join(job.nodes)}" if job.nodes else ""
    since = f" for {span_text(sight.now_s - job.start_s)}" if job.start_s is not None else ""
    verbs = {"CONFIGURING": "starts", "COMPLETING": "is ending", "SUSPENDED": "is suspended"}
    return WhyAnswer(
        about=about,
        state=job.state.value,
        headline=f"{_title(job)} {verbs.get(job.state.value, 'runs')}{at}{since}.",
        sentences=(
            _holds(job, sight),
            _booting(job, sight) or _until(job, sight),
            *_paid(job, sight),
        ),
    )


def _booting(job: JobView, sight: WhyInput) -> str:
    """Say which of its nodes boot, since power saving had ended them; "" if none does."""
    names = [node.name for node in sight.nodes if node.name in job.nodes and boots(node)]
    if job.state is not JobState.CONFIGURING or not names:
        return ""
    return (
        f"Power saving had ended {', '.join(names)}: the job runs, and its time limit counts, from"
        " the end of the boot on."
    )


def _holds(job: JobView, sight: WhyInput) -> str:
    cost = slices_words(sight.cost(job))
    return f"It holds {gpus_text(job)} ({cost}), {_quota(job)}{_taken(job)}."


def _taken(job: JobView) -> str:
    if is_borrowed(job.qos):
        return ": it may be requeued when a lender's own job needs the GPU"
    return ": no other tenant's job takes it away" if is_own(job.qos) else ""


def _until(job: JobView, sight: WhyInput) -> str:
    end_s = ends_s(job)
    if job.time_limit_s is None:
        return "It has no time limit."
    if end_s is None:
        return f"Its time limit is {span_text(job.time_limit_s)}."
    rest = span_text(max(0, end_s - sight.now_s))
    return f"It ends in {rest} at the latest: its time limit is {span_text(job.time_limit_s)}."


def _paid(job: JobView, sight: WhyInput) -> Iterable[str]:
    budget = budget_shortage(job, sight)
    if budget is not None:
        yield f"The budget of {budget.payer} pays for it."


def _ended(about: str, job: JobView, sight: WhyInput) -> WhyAnswer:
    ago = "" if job.end_s is None else f" {span_text(max(0, sight.now_s - job.end_s))} ago"
    if job.start_s is None or job.end_s is None or job.end_s < job.start_s:
        ran = "It never ran."
    elif job.end_s == job.start_s:
        ran = "It ran for less than a second." if job.reason in _BY_PROGRAM else "It never ran."
    else:
        ran = f"It ran for {span_text(job.end_s - job.start_s)}."
    end = _ENDS.get(job.reason)
    return WhyAnswer(
        about=about,
        state=job.state.value,
        reason=job.reason if end else "",
        headline=f"{_title(job)} ended{ago}{f': {end}' if end else ''}.",
        sentences=(ran,),
        hints=(f"Its state and exit code: sacct -j {job.task}",),
    )


# -- Arrays


def _array(about: str, jobs: Sequence[JobView], sight: WhyInput) -> WhyAnswer:
    """Explain an array: all tasks by state and reason, then the task that would start next."""
    waiting = [job for job in jobs if job.state in WAITING]
    tag = JobTag.find(jobs[0].admin_comment)
    service = f", service {tag.tenant}/{tag.service}" if tag is not None and tag.service else ""
    tasks = ", ".join(f"{count} {verb}" for verb, count in _counts(jobs).items())
    rows = group_rows(jobs, sight)
    summary = WhyAnswer(
        about=about,
        headline=f"Array {about} of {jobs[0].user}{service}: {tasks}.",
        tables=(WhyTable(heading="Its tasks", rows=rows),),
    )
    if not waiting:
        return summary
    following = _one(about, _first(waiting, sight), sight)
    return following.model_copy(
        update={
            "state": "",
            "headline": summary.headline,
            "sentences": (f"Next: {following.headline}", *following.sentences),
            "tables": (*summary.tables, *following.tables),
        }
    )


def _first(waiting: Iterable[JobView], sight: WhyInput) -> JobView:
    """The task that would start next; of slots at rest one that only quota keeps back, if any."""
    parts = [part for job in waiting for part in by_quota(job, sight)]
    kept = [job for job in parts if kept_back(job, sight)]
    return _next(kept if kept and all(map(is_resting, parts)) else parts)


def _next(waiting: Iterable[JobView]) -> JobView:
    """The waiting job, or task of an array, that would start next."""
    first = min(waiting, key=lambda job: (job.held, -job.priority, _first_index(job)))
    return _one_of(first, _first_index(first)) if first.untouched else first


def _counts(jobs: Iterable[JobView]) -> Mapping[str, int]:
    counts: Counter[str] = Counter(dict.fromkeys(("run", "wait", "at rest", "ended"), 0))
    for job in jobs:
        waits = "at rest" if is_resting(job) else "wait"
        ends = "run" if job.state in ALLOTTED else "ended"
        counts[waits if job.state in WAITING else ends] += job.tasks
    return +counts


def _first_index(job: JobView) -> int:
    return min(job.untouched) if job.untouched else job.task_index or 0
