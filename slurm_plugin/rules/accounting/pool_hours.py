"""Divides an hour of a pool's replica among the services of its tenant that have used it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.division import divided


@dataclass(frozen=True)
class PoolHour:
    """An hour of a run that other services than its own have used; services are OWNER/NAME.

    Attributes:
        owner: the service whose slot it is.
        payer: the tenant whose budget pays for the run.
        amount_millislice_s: what the run's tenant bears of the hour.
        length_ms: how much of the hour the run had, without the moments of other tenants' requests
            to other services.
        used_ms: how much of it was another service's; a moment in which requests of several were in
            flight is theirs by their number.
        told_ms: the same with other tenants' requests, as launchers have told it.
        booked: millislice-seconds that another service has of it so far.
        is_shared: whether the hour is divided among tenants, too, so that usage has it.
    """

    array_job_id: int
    index: int
    run_start_s: int
    hour_s: int
    tenant: str
    payer: str
    owner: str
    amount_millislice_s: int
    length_ms: int
    used_ms: Mapping[str, int] = field(hash=False)
    told_ms: Mapping[str, int] = field(default_factory=dict, hash=False)
    booked: Mapping[str, int] = field(default_factory=dict, hash=False)
    is_shared: bool = False


def parts(hour: PoolHour) -> Mapping[str, int]:
    """Millislice-seconds of each service; they add up to what the tenant bears of the hour.

    What no other service has used is the owner's: its own requests, and idle time. Looks may go on
    for a moment after a run's end: what was used beyond its length makes no part of it larger.
    """
    left_ms = max(0, hour.length_ms - sum(hour.used_ms.values()))
    amounts = divided(hour.amount_millislice_s, {**hour.used_ms, hour.owner: left_ms})
    return {service: amounts.get(service, 0) for service in (*hour.used_ms, hour.owner)}
