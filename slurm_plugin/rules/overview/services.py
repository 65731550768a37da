"""Says how each service stands: replicas, requests, what the launcher wants and why."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from slicewise.cluster.language.service import can_follow, whole_number
from slicewise.cluster.rpc.messages import ServiceReport, ServiceView, SlotView
from slicewise.cluster.rpc.overview_messages import ServiceCondition, ServiceNow
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts, Reader

_UNDER_WAY = frozenset({"released", "starting", "running"})


def seen_services(facts: OverviewFacts, reader: Reader) -> Iterator[tuple[ServiceView, ...]]:
    """Yield the generations of each service that the reader may see, the newest first."""
    by_name = defaultdict[tuple[str, str], list[ServiceView]](list)
    for view in sorted(facts.services, key=lambda service: -service.array_job_id):
        by_name[view.tenant, view.name].append(view)
    for (tenant, _), living in sorted(by_name.items(), key=lambda pair: pair[0]):
        if reader.may_read(tenant) or any(service.user == reader.user for service in living):
            yield tuple(living)


def service_now(living: Sequence[ServiceView], facts: OverviewFacts) -> ServiceNow:
    """Say how a service stands, by its generations, the newest first."""
    newest, order = living[0], living[0].order
    report = facts.reports.get((newest.tenant, newest.name))
    states = Counter(_replica(view, slot, report) for view in living for slot in view.slots)
    least, most = order.min_replicas, order.max_replicas
    quality = report.quality if report is not None else None
    return ServiceNow(
        tenant=newest.tenant,
        name=newest.name,
        user=newest.user,
        condition=_condition(living, report, ready=states["ready"], starting=states["starting"]),
        ready=states["ready"],
        starting=states["starting"],
        min_replicas=whole_number(newest.directives, "min_replicas", 0) if least is None else least,
        max_replicas=len(newest.slots) if most is None else most,
        desired_replicas=report.desired_replicas if report is not None else None,
        why=report.reason if report is not None else "",
        backlog=report.queued + report.held if report is not None else None,
        in_flight=report.in_flight if report is not None else None,
        rate_per_s=report.rate_per_s if report is not None else None,
        p95_ms=quality.p95_ms if quality is not None else None,
        warm_replicas=report.warm_replicas if report is not None else 0.0,
        warm_days=report.warm_days if report is not None else (),
        note=newest.note,
    )


def _replica(view: ServiceView, slot: SlotView, report: ServiceReport | None) -> str:
    """Return ``ready``, ``starting``, or "" for what serves no requests and will not."""
    if slot.state not in _UNDER_WAY:
        return ""
    if report is None:
        return "ready" if slot.state == "running" else "starting"
    place = (view.array_job_id, slot.index)
    if place in report.draining:
        return ""
    return "ready" if place in report.ready else "starting"


def _condition(
    living: Sequence[ServiceView], report: ServiceReport | None, *, ready: int, starting: int
) -> ServiceCondition:
    newest = living[0]
    if newest.order.delete_s is not None:
        return "ending"
    if failed_starts(newest, report) and not ready:
        return "failing"
    older = (
        slot
        for view in living[1:]
        if not can_follow(view.directives, newest.directives)
        for slot in view.slots
    )
    if any(slot.state in _UNDER_WAY for slot in older):
        return "rolling"
    if ready or (report is not None and report.shared_replicas):
        return "ready"
    if report is not None and report.is_unpaid:
        return "unpaid"
    is_wanted = report is not None and (report.desired_replicas or report.queued or report.held)
    return "waking" if starting or is_wanted else "asleep"


def failed_starts(newest: ServiceView, report: ServiceReport | None) -> int:
    """Starts of the newest generation that failed in a row."""
    if report is None or report.array_job_id not in {None, newest.array_job_id}:
        return 0
    return report.failed_starts
