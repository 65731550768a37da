"""Chooses and sorts services as a viewer asks."""

from collections.abc import Callable, Iterable, Sequence

from slicewise.cluster.rpc.overview_messages import ServiceNow
from slicewise.slurm_plugin.rules.pages.rows import named

STATES = (
    ("", "all"),
    *(
        (state, state)
        for state in ("failing", "unpaid", "waking", "rolling", "ready", "asleep", "ending")
    ),
)
SORTS = (
    ("", "name"),
    ("state", "state"),
    ("backlog", "backlog"),
    ("p95", "p95"),
    ("rate", "requests"),
    ("replicas", "replicas"),
)
"""Values of a query, with their words; the first holds without a choice."""
_RANKS = {value: rank for rank, (value, _) in enumerate(STATES)}
_KEYS: dict[str, Callable[[ServiceNow], float]] = {
    "state": lambda service: _RANKS[service.condition],
    "backlog": lambda service: -(service.backlog or 0),
    "p95": lambda service: -(service.p95_ms or 0.0),
    "rate": lambda service: -(service.rate_per_s or 0.0),
    "replicas": lambda service: -service.ready,
}


def services_shown(
    services: Iterable[ServiceNow], text: str, state: str, sort: str
) -> Sequence[ServiceNow]:
    """The services whose TENANT/NAME has the text, in that state, the largest figures first."""
    matching = named(
        services,
        text,
        lambda service: f"{service.tenant}/{service.name}",
        lambda service: service.user,
    )
    chosen = [service for service in matching if state in ("", service.condition)]
    chosen.sort(key=lambda service: (service.tenant, service.name))
    return sorted(chosen, key=_KEYS[sort]) if sort in _KEYS else chosen


def service_of(services: Iterable[ServiceNow], tenant: str, name: str) -> ServiceNow | None:
    """The service of that name; None if the reader sees none."""
    return next(
        (service for service in services if (service.tenant, service.name) == (tenant, name)), None
    )
