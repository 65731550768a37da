"""Which replica of a pool has which model: joins what is told of each of its services."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from slicewise.cluster.language.pools import sharing
from slicewise.cluster.language.service import whole_number
from slicewise.cluster.rpc.messages import SlotPlace
from slicewise.launcher.services.overview import PooledModel, ServiceObservation


def pool_of(
    service: ServiceObservation, services: Iterable[ServiceObservation]
) -> tuple[PooledModel, ...] | None:
    """Return what the replicas that a service shares have; None if it shares with none.

    Replica by replica, its own model first; at the end models that are nowhere.
    """
    by_key = {each.service: each for each in services}
    groups = sharing((key, each.user, each.directives) for key, each in by_key.items())
    keys = next((group for group in groups if service.service in group), None)
    if keys is None:
        return None
    members = [by_key[key] for key in keys]
    hosts = {
        (slot.array_job_id, slot.slot): (member, slot.node)
        for member in members
        for slot in member.every_slot
    }
    rows = [row for member in members for row in _rows(member, hosts)]
    return tuple(sorted(rows, key=lambda row: _order(row, hosts)))


_Hosts = Mapping[SlotPlace, tuple[ServiceObservation, str]]
"""The service whose slot a replica is, and its node, by array job id and slot index."""


def _rows(member: ServiceObservation, hosts: _Hosts) -> Iterator[PooledModel]:
    values, report = member.directives, member.report
    absent = PooledModel(
        member.service, values.get("model", ""), whole_number(values, "model_mib", 0) or None
    )
    places = report.places if report is not None else ()
    refusals = report.refusals if report is not None else ()
    at = {(place.array_job_id, place.slot): place for place in places}
    why = {(refusal.array_job_id, refusal.slot): refusal.why for refusal in refusals}
    told = [place for place in (*at, *(why.keys() - at.keys())) if place in hosts]
    for place in told:
        host, node = hosts[place]
        row = replace(
            absent,
            array_job_id=place[0],
            slot=place[1],
            node=node or None,
            replica_mib=host.models_mib,
            state="refused",
            why=why.get(place, ""),
        )
        if (seen := at.get(place)) is not None:
            row = replace(row, state=seen.state, in_flight=seen.in_flight, load_s=seen.load_s)
        yield row
    if not told:
        yield absent


def _order(row: PooledModel, hosts: _Hosts) -> tuple[bool, SlotPlace, bool, str]:
    place = (row.array_job_id or 0, row.slot or 0)
    is_guest = place in hosts and hosts[place][0].service != row.service
    return row.array_job_id is None, place, is_guest, row.service
