"""Explains why a service's slot does not run: it is not needed, or its service fails to start."""

from collections.abc import Iterable

from slicewise.cluster.language.jobs import JobTag, JobView, last_words
from slicewise.cluster.rpc.messages import ServiceReport
from slicewise.cluster.rpc.read_messages import WhyAnswer
from slicewise.slurm_plugin.rules.explain.shortage import WhyInput
from slicewise.slurm_plugin.rules.explain.why_texts import fails, kept_back, span_text


def why_slot(about: str, job: JobView, tag: JobTag, sight: WhyInput) -> WhyAnswer:
    """Explain a slot that Slicewise holds; ``tag`` is the job's tag."""
    report = sight.reports.get((tag.tenant, tag.service or ""))
    if report is not None and fails(report, job):
        return _failing(about, job, report, sight)
    service = f"{tag.tenant}/{tag.service}"
    if short := kept_back(job, sight):
        return WhyAnswer(
            about=about,
            state=job.state.value,
            reason=job.reason,
            headline=f"{job.task} is a slot of service {service}, whose requests wait.",
            sentences=(f"It is not started for want of {short}.",),
            start="when the quota has room",
            hints=(
                f"Which jobs hold the quota: slicewise why {tag.tenant}",
                f"See: slicewise service status {service}",
            ),
        )
    note = sight.notes.get(job.array_job_id or 0, "")
    return WhyAnswer(
        about=about,
        state=job.state.value,
        reason=job.reason,
        headline=f"{job.task} is a slot of service {service} at rest: it costs nothing.",
        sentences=(
            "The launcher decides when it runs, by the service's requests.",
            f"The daemon releases it then, within the quota of {tag.tenant}.",
            *((f"The service's note: {note}.",) if note else ()),
        ),
        start="when requests need it",
        hints=(f"See: slicewise service status {service}",),
    )


def _failing(about: str, job: JobView, report: ServiceReport, sight: WhyInput) -> WhyAnswer:
    service = f"{report.tenant}/{report.name}"
    next_s = max(sight.now_s, int(report.next_start_s or 0)) if report.desired_replicas else None
    starts = (
        "1 start has"
        if report.failed_starts == 1
        else f"{report.failed_starts} starts in a row have"
    )
    return WhyAnswer(
        about=about,
        state=job.state.value,
        reason=job.reason,
        headline=f"{job.task} is a slot of service {service}, which fails to start.",
        sentences=(f"{starts} failed{_pause(next_s, sight.now_s)}.", *_said(job, sight)),
        start_s=next_s,
        start="at the earliest; one slot tries for all"
        if next_s
        else "the next request tries again",
        hints=(
            f"See its output: slicewise service logs {service}",
            f"To try again sooner, once it is fixed: slicewise service restart {service}",
        ),
    )


def _pause(next_s: int | None, now_s: int) -> str:
    if next_s is None:
        return "; no request waits now"
    return f"; the next one is tried in {span_text(next_s - now_s)}" if next_s > now_s else ""


def _said(job: JobView, sight: WhyInput) -> Iterable[str]:
    """How the slot's own last run ended, or else the last run of another slot of its array."""
    array = (other for other in sight.jobs if other.array_job_id == job.array_job_id)
    words = (last_words(slot) for slot in (job, *array))
    if words_of_last := next(filter(None, words), ""):
        yield f"The last one {words_of_last}."
