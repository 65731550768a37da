"""Decides one whole turn: from what daemon, gateway and replicas show to what shall be done.

A generation is one job array of a service; applying a service again submits a newer one. Its
desired slots are the set of a generation's slots that the launcher asks the daemon to run.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slicewise.cluster.language.adapters import adapters_of
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.pools import sharing
from slicewise.cluster.language.service import (
    ServiceSpec,
    service_spec,
    whole_number,
)
from slicewise.cluster.rpc.messages import ServiceView, ViewAnswer
from slicewise.launcher.rules.engines.registry import engine_of
from slicewise.launcher.rules.gateway.routing import Route, RoutePlan, plan_routes
from slicewise.launcher.rules.gateway.types import (
    Gateway,
    load_of,
)
from slicewise.launcher.rules.pools.busy import NOTHING_BUSY, PoolLook
from slicewise.launcher.rules.turn import scaling_inputs
from slicewise.launcher.rules.turn.budgets import used_up
from slicewise.launcher.rules.turn.curves import Curves
from slicewise.launcher.rules.turn.endpoints import REFUSED_S, may_give_back
from slicewise.launcher.rules.turn.generations import (
    Answers,
)
from slicewise.launcher.rules.turn.line_claims import LineClaims
from slicewise.launcher.rules.turn.neighbours import neighbours
from slicewise.launcher.rules.turn.notes import (
    last_said,
)
from slicewise.launcher.rules.turn.pool_service import decide_pool
from slicewise.launcher.rules.turn.resting_services import Rest, RestSight, rest
from slicewise.launcher.rules.turn.service import (
    NO_CURVES,
    NOTHING_HEARD,
    Heard,
    ServiceInput,
    ServicePlan,
    decide_service,
    given_back,
)
from slicewise.launcher.rules.turn.state import (
    AbortedRoll,
    GenerationState,
    ServiceState,
    State,
)
from slicewise.launcher.rules.turn.suspects import AvoidedNodes

STALE_S = 60.0
"""The most seconds by which a view of the daemon is older than the launcher's last request, unless
the clocks of both differ."""

Rests = Mapping[str, Rest]

NO_RESTS: Rests = {}


@dataclass(frozen=True)
class TurnPlan:
    """What shall be done: first the changes at the gateway, then desired slots, then retirements.

    Attributes:
        unreadable: why a service can't be looked after, by ``tenant/service``.
        rests: services for which nothing moves, by ``tenant/service``.
        pools: what the replicas of pools work on.
    """

    services: tuple[ServicePlan, ...]
    routes: RoutePlan
    unreadable: Mapping[str, str] = field(hash=False)
    rests: Rests = field(default_factory=dict, hash=False)
    pools: PoolLook = NOTHING_BUSY


def key_of(view: ServiceView) -> str:
    """Return ``tenant/service``, as in the service's address."""
    return f"{view.tenant}/{view.name}"


def by_service(view: ViewAnswer) -> Mapping[str, Sequence[ServiceView]]:
    """Group generations by service, the newest last."""
    by_service: dict[str, list[ServiceView]] = defaultdict(list)
    for service in sorted(view.services, key=lambda service: service.array_job_id):
        by_service[key_of(service)].append(service)
    return by_service


def decide(
    view: ViewAnswer,
    gateway: Gateway,
    answers: Answers,
    state: State,
    now_s: float,
    *,
    rests: Rests = NO_RESTS,
    heard: Heard = NOTHING_HEARD,
    curves: Curves = NO_CURVES,
) -> tuple[State, TurnPlan] | None:
    """Decide the turn; None, and nothing changes, if the daemon could not see all of Slurm.

    ``state`` may be empty (after a restart). Then what runs counts as wanted, the gateway tells
    which slots serve or drain, and every replica is asked again for its identity. ``rests`` are
    those of the turn before, ``curves`` what services have learnt of replicas.
    """
    if not view.complete:
        return None
    deciding = _Deciding(view, gateway, answers, state, now_s, heard=heard, curves=curves)
    deciding.all(rests)
    return deciding.states, deciding.plan()


class _Deciding:
    """A turn while it goes from service to service."""

    def __init__(
        self,
        view: ViewAnswer,
        gateway: Gateway,
        answers: Answers,
        state: State,
        now_s: float,
        *,
        heard: Heard,
        curves: Curves,
    ) -> None:
        self._view, self._gateway, self._answers = view, gateway, answers
        self._state, self._now_s, self._heard, self._curves = state, now_s, heard, curves
        self._services = by_service(view)
        self._resting: dict[str, Rest] = {}
        self.states: dict[str, ServiceState] = {}
        self._plans: list[ServicePlan] = []
        self._waiting: list[Route] = []
        self._unreadable: dict[str, str] = {}
        self._free, self._most = scaling_inputs.free_millislices(view), _most(gateway)
        users = {key: views[-1].user for key, views in self._services.items()}
        self._pools = sharing(
            (key, users[key], newest.directives)
            for key, views in self._services.items()
            if (newest := _pooled(views, state.get(key) or ServiceState())) is not None
        )
        self._pooled = frozenset(key for members in self._pools for key in members)
        self._looks: dict[str, ServiceInput] = {}
        self._neighbours = neighbours(gateway, state, self._services)
        self._avoided = AvoidedNodes(state, users, now_s)
        self._left = may_give_back(gateway, given_back(state.values(), now_s - REFUSED_S))
        self._budgets = {tenant.name: tenant.budget for tenant in view.tenants}

    def all(self, rests: Rests) -> None:
        """Decide for each service, then for those that share replicas."""
        claims = LineClaims(self._gateway, self._services, rests)
        for key in self._services:
            self._one(key, rests.get(key), claims)
        for members in self._pools:
            self._pool(members, claims)

    def plan(self) -> TurnPlan:
        """Return what was decided."""
        routes = (*self._waiting, *(plan.route for plan in self._plans))
        return TurnPlan(
            tuple(self._plans),
            plan_routes(self._gateway, routes),
            self._unreadable,
            self._resting,
            PoolLook(self._now_s, self._neighbours.parts),
        )

    def _one(self, key: str, before: Rest | None, claims: LineClaims) -> None:
        service_state = self._state.get(key) or ServiceState()
        counted = (self._gateway.backend_of(key), self._gateway.routes.get(key, ""))
        sight = RestSight.of(self._services[key], counted, self._most, self._free)
        if before is not None:
            if key not in self._pooled and before.lasts(service_state, sight, self._now_s):
                self.states[key], self._resting[key] = service_state, before.later(self._now_s)
                self._plans.append(before.plan)
                return
            service_state = before.ended(service_state)
        views, aborted = unless_aborted(self._services[key], service_state)
        spec = _readable(views[-1], self._unreadable)
        last = (service_state.generations.get(view.array_job_id) for view in views)
        self.states[key] = service_state
        if spec is None or any(_is_stale(self._view, one, self._now_s) for one in last):
            self._wait(key, views[-1], spec)
            return
        look = ServiceInput(
            *(key, spec, views, counted[0], load_of(*counted)),
            *(self._most, self._answers, self._free, aborted, self._avoided.of(key)),
            *(claims.why_none(key), self._heard),
            adapters=_open_adapters(self._gateway, views[-1]),
            used_up=used_up(
                self._budgets.get(views[-1].tenant),
                spec,
                views,
                self._now_s + self._gateway.hold_s,
            ),
            curves=self._curves,
            may_give_back=self._left,
            beside=self._neighbours.beside.get(key, {}),
            lent=self._neighbours.lent.get(key, frozenset()),
        )
        if key in self._pooled:
            self._looks[key] = look
            return
        self.states[key], plan, why_none = _decided(look, service_state, self._now_s)
        self._left -= given_back((self.states[key],), self._now_s)
        if plan is None:
            self._unreadable[key] = why_none
            self._wait(key, views[-1], spec)
            return
        self._plans.append(plan)
        if plan.decision.wanted:
            claims.claim(key)
        begun = rest(self.states[key], plan, sight, self._now_s)
        if not plan.lineless and begun is not None:
            self._resting[key] = begun

    def _wait(self, key: str, newest: ServiceView, spec: ServiceSpec | None) -> None:
        """Leave a service as it is in this turn."""
        engine, memory = engine_of(newest.directives), self.states[key].memory
        places = scaling_inputs.concurrency(spec, engine, memory) if spec else 1
        self._waiting.append(_as_it_is(self._gateway, newest, places, engine.group))

    def _pool(self, members: Sequence[str], claims: LineClaims) -> None:
        """Decide for services that share replicas; if one has to wait, all do."""
        looks = {key: self._looks[key] for key in members if key in self._looks}
        why = ""
        if len(looks) == len(members):
            try:
                decided = decide_pool(looks, self.states, self._now_s)
            except ArithmeticError as error:
                why = f"figures of its pool can't be computed with: {error!r}"
            else:
                for key, (service_state, plan) in decided.items():
                    self.states[key] = service_state
                    self._left -= given_back((service_state,), self._now_s)
                    self._plans.append(plan)
                    if plan.route.targets or plan.decision.wanted:
                        claims.claim(key)
                return
        for key, look in looks.items():
            if why:
                self._unreadable[key] = why
            self._wait(key, look.newest, look.spec)


def _pooled(views: Sequence[ServiceView], service_state: ServiceState) -> ServiceView | None:
    """Return the generation by which a service shares replicas; None if it names no pool.

    Of one whose specification can't be read nothing is decided: others don't wait for it.
    """
    newest = unless_aborted(views, service_state)[0][-1]
    if "pool" not in newest.directives or _readable(newest, {}) is None:
        return None
    return newest


def _readable(newest: ServiceView, unreadable: dict[str, str]) -> ServiceSpec | None:
    """Return the specification; None, and why it is ``unreadable``, if that can't be read."""
    try:
        return service_spec(newest.directives)
    except InvalidInputError as error:
        unreadable[key_of(newest)] = str(error)
        return None


def _decided(
    look: "ServiceInput", service_state: ServiceState, now_s: float
) -> tuple[ServiceState, ServicePlan | None, str]:
    """Decide for one service; if its figures can't be computed with, nothing of it changes.

    Its replicas may have told any figures: they cost no other service its turn.
    """
    try:
        return *decide_service(look, service_state, now_s), ""
    except ArithmeticError as error:
        return service_state, None, f"its figures can't be computed with: {error!r}"


def unless_aborted(
    views: Sequence[ServiceView], service_state: ServiceState
) -> tuple[Sequence[ServiceView], AbortedRoll | None]:
    """Put a generation that is given up before all others, so that it is replaced and retired.

    Its service says after how many failed starts, while a generation before it had a ready replica
    once. Return as well the last aborted roll-over, unless a newer generation has come since.
    """
    newest, last = views[-1], service_state.aborted
    states = [
        service_state.generations.get(view.array_job_id) or GenerationState() for view in views
    ]
    after = whole_number(newest.directives, "abort_roll_after", 0)
    failures = states[-1].backoff.failures
    fails = 0 < after <= failures and not states[-1].is_proved
    if fails and newest.order.delete_s is None and any(state.is_proved for state in states[:-1]):
        aborted = AbortedRoll(newest.array_job_id, failures, last_said(newest))
        return (newest, *views[:-1]), aborted
    is_over = last is not None and newest.array_job_id > last.array_job_id
    return views, None if is_over else last


def _most(gateway: Gateway) -> int:
    lines = (len(backend.servers) for backend in gateway.backends.values())
    return min((count for count in lines if count), default=0)


def _open_adapters(gateway: Gateway, newest: ServiceView) -> frozenset[str]:
    """Return the names of the adapters that clients may ask for before this turn.

    Those are all while the gateway refuses none: it was started or reloaded and knows none yet, and
    replicas may have them all.
    """
    if gateway.complete:
        return gateway.adapters_of(key_of(newest))
    return frozenset(adapters_of(newest.directives))


def _as_it_is(gateway: Gateway, newest: ServiceView, concurrency: int, group: str) -> Route:
    """Return a route that changes neither the service's servers nor what its clients are told."""
    key = key_of(newest)
    return Route(
        key,
        concurrency,
        None,
        group,
        gateway.terms_of(key),
        adapters=_open_adapters(gateway, newest),
    )


def _is_stale(view: ViewAnswer, generation_state: GenerationState | None, now_s: float) -> bool:
    """Whether the view is older than what was last asked of the daemon.

    A request with a time in the future is ignored: the clock has been set back since. So is a view
    that is older by more than ``STALE_S``: the daemon's clock is behind this one.
    """
    if generation_state is None:
        return False
    asked_s = max(
        generation_state.desired.at_s if generation_state.desired is not None else 0.0,
        generation_state.retired_s,
    )
    return asked_s - STALE_S <= view.observed_s <= asked_s <= now_s
