"""Which replica of a pool has which model: joins what the launcher tells of its services."""

from collections.abc import Collection, Iterator, Mapping

from slicewise.cluster.language.pools import sharing
from slicewise.cluster.rpc.messages import ServiceReport, ServiceView, SlotPlace
from slicewise.cluster.rpc.read_messages import PooledModelNow


def pool_models(
    service: str, views: Collection[ServiceView], reports: Collection[ServiceReport]
) -> tuple[PooledModelNow, ...]:
    """Return what the replicas have that ``tenant/service`` shares; nothing if it shares none.

    Replica by replica, its own model first; at the end models that are nowhere.
    """
    newest: dict[str, ServiceView] = {}
    for view in sorted(views, key=lambda view: view.array_job_id):
        newest[f"{view.tenant}/{view.name}"] = view
    groups = sharing((key, view.user, view.directives) for key, view in newest.items())
    members = next((group for group in groups if service in group), ())
    nodes = {
        (view.array_job_id, slot.index): (view.name, slot.node)
        for view in views
        if f"{view.tenant}/{view.name}" in members
        for slot in view.slots
    }
    told = {f"{report.tenant}/{report.name}": report for report in reports}
    rows = [row for key in members for row in _rows(newest[key], told.get(key), nodes)]
    return tuple(sorted(rows, key=lambda row: _order(row, nodes)))


_Nodes = Mapping[SlotPlace, tuple[str, str]]
"""The service whose slot a replica is, and its node."""


def _rows(
    view: ServiceView, report: ServiceReport | None, nodes: _Nodes
) -> Iterator[PooledModelNow]:
    absent = PooledModelNow(service=view.name, model=view.directives.get("model", ""))
    told = dict[SlotPlace, dict[str, object]]()
    if report is not None:
        for refusal in report.refusals:
            told[refusal.array_job_id, refusal.slot] = {"state": "refused", "why": refusal.why}
        for place in report.places:
            seen = place.model_dump(include={"state", "in_flight", "load_s"})
            told.setdefault((place.array_job_id, place.slot), {}).update(seen)
    here = {place: fields for place, fields in told.items() if place in nodes}
    for (array_job_id, slot), fields in here.items():
        at = {"array_job_id": array_job_id, "slot": slot, "node": nodes[array_job_id, slot][1]}
        yield absent.model_copy(update=at | fields)
    if not here:
        yield absent


def _order(row: PooledModelNow, nodes: _Nodes) -> tuple[bool, SlotPlace, bool, str]:
    place = (row.array_job_id or 0, row.slot or 0)
    is_guest = place in nodes and nodes[place][0] != row.service
    return row.array_job_id is None, place, is_guest, row.service
