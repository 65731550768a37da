"""Joins the replicas of pools with what the gateway shows that they work on."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from slicewise.cluster.rpc.messages import ServiceView, ViewAnswer
from slicewise.launcher.rules.gateway.types import Backend, Gateway
from slicewise.launcher.rules.pools.busy import Parts, PoolLook, Run
from slicewise.launcher.rules.turn.endpoints import last_run
from slicewise.launcher.rules.turn.plan import key_of


def pool_look(view: ViewAnswer, gateway: Gateway, at_s: float) -> PoolLook:
    """Join replicas of pools with what the backends of all members of their pool have there."""
    pools: dict[tuple[str, str], list[ServiceView]] = defaultdict(list)
    for service in view.services:
        if pool := service.directives.get("pool"):
            pools[service.tenant, pool].append(service)
    return PoolLook(
        at_s, dict(chain.from_iterable(_parts(members, gateway) for members in pools.values()))
    )


def _parts(members: Sequence[ServiceView], gateway: Gateway) -> Iterator[tuple[Run, Parts]]:
    """Yield the others' parts of each run that works for others."""
    # Few of all pairs of a replica and a service work at a moment.
    at_work: dict[tuple[str, int], dict[str, Backend]] = defaultdict(dict)
    for key in {key_of(member) for member in members}:
        backend = gateway.backend_of(key)
        if backend is not None and backend.sessions:
            for server in (*backend.servers, *backend.elsewhere):
                if server.in_flight:
                    at_work[server.address, server.port][key] = backend
    for member in members if at_work else ():
        own = key_of(member)
        for slot in member.slots:
            run = last_run(slot, None)
            if run is None or run.endpoint.place not in at_work:
                continue
            backends = at_work[run.endpoint.place]
            servers = {key: backend.server_of(run.endpoint) for key, backend in backends.items()}
            in_flight = {key: server.in_flight for key, server in servers.items() if server}
            whole = sum(in_flight.values())
            others = {
                key: count / whole for key, count in in_flight.items() if count and key != own
            }
            if others:
                yield (member.array_job_id, slot.index, run.start_s), others
