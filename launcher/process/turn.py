"""One turn of the launcher: gather what daemon, gateway and replicas show, decide, apply."""

import asyncio
import ipaddress
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from slicewise.cluster.language.adapters import adapters_of
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.service import can_follow
from slicewise.cluster.rpc.key_messages import GrantsAnswer
from slicewise.cluster.rpc.messages import (
    DesiredSlotsAnswer,
    ServiceReport,
    ServiceView,
    SlotView,
    ViewAnswer,
)
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.rules.engines.engine import Answer
from slicewise.launcher.rules.engines.registry import engine_of
from slicewise.launcher.rules.gateway.fair_queue import Position
from slicewise.launcher.rules.gateway.routing import GatewayChange
from slicewise.launcher.rules.gateway.timings import Timings
from slicewise.launcher.rules.gateway.types import Gateway
from slicewise.launcher.rules.turn.curves import Curves
from slicewise.launcher.rules.turn.generations import Answers, is_verified, unverified
from slicewise.launcher.rules.turn.plan import (
    NO_RESTS,
    Rests,
    TurnPlan,
    by_service,
    decide,
    key_of,
    unless_aborted,
)
from slicewise.launcher.rules.turn.service import NO_CURVES, NOTHING_HEARD, Heard, ServicePlan
from slicewise.launcher.rules.turn.state import (
    GenerationState,
    ServiceState,
    State,
    after_answer,
    after_retirement,
    after_silence,
)

ASKING_S = 5.0
"""Seconds after which a turn asks a slow daemon for nothing more; the next turn goes on with the
rest."""


class Daemon(Protocol):
    """The daemon's calls that the loop uses."""

    async def view(self) -> ViewAnswer: ...  # noqa: D102
    async def set_desired_slots(  # noqa: D102
        self,
        array_job_id: int,
        run: frozenset[int],
        note: str,
        urgency: float,
        avoid: tuple[str, ...],
        *,
        after: int,
    ) -> DesiredSlotsAnswer: ...
    async def retire(self, array_job_id: int) -> None: ...  # noqa: D102
    async def grants(self) -> GrantsAnswer: ...  # noqa: D102
    async def note_uses(self, used_s: Mapping[str, float]) -> None: ...  # noqa: D102
    async def report_services(self, services: tuple[ServiceReport, ...]) -> None: ...  # noqa: D102


class Runtime(Protocol):
    """The gateway's calls that the loop uses."""

    async def observe(self) -> Gateway: ...  # noqa: D102
    async def apply(self, changes: tuple[GatewayChange, ...]) -> None: ...  # noqa: D102
    async def hear(self, told: Callable[[str], object]) -> None: ...  # noqa: D102
    async def timings(self) -> Mapping[str, Timings]: ...  # noqa: D102
    def keep(self, routes: Mapping[str, str]) -> None: ...  # noqa: D102
    async def set_grants(self, grants: GrantsAnswer) -> None: ...  # noqa: D102
    async def fair_positions(self) -> Mapping[str, Position]: ...  # noqa: D102
    async def set_priorities(self, entries: Mapping[str, str]) -> None: ...  # noqa: D102
    async def key_ages(self) -> Mapping[str, float]: ...  # noqa: D102


class Replicas(Protocol):
    """The calls by which the loop asks replicas for their identity, and hears of old engines."""

    def look(self, replicas: Collection[Replica]) -> Mapping[Replica, Answer]: ...  # noqa: D102

    @property
    def old_engines(self) -> Mapping[str, str]: ...  # noqa: D102


@dataclass(frozen=True)
class Turned:
    """What a turn decided and did.

    Attributes:
        plan: None if the daemon could not see all of Slurm: nothing was changed.
        answers: the daemon's answers to desired slots, by array job id.
        retired: array job ids of generations that the daemon has cancelled.
        failures: errors of desired slots and retirements that failed, by array job id.
        left: services for which the daemon was not asked in time; they come first next time.
        unkept: why the routes could not be written down for HAProxy's next start; "" if they were.
        requests: how many each adapter has had, by ``tenant/service:adapter``, as HAProxy counts.
    """

    state: State
    plan: TurnPlan | None
    answers: Mapping[int, DesiredSlotsAnswer]
    retired: tuple[int, ...]
    failures: Mapping[int, SlicewiseError]
    left: frozenset[str] = frozenset()
    unkept: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        """Whether the next turn is due soon: something was changed or left, or requests wait."""
        if self.plan is None:
            return False
        changed = self.plan.routes.changes or self.answers or self.retired or self.left
        return bool(changed) or any(service.urgency > 0 for service in self.plan.services)


async def turn(
    daemon: Daemon,
    runtime: Runtime,
    replicas: Replicas,
    state: State,
    *,
    left: frozenset[str] = frozenset(),
    rests: Rests = NO_RESTS,
    heard: Heard = NOTHING_HEARD,
    curves: Curves = NO_CURVES,
    now_s: Callable[[], float] = wall_s,
) -> Turned:
    """Look at everything, decide, change the gateway, and only then ask the daemon to change slots.

    Services that the turn before has ``left`` are asked for first; ``rests`` are its services for
    which nothing moved, ``heard`` is what their replicas have said, ``curves`` what services have
    learnt of replicas. ``now_s`` returns Unix seconds of a clock that is not set during the turn.
    Raises UnreachableError or OutsideError if a look or a change at the gateway fails; what was
    changed until then is seen by the next turn's look.
    """
    view = await _with_numeric_addresses(await daemon.view())
    gateway = await runtime.observe()
    answers = _ask_all(replicas, view, state)
    decided = decide(
        *(view, gateway, answers, state, now_s()),
        rests=rests,
        heard=heard,
        curves=curves,
    )
    if decided is None:
        return Turned(state, None, {}, (), {})
    decision, plan = decided
    await runtime.apply(plan.routes.changes)
    unkept = _keep(runtime, plan.routes.routes)
    turned = await _ask_daemon(
        daemon, _Turning(dict(decision), plan, view.desired_slots_versions, now_s), left
    )
    return replace(turned, unkept=unkept, requests=gateway.adapters)


def _keep(runtime: Runtime, routes: Mapping[str, str]) -> str:
    """Write the routes down for HAProxy's next start; return why that failed, "" if it did not.

    A failure does not fail the turn: it only means that after HAProxy's next start requests wait
    for the launcher's next turn.
    """
    try:
        runtime.keep(routes)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


async def _ask_daemon(daemon: Daemon, turning: "_Turning", first: frozenset[str]) -> Turned:
    """Send desired slots and retirements, those of the services in ``first`` first.

    What the daemon refuses concerns only the generation asked about, which may have ended
    meanwhile.
    """
    until_s = time.monotonic() + ASKING_S
    asking = [
        service for service in turning.plan.services if service.desired_by_array or service.retired
    ]
    asking.sort(key=lambda service_plan: service_plan.service not in first)
    for number, service in enumerate(asking):
        if number and time.monotonic() >= until_s:
            turning.left.add(service.service)
        else:
            await turning.ask(daemon, service)
    return turning.ended()


@dataclass
class _Turning:
    """The results of a turn that is still asking the daemon.

    Attributes:
        asked: by array, the number of the last request for its slots that the daemon had taken when
            the turn looked; no request has number 0.
    """

    state: dict[str, ServiceState]
    plan: TurnPlan
    asked: Mapping[int, int]
    now_s: Callable[[], float]
    answers: dict[int, DesiredSlotsAnswer] = field(default_factory=dict)
    retired: list[int] = field(default_factory=list)
    failures: dict[int, SlicewiseError] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)

    async def ask(self, daemon: Daemon, service: ServicePlan) -> None:
        for array, desired in service.desired_by_array.items():
            try:
                answer = await daemon.set_desired_slots(
                    *(array, desired.run, desired.note, desired.urgency, desired.avoid),
                    after=self.asked.get(array, 0),
                )
            except SlicewiseError as error:
                self.failures[array] = error
                # What the daemon itself refused was not taken; after any other error it may
                # have been.
                if not isinstance(error, InvalidInputError):
                    service_state = self.state[service.service]
                    self.state[service.service] = after_silence(service_state, array, desired)
            else:
                self.answers[array] = answer
                at = replace(desired, at_s=self.now_s())
                service_state = self.state[service.service]
                self.state[service.service] = after_answer(service_state, array, at, answer)
        for array in service.retired:
            try:
                await daemon.retire(array)
            except SlicewiseError as error:
                self.failures[array] = error
            else:
                self.retired.append(array)
            service_state = self.state[service.service]
            self.state[service.service] = after_retirement(service_state, array, self.now_s())

    def ended(self) -> Turned:
        retired, left = tuple(self.retired), frozenset(self.left)
        return Turned(self.state, self.plan, self.answers, retired, self.failures, left)


def _ask_all(replicas: Replicas, view: ViewAnswer, state: State) -> Answers:
    """Return what each replica that has not been verified yet has answered so far."""
    found_slots = [
        (service, slot)
        for service in view.services
        if view.complete
        for slot in unverified(service, _known(state, service))
    ]
    services = by_service(view) if found_slots else {}
    asked = {}
    for service, slot in found_slots:
        # One in doubt serves: it is told elsewhere which adapters to have, and waits for none.
        adapters: Mapping[str, str] = {}
        if not is_verified(slot, _known(state, service)):
            service_state = state.get(key_of(service)) or ServiceState()
            views, _ = unless_aborted(services[key_of(service)], service_state)
            adapters = _adapters(service, views[-1])
        asked[service.array_job_id, slot.index] = _replica(service, slot, adapters)
    answers = replicas.look(asked.values())
    return {place: answers[replica] for place, replica in asked.items()}


def _adapters(service: ServiceView, newest: ServiceView) -> Mapping[str, str]:
    """Return the adapters that a starting replica is to have: those of the newest, if it can."""
    follows = can_follow(service.directives, newest.directives)
    return adapters_of(newest.directives if follows else service.directives)


def _known(state: State, service: ServiceView) -> GenerationState:
    service_state = state.get(key_of(service)) or ServiceState()
    return service_state.generations.get(service.array_job_id) or GenerationState()


def _replica(service: ServiceView, slot: SlotView, adapters: Mapping[str, str]) -> Replica:
    return Replica(
        slot.address,
        slot.ports[0],
        slot.certificate,
        slot.start_s or 0,
        service.directives.get("model", ""),
        f"{service.name}.{service.array_job_id}.{slot.index}",
        engine_of(service.directives),
        infers=service.directives.get("readiness") != "model",
        service=service.name,
        adapters=tuple(
            (name, f"{service.directives.get('model_repository', '')}/{path}")
            for name, path in adapters.items()
        ),
        tenant=service.tenant,
        node=slot.node,
    )


async def _with_numeric_addresses(view: ViewAnswer) -> ViewAnswer:
    """Resolve node names: Slurm's NodeAddr may be a name, but HAProxy takes and shows numbers."""
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
    """Return the first IPv4 address, as the batch script does; "" while the name is unknown."""
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(name, None, family=2)
    except OSError:
        return ""
    return str(addresses[0][4][0])
