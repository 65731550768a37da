"""Chooses and sorts services as a viewer asks."""

from collections.abc import Callable, Iterable, Sequence

from slicewise.cluster.rpc.overview_messages import ServiceNow
from slicewise.slurm_plugin.rules.pages.rows import named

STATES = (
    ("", "all"),
    *(
        (one, one)
        for one in ("failing", "unpaid", "waking", "rolling", "ready", "asleep", "ending")
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
    "state": lambda one: _RANKS[one.condition],
    "backlog": lambda one: -(one.backlog or 0),
    "p95": lambda one: -(one.p95_ms or 0.0),
    "rate": lambda one: -(one.rate_per_s or 0.0),
    "replicas": lambda one: -one.ready,
}


def services_shown(
    services: Iterable[ServiceNow], text: str, state: str, sort: str
) -> Sequence[ServiceNow]:
    """The services whose TENANT/NAME has the text, in that state, the largest figures first."""
    found = named(services, text, lambda one: f"{one.tenant}/{one.name}", lambda one: one.user)
    chosen = [one for one in found if state in ("", one.condition)]
    chosen.sort(key=lambda one: (one.tenant, one.name))
    return sorted(chosen, key=_KEYS[sort]) if sort in _KEYS else chosen


def service_of(services: Iterable[ServiceNow], tenant: str, name: str) -> ServiceNow | None:
    """The service of that name; None if the reader sees none."""
    return next((one for one in services if (one.tenant, one.name) == (tenant, name)), None)
