"""Tests that status says when an objective is missed, why, and a number that would do indeed."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from stand_ins.scaled_service import START_S, lived_through

from slicewise.launcher.rules.autoscale.attainment import Attainment
from slicewise.launcher.rules.autoscale.crests import Crest
from slicewise.launcher.rules.autoscale.policy import Memory, autoscale
from slicewise.launcher.rules.autoscale.types import Scaling, ServiceLook, Supply
from slicewise.launcher.rules.gateway.types import Load

SCALING = Scaling(0, 40, 1, max_queue_s=2.0)


def bursts(each_s: int, places: int, lasts_s: int, span_s: int) -> Sequence[float]:
    """Bursts of so many requests a second, evenly."""
    begins = range(60, span_s, each_s)
    return [begun + n / places for begun in begins for n in range(places * lasts_s)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arrivals_s", "service_s", "concurrency"),
    [
        pytest.param([600.0, 2700.0, 5000.0], 1.0, 1, id="each request wakes it"),
        pytest.param(bursts(3000, 8, 10, 6000), 1.0, 1, id="each burst wakes it"),
        pytest.param(bursts(3000, 30, 20, 6000), 0.5, 4, id="several requests at a time"),
        pytest.param(bursts(3000, 1, 60, 6000), 20.0, 1, id="long requests"),
    ],
)
@pytest.mark.parametrize("learns", [False, True])
def test_where_a_start_takes_longer_than_requests_may_wait_it_says_which_number_would_do(
    arrivals_s: Sequence[float], service_s: float, concurrency: int, learns: bool
):
    scaling = replace(SCALING, concurrency=concurrency)
    asked = replace(scaling, learns=learns)
    life = lived_through(asked, arrivals_s, service_s, 6000)
    assert life.share < scaling.aim
    # How long requests take is not known before the first ones are answered.
    said = [one.reason for one in life.decisions[int(arrivals_s[-1]) + 2 * START_S :][:900]]
    numbers = [
        re.search(r"requests may wait 2.0 s.*min_replicas = (\d+) would do", one) for one in said
    ]
    assert all(numbers)
    enough = max(int(one[1]) for one in numbers if one)
    if not learns:
        helped = lived_through(replace(scaling, min_replicas=enough), arrivals_s, service_s, 6000)
        assert helped.share >= scaling.aim
        assert not any("would do" in one.reason for one in helped.decisions)


def test_requests_that_may_wait_long_need_as_many_in_a_burst_that_is_longer():
    """Twelve places for a minute: of half as many the last request would wait for a minute, too."""
    scaling, arrivals_s = replace(SCALING, max_queue_s=10.0), bursts(1200, 8, 60, 2400)
    life = lived_through(scaling, arrivals_s, 1.5, 2400)
    said = re.search(r"min_replicas = (\d+) would do", life.decisions[1700].reason)
    assert said
    helped = replace(scaling, min_replicas=int(said[1]))
    assert lived_through(helped, arrivals_s, 1.5, 2400).share >= scaling.aim


def test_what_was_late_long_ago_is_not_said_any_more():
    life = lived_through(SCALING, [600.0], 1.0, 3600)
    assert "would do" in life.decisions[2000].reason
    assert "would do" not in life.decisions[3000].reason


@pytest.mark.parametrize(
    ("change", "room", "said"),
    [
        ({}, 20, "; min_replicas = 10 would do"),
        ({}, None, "; min_replicas = 10 would do"),
        ({"max_replicas": 6}, 20, "; min_replicas = 10 with max_replicas for as many would do"),
        ({}, 5, "; min_replicas = 10 with quota for as many would do"),
        (
            {"max_replicas": 6},
            5,
            "; min_replicas = 10 with max_replicas and quota for as many would do",
        ),
    ],
)
def test_it_says_what_has_to_let_so_many_run(change: dict[str, int], room: int | None, said: str):
    crests = tuple(Crest(1000.0, 1000.0) for _ in range(7))
    memory = Memory(crests=crests, attained=Attainment(begun=100.0, late=50.0))
    look = ServiceLook(1010.0, Load(1), Supply(ready=2), room=room)
    reason = autoscale(replace(SCALING, **change), memory, look)[1].reason
    assert "50% of the requests of the last half hour began in time, not 99%" in reason
    assert said in reason
