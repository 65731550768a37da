"""One turn of the launcher: gather, decide, apply."""

import asyncio
import ipaddress
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from cluster.errors import SlicewiseError
from cluster.wire import ServiceView, SlotView, ViewAnswer, WishAnswer
from launcher import triton
from launcher.decide.gateway import Gateway
from launcher.decide.routing import Change
from launcher.decide.services import (
    Plan,
    Probe,
    Probes,
    ServiceState,
    State,
    Wish,
    decide,
    unverified,
    with_wish,
)


class Daemon(Protocol):
    """The daemon, as the loop uses it."""

    async def view(self) -> ViewAnswer: ...  # noqa: D102
    async def wish(  # noqa: D102
        self, array_job_id: int, run: frozenset[int], note: str, urgency: float
    ) -> WishAnswer: ...


class Runtime(Protocol):
    """The gateway, as the loop uses it."""

    async def observe(self) -> Gateway: ...  # noqa: D102
    async def apply(self, changes: tuple[Change, ...]) -> None: ...  # noqa: D102
    def keep(self, routes: Mapping[str, str]) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Turned:
    """What a turn decided and did.

    Attributes:
        plan: None if the daemon could not see all of Slurm: nothing was changed.
        answers: of the daemon to wishes, by array job id.
        failures: wishes that the daemon refused, by array job id.
        unkept: why the routes could not be written down for HAProxy's next start; "" if they were.
    """

    state: State
    plan: Plan | None
    answers: Mapping[int, WishAnswer]
    failures: Mapping[int, SlicewiseError]
    unkept: str = ""


async def turn(daemon: Daemon, runtime: Runtime, state: State) -> Turned:
    """Look at everything, decide, then change the gateway, and only then the slots.

    Raises UnreachableError or OutsideError if a look or a change at the gateway fails; what was
    changed until then is seen by the next turn's look.
    """
    view = await _with_numeric_addresses(await daemon.view())
    gateway, probes = await asyncio.gather(runtime.observe(), _probe_all(view, state))
    decided = decide(view, gateway, probes, state, time.time())
    if decided is None:
        return Turned(state, None, {}, {})
    found, plan = decided
    await runtime.apply(plan.routes.changes)
    unkept = _keep(runtime, plan.routes.routes)
    return replace(await _wish_all(daemon, found, plan), unkept=unkept)


def _keep(runtime: Runtime, routes: Mapping[str, str]) -> str:
    """Not worth a failed turn: without it HAProxy's next start waits for the next turn."""
    try:
        runtime.keep(routes)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


async def _wish_all(daemon: Daemon, state: State, plan: Plan) -> Turned:
    """A refused wish concerns its own service only (it may have ended in between)."""
    answers: dict[int, WishAnswer] = {}
    failures: dict[int, SlicewiseError] = {}
    for service in plan.services:
        if service.wish is None:
            continue
        try:
            answer = await daemon.wish(
                service.array_job_id, service.wish, service.note, service.urgency
            )
        except SlicewiseError as error:
            failures[service.array_job_id] = error
        else:
            answers[service.array_job_id] = answer
            wish = Wish(service.wish, time.time(), service.note, service.urgency)
            state = with_wish(state, service.array_job_id, wish, frozenset(answer.released))
    return Turned(state, plan, answers, failures)


async def _probe_all(view: ViewAnswer, state: State) -> Probes:
    """Ask every replica that was not verified yet, all at once."""
    asked = [
        (service, slot)
        for service in view.services
        if view.complete
        for slot in unverified(service, state.get(service.array_job_id, ServiceState()))
    ]
    answers = await asyncio.gather(*(_probe(service, slot) for service, slot in asked))
    return {
        (service.array_job_id, slot.index): answer
        for (service, slot), answer in zip(asked, answers, strict=True)
    }


async def _probe(service: ServiceView, slot: SlotView) -> Probe:
    identity = f"{service.name}.{service.array_job_id}.{slot.index}"
    model = service.directives.get("model", "")
    return await triton.probe(slot.address, slot.ports[0], model, identity)


async def _with_numeric_addresses(view: ViewAnswer) -> ViewAnswer:
    """Slurm's NodeAddr may be a name; HAProxy takes and shows numbers."""
    names = {s.address for service in view.services for s in service.slots if _is_name(s.address)}
    if not names:
        return view
    numbers = dict(zip(names, await asyncio.gather(*map(_resolve, names)), strict=True))
    services = tuple(
        service.model_copy(
            update={
                "slots": tuple(
                    slot.model_copy(update={"address": numbers.get(slot.address, slot.address)})
                    for slot in service.slots
                )
            }
        )
        for service in view.services
    )
    return view.model_copy(update={"services": services})


def _is_name(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return bool(address)
    return False


async def _resolve(name: str) -> str:
    """As the batch script does it: the first IPv4 address; "" while the name is unknown."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, family=2)
    except OSError:
        return ""
    return str(found[0][4][0])
