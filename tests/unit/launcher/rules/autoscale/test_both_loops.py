"""Tests that learning how many requests a replica gets and deciding on replicas help each other."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from slicewise.launcher.rules.autoscale.begin import with_other_replicas
from slicewise.launcher.rules.autoscale.capacity import FIRST
from slicewise.launcher.rules.autoscale.curve import Curve, Prior
from slicewise.launcher.rules.autoscale.policy import Memory, autoscale, initial
from slicewise.launcher.rules.autoscale.types import Scaling, ServiceLook, Supply
from slicewise.launcher.rules.engines.engine import FIRST_TOKEN_S, TokenCounts
from slicewise.launcher.rules.engines.load import ServersLoad
from slicewise.launcher.rules.gateway.types import Load

SCALING = Scaling(1, 60, 256, learns=True, ttft_s=3.0, tpot_s=0.15)
TIMES = Scaling(1, 60, 256, learns=True, max_queue_s=5.0)
PER_S, TOKENS, STEPS, SLOWEST = 11.0, 200, 12, 3.0
"""Requests a second; tokens of an answer, steps of a prompt in the mean, and of the slowest beside
that."""
LOAD_S = 25


def token_s(requests: float) -> float:
    """A step of a server that has so many requests."""
    return 0.030 + 0.001 * requests


@dataclass
class Servers:
    """A service of servers that batch, as a stream: each second some requests come and end."""

    scaling: Scaling
    steps: Callable[[int], float] = lambda second: STEPS
    tells: bool = True
    reason: str = ""
    ready: int = 6
    quota: int | None = None
    memory: Memory = field(init=False)
    coming: list[int] = field(default_factory=list)
    inside: float = 0.0
    waiting: float = 0.0
    arrived: float = 0.0
    answered: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * 4)
    firsts: list[float] = field(default_factory=lambda: [0.0] * (len(FIRST_TOKEN_S) + 1))
    replicas: list[int] = field(default_factory=list)
    queues: list[float] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = initial(Supply(ready=self.ready), 0.0)

    def live(self, seconds: int) -> "Servers":
        for second in range(seconds):
            self._second(second)
        return self

    def _second(self, second: int) -> None:
        self.ready += sum(at <= second for at in self.coming)
        self.coming = [at for at in self.coming if at > second]
        places = self.ready * min(self.memory.capacity.limit, self.scaling.concurrency)
        self.arrived += PER_S
        self.waiting += PER_S
        began = max(0.0, min(self.waiting, places - self.inside))
        self.waiting -= began
        self.inside += began
        each_s, steps = token_s(self.inside / self.ready), self.steps(second)
        made = self.inside / each_s
        ended = min(self.inside, made / (steps + TOKENS))
        self.inside -= ended
        self.answered += ended
        self._count(began, steps * each_s, made, each_s)
        self._decide(second)

    def _count(self, began: float, first_s: float, made: float, each_s: float) -> None:
        for index, more in enumerate((began * first_s, made, made * each_s, began)):
            self.sums[index] += more
        for share, took_s in ((0.9, first_s), (0.1, SLOWEST * first_s)):
            at = next(n for n, edge_s in enumerate(FIRST_TOKEN_S) if edge_s >= took_s)
            self.firsts[at] += share * began

    def _decide(self, second: int) -> None:
        load = Load(round(self.inside), round(self.waiting), 0, *self._counters())
        supply = Supply(starting=len(self.coming), ready=self.ready)
        tokens = TokenCounts(*self.sums, tuple(self.firsts)) if self.tells else None
        servers = ServersLoad(round(self.inside), 0, 0.3, replicas=self.ready)
        look = ServiceLook(
            *(float(second), load, supply),
            serving=self.ready,
            tokens=tokens,
            servers=servers if self.tells else None,
            room=None if self.quota is None else max(0, self.quota - supply.coming),
        )
        self.memory, decision = autoscale(self.scaling, self.memory, look)
        self.reason = decision.reason
        lacking = min(decision.wanted, self.quota or decision.wanted) - supply.coming
        self.coming += [second + LOAD_S] * lacking
        if lacking < 0:
            kept = max(0, len(self.coming) + lacking)
            self.ready += min(0, len(self.coming) + lacking)
            self.coming = self.coming[:kept]
        self.replicas.append(decision.wanted)
        self.queues.append(self.waiting)
        self.limits.append(self.memory.capacity.limit)

    def _counters(self) -> tuple[int, int]:
        return int(self.arrived), int(self.answered)


@pytest.mark.parametrize("replicas", [6, 60])
def test_it_learns_from_few_replicas_as_from_too_many(replicas: int):
    """With 24 requests a replica answers 2.1 a second, with 2 of them 0.3."""
    found = Servers(SCALING, ready=replicas).live(1500)
    assert found.limits[-1] >= 16
    assert max(found.replicas[-300:]) <= 12
    assert max(found.queues[-900:]) < PER_S


def test_what_waits_while_it_learns_orders_no_crowd():
    found = Servers(SCALING).live(300)
    assert max(found.replicas) <= 30
    assert max(found.queues[120:]) < 2 * PER_S


def test_prompts_that_grow_take_no_places():
    """Their own steps are longer; with one request at a time 1,000 others would wait."""
    found = Servers(SCALING, steps=lambda second: STEPS * (1 + 3 * min(1.0, second / 900)))
    found.live(1500)
    assert min(found.limits[300:]) >= 16
    assert max(found.queues[300:]) < 2 * PER_S


@pytest.mark.parametrize(("times", "is_too_long"), [(1, False), (2, False), (5, True)])
def test_prompts_too_long_for_their_first_tokens_are_said(times: int, is_too_long: bool):
    """The slowest take 36 steps of 30 ms by themselves, five times as long ones 5.4 s."""
    found = Servers(SCALING, steps=lambda _: times * STEPS).live(1500)
    assert ("no number of replicas keeps ttft_ms" in found.reason) == is_too_long
    if is_too_long:
        enough_ms = int(found.reason.rsplit("ttft_ms, ", 1)[1].split()[0])
        assert 5.4 * 1000 * 1.2 < enough_ms < 5.4 * 1000 * 2.5


def test_engines_that_say_nothing_of_tokens_learn_by_times_alone():
    found = Servers(TIMES, tells=False).live(1500)
    assert found.limits[-1] >= 16
    assert max(found.replicas[-300:]) <= 12
    assert max(found.queues[-600:]) < 2 * PER_S


def measured(times: float = 1.0) -> Prior:
    """What a service would have learnt of servers that take so many times as long."""
    points = tuple((float(many), times * token_s(many)) for many in (1, 2, 4, 8, 16, 32))
    steps = STEPS + TOKENS
    service = tuple((many, steps * each_s) for many, each_s in points)
    return Prior(Curve(service, points, steps, SLOWEST * STEPS), "learnt by service b")


def with_prior(times: float, scaling: Scaling = SCALING, *, tells: bool = True) -> Servers:
    found = Servers(scaling, tells=tells)
    found.memory = with_other_replicas(found.memory, scaling, measured(times))
    return found


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_with_a_prior_fewer_wait_too_long_also_if_it_is_wrong(times: float, tells: bool):
    scaling, wait_s = (SCALING, 3.0) if tells else (TIMES, 5.0)
    without, found = Servers(scaling, tells=tells), with_prior(times, scaling, tells=tells)
    late, before = (
        sum(queue > wait_s * PER_S for queue in one.live(300).queues) for one in (found, without)
    )
    assert late <= (0 if times == 1 else 0.75 * before)
    assert found.limits[-1] >= 16
    assert times != 1 or found.memory.capacity.source == ""


def test_a_prior_is_never_trusted_past_the_objectives():
    """Its tokens are in time with 32, in 62 ms; within 40 with 10 only, and with none within 20."""
    for tpot_s, most in ((0.15, 32), (0.04 / 0.9, 10), (0.02, 1)):
        begun = with_prior(1.0, replace(SCALING, tpot_s=tpot_s)).memory.capacity
        assert (begun.limit, begun.planned) == (most, most)


def test_a_prior_without_the_times_that_are_an_objective_says_nothing():
    only = Prior(Curve(service=measured().curve.service), "measured")
    found = Servers(SCALING)
    assert with_other_replicas(found.memory, SCALING, only).capacity.limit == FIRST
    assert with_other_replicas(found.memory, TIMES, only).capacity.limit > FIRST


def test_too_few_that_may_run_are_said_with_the_number_that_would_do():
    """With 28 at a time five answer as many as come."""
    for scaling, quota, why in (
        (replace(SCALING, max_replicas=3), None, "max_replicas = 3 lets no more run, about "),
        (SCALING, 3, "quota lets no more replicas run, about "),
    ):
        found = Servers(scaling, ready=3, quota=quota).live(900)
        assert "of the last half hour began in time, not 99%" in found.reason
        assert 5 <= int(found.reason.split(why)[1].split()[0]) <= 9
    assert "began in time" not in Servers(SCALING).live(900).reason


def test_tokens_or_requests_that_are_too_slow_by_themselves_are_said():
    """A token takes 31 ms in a replica with one request, and a request of 212 of them 6.6 s."""
    tokens = Servers(replace(SCALING, tpot_s=0.025)).live(300).reason
    assert "no number of replicas keeps tpot_ms, 3" in tokens
    slow = replace(TIMES, max_queue_s=None, p95_s=5.0)
    times = Servers(slow, tells=False).live(600).reason
    assert "no number of replicas keeps p95_ms, " in times
    assert 15_000 < int(times.split("keeps p95_ms, ")[1].split()[0]) < 25_000
    one = replace(slow, learns=False, concurrency=1, p95_s=5.0)
    assert "no number of replicas keeps p95_ms, " in Servers(one, ready=60).live(300).reason
    assert "no number of replicas" not in Servers(SCALING).live(300).reason
