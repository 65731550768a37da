"""Services for people and as JSON."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.service import ServiceSpec
from cluster.units import slices_text
from launcher.observe import ServiceObservation

_PIPE_WIDTH = 200
"""Columns where there is no terminal: nothing may be cut off."""
_STATES = (
    ("ready", "green"),
    ("starting", "yellow"),
    ("draining", "magenta"),
    ("held", "dim"),
    ("gone", "red"),
)


def console() -> Console:
    """Colours and the terminal's width on a terminal only."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def as_json(service: ServiceObservation) -> Mapping[str, object]:
    """The keys of ``--json``; slots by state as sorted lists of their indices."""
    slots = {state: sorted(getattr(service, state)) for state, _ in _STATES}
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
    }


def services_table(services: Iterable[ServiceObservation]) -> Table:
    """One line per service."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("service", "profile"):
        table.add_column(name)
    for name in ("ready", "starting", "draining", "held", "backlog", "in flight"):
        table.add_column(name, justify="right")
    table.add_column("address")
    for service in services:
        counts = (_count(service, state, style) for state, style in _STATES[:4])
        table.add_row(
            service.service,
            service.profile,
            *counts,
            _number(service.backlog),
            _number(service.in_flight),
            service.url,
        )
    return table


def _count(service: ServiceObservation, state: str, style: str) -> Text:
    count = len(getattr(service, state))
    return Text(str(count), style=style if count else "dim")


def _number(value: int | None) -> str:
    return "–" if value is None else str(value)


def service_details(service: ServiceObservation) -> RenderableType:
    """Everything about one service."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("service", f"{service.service} (array job {service.array_job_id})")
    table.add_row("address", f"{service.url}/v2/...")
    table.add_row("replicas", _replicas(service))
    table.add_row("requests", _requests(service))
    table.add_row("slice", f"{service.profile}, {service.min_replicas} to {service.max_replicas}")
    table.add_row("quota", _quota(service))
    if service.note:
        table.add_row("waits", Text(service.note, style="yellow"))
    return Group(table)


def _replicas(service: ServiceObservation) -> Text:
    parts = (
        Text(f"{len(slots)} {state} ({_slots(slots)})", style=style)
        for state, style in _STATES
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
    return f"{service.tenant} holds {slices_text(used)} of {slices_text(nominal)} slices"


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


def schema_table() -> Table:
    """The same for people."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("key", "type", "default", "meaning"):
        table.add_column(name)
    for row in schema_rows():
        default = "required" if row["required"] else _default(row["default"])
        table.add_row(row["key"], row["type"], default, row["meaning"])
    return table


def _default(value: object) -> str:
    return "–" if value is None else str(value)
