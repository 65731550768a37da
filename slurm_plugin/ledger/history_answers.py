"""Puts history into the answer that people get: for commands and for the daemon."""

from collections.abc import Mapping

from sqlalchemy import Table

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.history_messages import (
    CLUSTER,
    MOST_POINTS,
    HistoryAnswer,
    HistoryRequest,
    HistorySeries,
    HistoryUnit,
)
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.ledger.history_tables import (
    MAX,
    SAMPLES,
    history_cluster,
    history_services,
    history_tenants,
)
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.common.history import KEPT_S, history_steps

_OF_CLUSTER: dict[str, HistoryUnit] = dict.fromkeys(
    ("used", "lent", "idle", "draining", "down", "waiting", "late"), "millislices"
)
_OF_TENANTS: dict[str, HistoryUnit] = {
    **dict.fromkeys(("nominal", "in_use", "borrowed", "lent", "waiting", "late"), "millislices"),
    "budget_left": "millislice_s",
}
_OF_SERVICES: dict[str, HistoryUnit] = {
    "ready": "replicas",
    "desired": "replicas",
    "backlog": "requests",
    "p95": "ms",
    "requests": "requests_per_s",
}


def history_subject(about: str) -> tuple[str, str]:
    """The tenant and the service of a request; both "" for the cluster, "" for no service."""
    tenant, _, service = ("", "", "") if about == CLUSTER else about.partition("/")
    return tenant, service


def _figures_of(tenant: str, service: str) -> tuple[Table, Mapping[str, HistoryUnit]]:
    if service:
        return history_services, _OF_SERVICES
    return (history_tenants, _OF_TENANTS) if tenant else (history_cluster, _OF_CLUSTER)


def history_answer(
    ledger: Ledger, settings: Settings, request: HistoryRequest, now_s: int
) -> HistoryAnswer:
    """Read what the request asks for; of a tenant without history all is gaps.

    Raises InvalidInputError (SW-SERVICE-UNKNOWN) for a service without history.
    """
    tenant, service = history_subject(request.about)
    if service and not ledger.history.knows(tenant, service):
        raise InvalidInputError(
            Code.SERVICE_UNKNOWN,
            f"Nothing was recorded of a service {request.about!r}.",
            "A service is recorded some seconds after it was applied.",
        )
    steps = history_steps(request.since_s, request.until_s, now_s, KEPT_S, MOST_POINTS)
    rows = ledger.history.rows(tenant, service, steps)

    def figures(name: str) -> tuple[float | None, ...]:
        found = (rows.get(at_s, {}).get(name) for at_s in steps.times_s)
        return tuple(None if value is None else round(value, 3) for value in found)

    table, units = _figures_of(tenant, service)
    return HistoryAnswer(
        about=request.about,
        step_s=steps.step_s,
        times_s=steps.times_s,
        samples=tuple(int(rows.get(at_s, {}).get(SAMPLES) or 0) for at_s in steps.times_s),
        series=tuple(
            HistorySeries(
                name=name,
                unit=unit,
                values=figures(name),
                highest=figures(MAX + name) if MAX + name in table.c else (),
            )
            for name, unit in units.items()
        ),
        zone=settings.ledger.time_zone,
    )
