"""Measures the CPU time to decide one turn of the launcher: 1,000 services of 8 slots, one core.

Half of the services are busy: their slots run and serve, and their load goes up and down. The
other services are at zero and get a request now and then. The launcher's memory is carried from
turn to turn. Then the same for 10,000 services of which 200 are busy. Of the others one in a turn
gets a request; they have backends without server lines, and the launcher leaves those alone for
which nothing moves.
"""

import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from benchmarks.machine import machine
from benchmarks.reporting import run
from slicewise.cluster.rpc.messages import (
    DesiredSlotsAnswer,
    ServiceView,
    SlotView,
    TenantView,
    ViewAnswer,
)
from slicewise.launcher.process.loop import GARBAGE_AFTER
from slicewise.launcher.rules.engines.engine import Answer, Probe
from slicewise.launcher.rules.gateway.types import IDLE, Backend, Gateway, Server, ServerMode
from slicewise.launcher.rules.turn.plan import NO_RESTS, TurnPlan, decide
from slicewise.launcher.rules.turn.state import State, after_answer

SERVICES, SLOTS, LINES, TENANTS, COST = 1000, 8, 16, 50, 1000
MANY, MANY_EVERY, MANY_RARELY = 10_000, 50, 10_000
"""Services, of which each of so many is busy; the others get a request in one of so many turns."""
_SEED = 5
_START_S = 1_700_000_000.0
_NOWHERE = Server("127.0.0.1", 1, ServerMode.MAINT, up=False, in_flight=0, queued=0)


def view(at_s: float, services: int = SERVICES, every: int = 2) -> ViewAnswer:
    """The daemon's view: a busy service runs on all of its slots, other slots are held."""
    found = tuple(_service(number, every) for number in range(services))
    tenants = tuple(
        TenantView(
            name=f"t{number}",
            nominal_millislices=services * SLOTS * COST,
            in_use_millislices=0,
            own_in_use_millislices=0,
        )
        for number in range(TENANTS)
    )
    return ViewAnswer(observed_s=at_s, complete=True, services=found, tenants=tenants)


def _service(number: int, every: int) -> ServiceView:
    tenant, name = f"t{number % TENANTS}", f"s{number}"
    return ServiceView(
        array_job_id=number + 1,
        tenant=tenant,
        name=name,
        user="u",
        submit_s=0,
        directives={
            "tenant": tenant,
            "name": name,
            "model_repository": "/models",
            "model": "m",
            "profile": "1g.10gb",
            "max_replicas": str(SLOTS),
            "concurrency": "4",
        },
        profile="1g.10gb",
        cost_millislices=COST,
        slots=tuple(_slot(number, index, every) for index in range(SLOTS)),
    )


def _slot(number: int, index: int, every: int) -> SlotView:
    if number % every:
        return SlotView(index=index, state="held")
    return SlotView(
        index=index,
        state="running",
        job_id=number * SLOTS + index,
        address=_address(number),
        ports=(20_000 + index, 30_000 + index, 40_000 + index),
        released_s=int(_START_S) - 60,
        start_s=int(_START_S) - 50,
        time_left_s=900,
    )


def _address(number: int) -> str:
    return f"10.0.{number // 256}.{number % 256}"


def gateway(
    random: Random, turn: int, services: int = SERVICES, every: int = 2, rarely: int = 100
) -> Gateway:
    """The gateway: a backend for each service, two requests in flight on each busy server."""
    idle = "triton" if services == SERVICES else f"triton{IDLE}"
    names = [f"{idle if n % every else 'triton'}{n}" for n in range(services)]
    routes = {f"t{n % TENANTS}/s{n}": name for n, name in enumerate(names)}
    backends = {
        name: _idle(random, rarely, services) if n % every else _busy(random, n, turn)
        for n, name in enumerate(names)
    }
    return Gateway(routes, backends, complete=True)


def _idle(random: Random, rarely: int, services: int) -> Backend:
    lines = (_NOWHERE,) * LINES if services == SERVICES else ()
    return Backend(int(not random.randrange(rarely)), 0, lines)


def _busy(random: Random, number: int, turn: int) -> Backend:
    serving = (
        Server(_address(number), 20_000 + index, ServerMode.READY, up=True, in_flight=2, queued=0)
        for index in range(SLOTS)
    )
    waiting = random.randrange(8)
    lines = (*serving, *(_NOWHERE,) * (LINES - SLOTS))
    answered = turn * 8
    return Backend(2 * SLOTS + waiting, waiting, lines, answered + 2 * SLOTS + waiting, answered)


def seconds(turns: int, services: int = SERVICES, every: int = 2, rarely: int = 100) -> list[float]:
    """CPU seconds that each of ``turns`` turns took to decide."""
    random = Random(_SEED)  # noqa: S311 -- seeded on purpose
    state: State = {}
    taken: list[float] = []
    answers = {
        (n + 1, index): Answer(Probe.OURS)
        for n in range(0, services, every)
        for index in range(SLOTS)
    }
    rests = NO_RESTS
    for turn in range(turns):
        at_s = _START_S + turn
        seen, shown = view(at_s, services, every), gateway(random, turn, services, every, rarely)
        began_s = time.process_time()
        decided = decide(seen, shown, answers if turn == 0 else {}, state, at_s, rests=rests)
        taken.append(time.process_time() - began_s)
        if decided is not None:
            state, rests = heard(*decided), decided[1].rests
    return taken


def heard(found: State, plan: TurnPlan) -> State:
    """The state after the daemon has accepted every wish of the plan."""
    known = dict(found)
    for service in plan.services:
        for array, wish in service.desired_by_array.items():
            known[service.service] = after_answer(
                known[service.service], array, wish, DesiredSlotsAnswer()
            )
    return known


def _measure(quick: bool) -> Mapping[str, object]:
    gc.set_threshold(GARBAGE_AFTER)
    taken = seconds(10 if quick else 100)
    many = seconds(20 if quick else 100, MANY, MANY_EVERY, MANY_RARELY)
    return {
        "machine": machine(),
        "seed": _SEED,
        "services": SERVICES,
        "slots": SLOTS,
        **_figures(taken, settled=1),
        # A service is known to be at rest once it was looked at for some time.
        "many": {"services": MANY, "busy": MANY // MANY_EVERY, **_figures(many, settled=10)},
    }


def _figures(taken: Sequence[float], settled: int) -> Mapping[str, float]:
    later = taken[settled:]
    return {
        "turns": len(taken),
        "first_s": taken[0],
        "median_s": statistics.median(later),
        "longest_s": max(later),
    }


def _show(report: Mapping[str, Any]) -> None:
    for one in (report, report["many"]):
        print(  # noqa: T201
            f"{one['services']} services: median {one['median_s']:.3f} s, "
            f"longest {one['longest_s']:.3f} s, first {one['first_s']:.3f} s"
        )


if __name__ == "__main__":
    run("turn", __doc__, "10 turns instead of 100", _measure, _show)
