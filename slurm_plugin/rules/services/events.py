"""Tells what happened to a service's replicas from one look to the next."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from slicewise.cluster.rpc.messages import ServiceReport, ServiceView, SlotPlace, SlotView
from slicewise.cluster.rpc.read_messages import ServiceEvent

Reports = Mapping[tuple[str, str], ServiceReport]
"""The launcher's reports, by tenant and name."""
_LIVES = frozenset({"starting", "running"})
_RUNS = _LIVES | {"ending"}
"""States of a slot that holds a slice. Of one that ends Slurm says another start each second."""


def happened(
    before: Iterable[ServiceView],
    now: Collection[ServiceView],
    reports_before: Reports,
    reports: Reports,
    at_s: int,
) -> Iterator[tuple[tuple[str, str], ServiceEvent]]:
    """Yield events by tenant and name.

    A service that was not there before has none: a daemon that starts does not know when what
    it finds has happened.
    """
    views = {view.array_job_id: view for view in before}
    yield from _refusals(now, reports_before, reports, at_s)
    for view in now:
        last = views.get(view.array_job_id)
        if last is None:
            continue
        key = (view.tenant, view.name)
        slots = {slot.index: slot for slot in last.slots}
        reported_before, reported = _by_place(reports_before.get(key)), _by_place(reports.get(key))
        for slot in view.slots:
            had = slots.get(slot.index, slot)
            place = (view.array_job_id, slot.index)
            for what, why in _of_slot(
                had, slot, reported_before.get(place, ""), reported.get(place, "")
            ):
                yield (
                    key,
                    ServiceEvent(
                        at_s=at_s,
                        array_job_id=view.array_job_id,
                        slot=slot.index,
                        node=slot.node or had.node or None,
                        what=what,
                        why=why or None,
                    ),
                )


def _refusals(
    now: Collection[ServiceView], reports_before: Reports, reports: Reports, at_s: int
) -> Iterator[tuple[tuple[str, str], ServiceEvent]]:
    """Yield which replicas of their pool could not load services' models."""
    nodes = {(view.array_job_id, slot.index): slot.node for view in now for slot in view.slots}
    for key in dict.fromkeys((view.tenant, view.name) for view in now):
        had, has = reports_before.get(key), reports.get(key)
        if had is None or has is None:
            continue
        for refusal in has.refusals:
            if refusal in had.refusals:
                continue
            place = (refusal.array_job_id, refusal.slot)
            yield (
                key,
                ServiceEvent(
                    at_s=at_s,
                    array_job_id=refusal.array_job_id,
                    slot=refusal.slot,
                    node=nodes.get(place) or None,
                    what="refused",
                    why=refusal.why or None,
                ),
            )


def _of_slot(
    had: SlotView, slot: SlotView, reported_before: str, reported: str
) -> Iterator[tuple[str, str]]:
    """Yield what happened, and why. ``reported`` is "ready", "drains" or "" for neither."""
    is_new_run = slot.state in _LIVES and (slot.start_s != had.start_s or had.state not in _RUNS)
    if had.state in _RUNS and (slot.state not in _RUNS or is_new_run):
        failed = "" if is_new_run else slot.last_failure
        yield ("failed", failed) if failed else ("ended", had.ends_why)
    if is_new_run:
        yield "started", ""
    if slot.ends_why and slot.ends_why != had.ends_why:
        yield "told to end", slot.ends_why
    if reported and reported != reported_before:
        yield reported, slot.ends_why or ("no longer needed" if reported == "drains" else "")
    if slot.state == "gone" and had.state != "gone":
        yield "lost", slot.slurm_state


def _by_place(report: ServiceReport | None) -> Mapping[SlotPlace, str]:
    if report is None:
        return {}
    drains, ready = dict.fromkeys(report.draining, "drains"), dict.fromkeys(report.ready, "ready")
    return {**drains, **ready}
