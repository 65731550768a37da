"""Services for people and as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.console import FittingTable, column
from cluster.service import ServiceSpec
from cluster.units import slices_text, slices_words
from launcher.observe import ServiceObservation

_STYLES = {
    "ready": "green",
    "starting": "yellow",
    "draining": "magenta",
    "held": "dim",
    "gone": "red",
}


def as_json(service: ServiceObservation) -> Mapping[str, object]:
    """The keys of ``--json``; slots by state as sorted lists of their indices."""
    slots = {state: sorted(getattr(service, state)) for state in _STYLES}
    return {
        "service": service.service,
        "tenant": service.tenant,
        "name": service.name,
        "array_job_id": service.array_job_id,
        "user": service.user,
        "url": service.url,
        "profile": service.profile,
        "min_replicas": service.min_replicas,
        "max_replicas": service.max_replicas,
        "backlog": service.backlog,
        "in_flight": service.in_flight,
        "slots": slots,
        "used_millislices": service.used_millislices,
        "nominal_millislices": service.nominal_millislices,
        "note": service.note,
        "loss": service.loss,
    }


def services_overview(services: Sequence[ServiceObservation]) -> RenderableType:
    """One line per service; below, what their users should know."""
    losses = (Text(f"{s.service}: {s.loss}", style="red") for s in services if s.loss)
    return Group(_services_table(services), *losses)


def _services_table(services: Sequence[ServiceObservation]) -> FittingTable:
    return FittingTable(
        (
            column("service", (s.service for s in services)),
            column("profile", (s.profile for s in services), rank=1),
            column("ready", _counts(services, "ready"), right=True),
            column("starting", _counts(services, "starting"), right=True),
            column("draining", _counts(services, "draining"), right=True, rank=2),
            column("held", _counts(services, "held"), right=True, rank=3),
            column("backlog", (_number(s.backlog) for s in services), right=True),
            column("in flight", (_number(s.in_flight) for s in services), right=True),
            column("address", (s.url for s in services), rank=4),
        )
    )


def _counts(services: Iterable[ServiceObservation], state: str) -> Iterable[Text]:
    counts = (len(getattr(service, state)) for service in services)
    return (Text(str(count), style=_STYLES[state] if count else "dim") for count in counts)


def _number(value: int | None) -> str:
    return "–" if value is None else str(value)


def service_details(service: ServiceObservation) -> RenderableType:
    """Everything about one service."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("service", f"{service.service} (array job {service.array_job_id})")
    table.add_row("address", f"{service.url}/v2/...")
    table.add_row("replicas", _replicas(service))
    table.add_row("requests", _requests(service))
    table.add_row("slice", f"{service.profile}, {service.min_replicas} to {service.max_replicas}")
    table.add_row("quota", _quota(service))
    if service.note:
        table.add_row("waits", Text(service.note, style="yellow"))
    if service.loss:
        table.add_row("lost", Text(service.loss, style="red"))
    return Group(table)


def _replicas(service: ServiceObservation) -> Text:
    parts = (
        Text(f"{len(slots)} {state} ({_slots(slots)})", style=style)
        for state, style in _STYLES.items()
        if (slots := getattr(service, state))
    )
    return Text(", ").join(parts)


def _slots(indices: frozenset[int]) -> str:
    """Slots as ranges: ``0-2,5``."""
    ranges: list[list[int]] = []
    for index in sorted(indices):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _requests(service: ServiceObservation) -> str:
    if service.load is None:
        return "not visible to you"
    load = service.load
    return f"{load.in_flight} in flight, {load.queued} queued, {load.held} held for a first replica"


def _quota(service: ServiceObservation) -> str:
    if service.used_millislices is None or service.nominal_millislices is None:
        return "none"
    used, nominal = service.used_millislices, service.nominal_millislices
    return f"{service.tenant} holds {slices_text(used)} of {slices_words(nominal)}"


def schema_rows() -> tuple[Mapping[str, Any], ...]:
    """Every key of a service file: its type, default and meaning."""
    properties = ServiceSpec.model_json_schema()["properties"]
    return tuple(
        {
            "key": key,
            "type": _type(properties[key]),
            "required": field.is_required(),
            "default": None if field.is_required() else field.default,
            "meaning": field.description,
        }
        for key, field in ServiceSpec.model_fields.items()
    )


def _type(found: Mapping[str, Any]) -> str:
    kinds = [str(option["type"]) for option in found.get("anyOf", (found,)) if "type" in option]
    return " or ".join(kind for kind in kinds if kind != "null")


def schema_table() -> FittingTable:
    """The same for people."""
    rows = schema_rows()
    defaults = ("required" if row["required"] else _default(row["default"]) for row in rows)
    return FittingTable(
        (
            column("key", (row["key"] for row in rows)),
            column("type", (row["type"] for row in rows)),
            column("default", defaults),
            column("meaning", (row["meaning"] for row in rows), folds=True),
        )
    )


def _default(value: object) -> str:
    return "–" if value is None else str(value)
