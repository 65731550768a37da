"""Tests that a service for which nothing moves is left alone, and misses nothing by that."""

from dataclasses import replace
from random import Random

import pytest

from benchmarks.turn import gateway, heard, view
from slicewise.launcher.rules.gateway.types import Backend, Gateway
from slicewise.launcher.rules.turn.plan import NO_RESTS, TurnPlan, decide
from slicewise.launcher.rules.turn.resting_services import REST_S
from slicewise.launcher.rules.turn.state import State

SERVICES, EVERY, START_S = 20, 20, 1_700_000_000.0
NAME = "t1/s1"


def seeded(seed: int) -> Random:
    return Random(seed)  # noqa: S311 -- the same at each run


class Launcher:
    """Decides turns for so many services, and is heard."""

    def __init__(self, services: int = SERVICES) -> None:
        self._services = services
        self.state: State = {}
        self.rests = NO_RESTS

    def turn(
        self, shown: Gateway, at_s: float, *, forgets: bool = False, **change: object
    ) -> TurnPlan:
        """``change`` is made to the view of ``NAME``."""
        seen = view(at_s, self._services, EVERY)
        changed = seen.services[1].model_copy(update=change)
        seen = seen.model_copy(update={"services": (seen.services[0], changed, *seen.services[2:])})
        found = decide(seen, shown, {}, self.state, at_s, rests=NO_RESTS if forgets else self.rests)
        assert found is not None
        self.state, self.rests = heard(*found), found[1].rests
        return found[1]


def quiet(turn: int) -> Gateway:
    return gateway(seeded(1), turn, SERVICES, EVERY, rarely=10**9)


def resting(turns: int = 5) -> Launcher:
    launcher = Launcher()
    for turn in range(turns):
        launcher.turn(quiet(turn), START_S + turn)
    assert len(launcher.rests) == SERVICES - 1
    assert NAME in launcher.rests
    return launcher


def with_backend(shown: Gateway, backend: Backend | None) -> Gateway:
    name = shown.routes[NAME]
    if backend is None:
        return replace(shown, routes={k: v for k, v in shown.routes.items() if k != NAME})
    return replace(shown, backends={**shown.backends, name: backend})


def test_what_rests_keeps_its_plan_and_what_is_busy_is_decided():
    launcher = resting()
    before = launcher.rests[NAME].plan
    plan = launcher.turn(quiet(5), START_S + 5)
    plans = {one.service: one for one in plan.services}
    assert plans[NAME] is before
    assert len(plans) == SERVICES
    assert "t0/s0" not in launcher.rests


@pytest.mark.parametrize("backend", [Backend(1, 0, ()), Backend(0, 0, (), arrived=1), None])
def test_a_request_ends_it_and_so_does_a_route_that_is_gone(backend: Backend | None):
    launcher = resting()
    launcher.turn(with_backend(quiet(5), backend), START_S + 5)
    assert NAME not in launcher.rests or launcher.rests[NAME].looks == 0


@pytest.mark.parametrize(
    "change",
    [{"cost_millislices": 2000}, {"array_job_id": 7001}, {"directives": {"min_replicas": "1"}}],
)
def test_what_its_owner_or_slurm_changes_ends_it(change: dict[str, object]):
    launcher = resting()
    directives = view(START_S, SERVICES, EVERY).services[1].directives
    if "directives" in change:
        change = {"directives": {**directives, "min_replicas": "1"}}
    plan = launcher.turn(quiet(5), START_S + 5, **change)
    assert NAME not in launcher.rests or launcher.rests[NAME].looks == 0
    wanted = {one.service: one.decision.wanted for one in plan.services}
    assert wanted[NAME] == int("directives" in change)


def test_it_is_decided_for_from_time_to_time_and_not_all_at_one_turn():
    launcher = resting()
    decided: list[int] = []
    for turn in range(5, 5 + int(2 * REST_S)):
        launcher.turn(quiet(turn), START_S + turn)
        decided.append(sum(not one.looks for one in launcher.rests.values()))
    assert max(decided) <= 2
    assert sum(decided) >= SERVICES - 1


@pytest.mark.slow
def test_after_a_rest_requests_are_answered_as_if_it_had_been_looked_at_all_the_time():
    """Two launchers see the same; one decides for every service at every turn."""
    services = 4  # Of all but the first nothing is seen, whatever their number.
    patient, eager = Launcher(services), Launcher(services)
    random, rested = seeded(3), 0
    for turn in range(400):
        shown = gateway(seeded(turn), turn, services, EVERY, rarely=10**9)
        if turn > 100 and random.random() < 0.05:
            shown = with_backend(shown, Backend(random.randrange(1, 30), 0, (), arrived=turn))
        plans = (
            patient.turn(shown, START_S + turn),
            eager.turn(shown, START_S + turn, forgets=True),
        )
        rested += NAME in patient.rests and patient.rests[NAME].looks > 0
        wanted, wanted_too = (
            [(one.service, one.decision.wanted, one.desired) for one in plan.services]
            for plan in plans
        )
        assert wanted == wanted_too
        assert plans[0].routes.changes == plans[1].routes.changes
    assert rested > 50
