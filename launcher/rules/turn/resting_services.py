"""Leaves a service alone for which nothing moves: without requests, replicas, or slots under way.

Of thousands of services most are at rest, and deciding for one takes as long as for any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from slicewise.cluster.rpc.messages import ServiceView
from slicewise.launcher.rules.autoscale.rest import is_at_rest, rested
from slicewise.launcher.rules.gateway.types import Backend
from slicewise.launcher.rules.turn.state import ServiceState

if TYPE_CHECKING:
    from slicewise.launcher.rules.turn.service import ServicePlan

REST_S = 60.0
"""Seconds after which a service at rest is decided for again; up to twice that, so that not all are
at the same turn."""
_IDLE = frozenset({"held", "gone"})


class RestSight(NamedTuple):
    """All that a decision about a service at rest depends on, beside what is remembered of it.

    Attributes:
        views: its generations.
        backend: its backend at the gateway, and that backend's name.
        most: replicas that a backend can carry.
        has_room: whether quota allows one more replica.
    """

    views: Sequence[ServiceView]
    backend: tuple[Backend | None, str]
    most: int
    has_room: bool

    @classmethod
    def of(
        cls,
        views: Sequence[ServiceView],
        backend: tuple[Backend | None, str],
        most: int,
        free: Mapping[str, int],
    ) -> "RestSight":
        """Build it from what a turn sees."""
        newest = views[-1]
        left = free.get(newest.tenant)
        has_room = left is None or left >= newest.cost_millislices
        return cls(views, backend, most, has_room)


class Rest(NamedTuple):
    """A service that is at rest since a turn that has decided for it.

    Attributes:
        state: what was remembered of it then.
        plan: what was decided: nothing is to be asked of the daemon.
        at_s: when it was last seen, in Unix seconds.
        looks: how often it was seen since then.
        until_s: when it is decided for again in any case.
    """

    sight: RestSight
    state: ServiceState
    plan: "ServicePlan"
    at_s: float
    looks: int
    until_s: float

    def lasts(self, state: ServiceState, sight: RestSight, now_s: float) -> bool:
        """Whether nothing has moved."""
        return state is self.state and self.at_s <= now_s < self.until_s and sight == self.sight

    def later(self, now_s: float) -> "Rest":
        """Return it after one more look."""
        return Rest(*self[:3], now_s, self.looks + 1, self.until_s)

    def ended(self, state: ServiceState) -> ServiceState:
        """Return what is remembered as if it had been decided for at each look."""
        if state is not self.state or state.memory is None:
            return state
        return replace(state, memory=rested(state.memory, self.at_s, self.looks))


def rest(state: ServiceState, plan: "ServicePlan", sight: RestSight, now_s: float) -> Rest | None:
    """Return the rest that begins after a decision; None if something may move by itself."""
    if not _is_quiet(plan, sight) or not _is_settled(state):
        return None
    until_s = now_s + REST_S + plan.array_job_id % int(REST_S)
    return Rest(sight, state, plan, now_s, 0, until_s)


def _is_quiet(plan: "ServicePlan", sight: RestSight) -> bool:
    asks = plan.decision.wanted or plan.desired_by_array or plan.retired
    route = plan.route
    told = plan.note or plan.outliers or route.terms.closing or route.terms.failing or route.targets
    (backend, _), views = sight.backend, sight.views
    is_seen = backend is not None and not backend.sessions
    is_idle = len(views) == 1 and all(slot.state in _IDLE for slot in views[0].slots)
    return not (asks or told or plan.load.total) and is_seen and is_idle


def _is_settled(state: ServiceState) -> bool:
    generation_states = tuple(state.generations.values())
    fails = any(
        generation_state.backoff.failures or generation_state.removed_s or generation_state.failing
        for generation_state in generation_states
    )
    waits = any(
        generation_state.down
        or generation_state.draining_since_s
        or generation_state.alive
        or generation_state.unheard
        for generation_state in generation_states
    )
    is_learnt = state.memory is not None and is_at_rest(state.memory)
    return is_learnt and state.aborted is None and not (fails or waits)
