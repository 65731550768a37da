"""Texts and table rows for ``slicewise why``."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter

from slicewise.cluster.language.jobs import ALLOTTED, WAITING, JobTag, JobView, is_resting
from slicewise.cluster.language.units import counted, slices_words
from slicewise.cluster.rpc.messages import ServiceReport
from slicewise.cluster.rpc.read_messages import WhyRow
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, is_borrowed
from slicewise.slurm_plugin.rules.explain.headroom import explain
from slicewise.slurm_plugin.rules.explain.reasons import Reason, translate
from slicewise.slurm_plugin.rules.explain.shortage import (
    QUOTA,
    Shortage,
    WhyInput,
    ends_s,
    recalls_of,
)

_ROWS = 10
"""Most jobs that are named one by one."""
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def span_text(seconds: int) -> str:
    """A time span in its two largest units: ``45 s``, ``14 min``, ``2 h 3 min``, ``3 d 4 h``."""
    parts: list[str] = []
    for unit, length_s in _UNITS:
        count, seconds = divmod(seconds, length_s)
        if parts:
            return f"{parts[0]} {count} {unit}" if count else parts[0]
        if count:
            parts.append(f"{count} {unit}")
    return parts[0] if parts else "0 s"


def gpus_text(job: JobView) -> str:
    """The job's GPUs as text: ``1 × 1g.10gb``; those of one task for an array's untouched rest."""
    return _gpus(job.gpus) or "no GPU"


def _gpus(counts: Mapping[str, int]) -> str:
    return " + ".join(
        f"{count} × {gres_type}" for gres_type, count in sorted(counts.items()) if count
    )


def rooms_text(tenant: str, sight: WhyInput) -> str:
    """What may start now, by type: ``1g.10gb (2 guaranteed, 1 borrowed)``; "" if nothing."""
    now = sight.situation
    rooms = explain(tenant, now).types if tenant in now.policy else ()
    parts = (
        (room.gres_type, ((room.guaranteed, "guaranteed"), (room.borrowed, "borrowed")))
        for room in rooms
    )
    texts = (
        (kind, ", ".join(f"{count} {word}" for count, word in counts if count))
        for kind, counts in parts
    )
    return ", ".join(f"{kind} ({text})" for kind, text in texts if text)


def with_recalls(job: JobView, reason: Reason, sight: WhyInput) -> Reason:
    """The reason, replaced if the job's tenant takes back what it has lent.

    Slurm itself knows only the lowered limit.
    """
    if reason.cause not in QUOTA or not recalls_of(holder_of(job), sight):
        return reason
    return replace(reason, words="what its tenant has lent is not back yet")


def recall_words(job: JobView, reason: Reason, sight: WhyInput) -> Iterable[str]:
    """Which borrowers give quota back to the job's tenant, and by when."""
    recalls = recalls_of(holder_of(job), sight) if reason.cause in QUOTA else ()
    if recalls:
        slices = slices_words(sum(recall.amount_millislices for recall in recalls))
        borrowers = ", ".join(sorted({recall.borrower for recall in recalls}))
        left_s = max(recall.called_s for recall in recalls) + sight.grace_s - sight.now_s
        at_latest = f"in {span_text(max(0, left_s))} at the latest"
        yield f"{holder_of(job)} gets {slices} back from {borrowers}, {at_latest}."


# -- Rows

_Group = tuple[int, str]
"""Position in the order, and text."""
_RUNS, _WAITS, _RESTS, _ENDED = range(4)


def holder_rows(job: JobView, short: Shortage) -> tuple[WhyRow, ...]:
    """Rows of holders: those of the job's own account one by one, the next to end first; others',
    which its users may not see, as a sum.
    """
    own = [pair for pair in short.holders if pair[0].account == job.account]
    others = [pair for pair in short.holders if pair[0].account != job.account]
    return (*own_rows(own, short.of_type), *_sum_row(others, "other tenants", short.of_type))


def own_rows(pairs: Iterable[tuple[JobView, int]], of_type: str = "") -> tuple[WhyRow, ...]:
    """Rows of jobs with what each holds, the next to end first; from the eleventh on as a sum."""
    order = sorted(pairs, key=lambda pair: (_end_or_never(pair[0]), pair[0].job_id))
    rows = (_job_row(job, amount, of_type) for job, amount in order[:_ROWS])
    return (*rows, *_sum_row(order[_ROWS:], "further jobs", of_type))


def _end_or_never(job: JobView) -> float:
    end_s = ends_s(job)
    return float("inf") if end_s is None else end_s


def _job_row(job: JobView, amount: int, of_type: str) -> WhyRow:
    notes = ["borrowed"] if is_borrowed(job.qos) else []
    if job.time_limit_s is None:
        notes.append("no time limit")
    return WhyRow(
        what=f"job {job.task} of {job.user}",
        gpus=gpus_text(job),
        amount_millislices=None if of_type else amount,
        ends_s=ends_s(job),
        note=", ".join(notes),
    )


def _sum_row(pairs: Iterable[tuple[JobView, int]], whose: str, of_type: str) -> Iterator[WhyRow]:
    held = list(pairs)
    if not held:
        return
    amount = sum(map(itemgetter(1), held))
    gpus: Counter[str] = Counter()
    for job, _ in held:
        gpus.update(job.gpus)
    yield WhyRow(
        what=f"{whose} ({counted(len(held), 'job')})",
        gpus=_gpus(gpus),
        amount_millislices=None if of_type else amount,
    )


def group_rows(jobs: Iterable[JobView], sight: WhyInput) -> tuple[WhyRow, ...]:
    """Rows of tasks or jobs by state and reason; running ones come first.

    Slots at rest and ended jobs have no amount: they hold nothing and wait for nothing.
    """
    counts: Counter[_Group] = Counter()
    amounts: Counter[_Group] = Counter()
    gpus: dict[_Group, Counter[str]] = {}
    for job in (part for whole in jobs for part in by_quota(whole, sight)):
        key, count = _group(job, sight), job.tasks
        counts[key] += count
        amounts[key] += count * sight.cost(job)
        held = {gres_type: count * each for gres_type, each in job.gpus.items()}
        gpus.setdefault(key, Counter()).update(held)
    return tuple(
        WhyRow(
            what=f"{counts[key]} {key[1]}",
            gpus=_gpus(gpus[key]),
            amount_millislices=amounts[key] if key[0] <= _WAITS else None,
        )
        for key in sorted(counts)
    )


def kept_back(job: JobView, sight: WhyInput) -> str:
    """Return why quota keeps a resting slot from starting while requests wait; "" if none does."""
    array, report = job.array_job_id or 0, _report(job, sight)
    waits = report is not None and report.desired_replicas and (report.held or report.queued)
    is_kept = job.task_index in sight.kept_back.get(array, ())
    return sight.notes.get(array, "") if waits and is_kept else ""


def _report(job: JobView, sight: WhyInput) -> ServiceReport | None:
    tag = JobTag.find(job.admin_comment)
    return sight.reports.get((tag.tenant, tag.service or "")) if tag is not None else None


def _rest_words(job: JobView, sight: WhyInput) -> str:
    if (report := _report(job, sight)) is not None and fails(report, job):
        return "its service fails to start"
    return "quota has no room" if kept_back(job, sight) else "no more replicas are needed"


def fails(report: ServiceReport, job: JobView) -> bool:
    """Whether starts of the slot's generation fail, also while no request waits for one.

    Those of replicas beyond the ones that serve count while they are desired only.
    """
    array = job.array_job_id or job.job_id
    serving = sum(place[0] == array for place in report.ready)
    is_lacking = serving < max(1, report.desired_replicas)
    return is_lacking and report.failed_starts > 0 and report.array_job_id in {None, array}


def by_quota(job: JobView, sight: WhyInput) -> Iterator[JobView]:
    """Split a record of untouched tasks into those that quota keeps back, and the others."""
    kept = job.untouched & sight.kept_back.get(job.array_job_id or 0, frozenset())
    if not kept:
        yield job
        return
    yield from (replace(job, task_index=index, untouched=frozenset()) for index in sorted(kept))
    if rest := job.untouched - kept:
        yield replace(job, untouched=rest)


def _group(job: JobView, sight: WhyInput) -> _Group:
    if job.state in ALLOTTED:
        return _RUNS, "run"
    if is_resting(job):
        return _RESTS, f"at rest: {_rest_words(job, sight)}"
    if job.state not in WAITING:
        return _ENDED, "ended"
    if job.job_id in sight.refusals:
        return _WAITS, "wait: Slicewise refuses it"
    return _WAITS, f"wait: {with_recalls(job, translate(job.reason, job.qos), sight).words}"
